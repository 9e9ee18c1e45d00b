"""A process that holds a run dir, as a daemon does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HOLD = "import sys; from pathlib import Path; from sidecar.controller.rundir.run_dir import RunDir\n"
HOLD += "RunDir(Path(sys.argv[1])).acquire(); print('held', flush=True); sys.stdin.read()"


def hold(path: Path) -> subprocess.Popen[str]:
    """Start it. It ends when its stdin is closed, as the end of a ``with`` block does."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child
