"""Prints one sentence for each thing that this machine lacks, with the Debian package.

Runs before anything is installed, perhaps on a Python that is too old: standard library and old syntax only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path


def missing(needs_java: bool = True) -> list[str]:
    """One sentence for each missing thing; empty when nothing is missing."""
    found = []
    if not sys.platform.startswith("linux"):
        found.append(f"kafka-sidecar needs Linux (pidfd, CPU affinity, /dev/shm); this is {sys.platform}.")
    # make PYTHON=... may name any Python, so this check is needed.
    if sys.version_info < (3, 11):  # noqa: UP036
        found.append(
            f"Python {sys.version.split()[0]} is too old: install Python 3.11 or later "
            "(Debian: apt-get install python3) or name one with make PYTHON=..."
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        found.append("Python's venv module is missing (Debian: apt-get install python3-venv).")
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").is_file():
        found.append(f"Python.h is missing in {include} (Debian: apt-get install python3-dev).")
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if not shutil.which(compiler) and not shutil.which("cc"):
        found.append("No C compiler found (Debian: apt-get install build-essential).")
    if needs_java:
        if java_version() < 17:
            found.append("No JDK 17 or later found (Debian: apt-get install openjdk-17-jdk-headless).")
        if not shutil.which("mvn"):
            found.append("No Maven found (Debian: apt-get install maven).")
    return found


def java_version() -> int:
    """The major version of the Java that Spark and Kafka would use; 0 without Java."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, check=False)
    except OSError:
        return 0
    match = re.search(rb'version "(\d+)', shown.stderr + shown.stdout)
    return int(match.group(1)) if match else 0


if __name__ == "__main__":
    sentences = missing(needs_java="--without-java" not in sys.argv)
    for sentence in sentences:
        sys.stderr.write(sentence + "\n")
    sys.exit(1 if sentences else 0)
