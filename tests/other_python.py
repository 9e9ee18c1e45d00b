"""Another patch release of the environment's Python on this machine, such as Debian's own 3.11.2 beside a newer 3.11.

``python -m tests.other_python`` prints the path of its interpreter, or nothing. It takes packages and compiled modules
of the environment as they are, so it costs no second set-up. What differs is the standard library: of two releases of
3.11, asyncio and the compiler of ``except*`` have shown that.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

HOME = Path(__file__).resolve().parents[1] / ".demo" / "other-python"
_ASKED = "import sys, sysconfig; print(sysconfig.get_config_var('SOABI'), sys.version)"


def other_python(found: Path) -> Path | None:
    """An interpreter as ``found``, with this one's packages; None where it is the same release or fits them not."""
    if not found.exists():
        return None
    asked = subprocess.run([found, "-I", "-c", _ASKED], capture_output=True, text=True, check=False)
    abi, _, version = asked.stdout.strip().partition(" ")
    if asked.returncode or abi != sysconfig.get_config_var("SOABI") or version == sys.version:
        return None
    made = subprocess.run([found, "-m", "venv", "--without-pip", "--clear", HOME], check=False)
    if made.returncode:
        return None
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = sysconfig.get_path("purelib")
    (HOME / "lib" / name / "site-packages" / "packages.pth").write_text(
        f"import site; site.addsitedir({packages!r})\n"
    )
    return HOME / "bin" / "python"


if __name__ == "__main__":
    wanted = other_python(Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"))
    if wanted is not None:
        print(wanted)
