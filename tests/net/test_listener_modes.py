"""Goal: nobody connects to a socket before its owner says who may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_socket_is_closed_to_others_until_its_mode_is_said(tmp_path: Path) -> None:
    """Between bind and chmod the path has the mode of the descriptor, whatever the umask."""
    program = """
import os, select, stat, sys, asyncio
from sidecar.net.stubs.listener import Listener
path, modes = sys.argv[1], []
mode = lambda: stat.S_IMODE(os.stat(path).st_mode)
sys.addaudithook(lambda event, given: event == "os.chmod" and os.path.exists(path) and modes.append(mode()))
os.umask(0)
loop = asyncio.new_event_loop()
listener = Listener(loop, select.epoll(), path, on_connected=print, on_turned_away=print, free_descriptor=bool)
print(*(f"{each:o}" for each in (*modes, mode())))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["600", "660"]
