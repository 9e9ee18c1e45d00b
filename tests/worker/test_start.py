"""Goal: a worker that waits for START ends quietly when its controller dies, whatever of its words was unread."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from sidecar.common.model import ExitStatus


@pytest.mark.parametrize("unread", [b"", b"something the controller never read"], ids=["eof", "reset"])
def test_a_waiting_worker_ends_with_its_controller(unread: bytes) -> None:
    ours, theirs = socket.socketpair()
    worker = subprocess.Popen(
        [
            *(sys.executable, "-m", "sidecar.worker"),
            *("--control-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid())),
        ],
        pass_fds=[theirs.fileno()],
        stderr=subprocess.PIPE,
        text=True,
    )
    with worker:
        theirs.sendall(unread)
        theirs.close()
        ours.close()
        _, said = worker.communicate(timeout=60)
    assert "Traceback" not in said
    assert worker.returncode == ExitStatus.WORKER_CONTROLLER_GONE
