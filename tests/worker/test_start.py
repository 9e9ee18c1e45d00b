"""Goal: a worker that waits for START ends quietly when its controller dies, whatever of its words was unread."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile

import pytest

from sidecar.common.model import ExitStatus
from sidecar.common.python_child import python_command


@pytest.mark.parametrize("unread", [b"", b"something the controller never read"], ids=["eof", "reset"])
def test_a_waiting_worker_ends_with_its_controller(unread: bytes) -> None:
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as first_words, tempfile.TemporaryFile("w+") as stderr:
        fds = (theirs.fileno(), stderr.fileno())
        worker = subprocess.Popen(
            [
                *python_command("sidecar.worker"),
                *("--control-fd", str(fds[0]), "--stderr-fd", str(fds[1]), "--parent-pid", str(os.getpid())),
            ],
            pass_fds=fds,
            stderr=first_words,
        )
        with worker:
            theirs.sendall(unread)
            theirs.close()
            ours.close()
            worker.wait(timeout=60)
        for said in (first_words, stderr):
            said.seek(0)
            assert "Traceback" not in str(said.read())
    assert worker.returncode == ExitStatus.WORKER_CONTROLLER_GONE
