"""Goal: nothing of ours runs what lies in the current folder; workers that cannot start end the daemon in a sentence.

Method: a folder with modules of the names that we import, each of which says that it was run. Daemon, workers, their
replacements, CLI and the kit's children are started in it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from client_stub import Producer
from sidecar.common.python_child import python_command, safe_environment
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process

TRAPS = ("json", "zmq", "uvloop", "cramjam", "logging", "sidecar", "client_stub", "sitecustomize")
TRAP = """
import os
open(os.path.join({folder!r}, "ran"), "a").write(__name__ + " ")
raise ImportError("planted")
"""


@pytest.fixture
def trap_folder(tmp_path: Path) -> Path:
    """As a clone of the project, or somebody's downloads: packages and modules that shadow ours."""
    for name in TRAPS:
        (tmp_path / f"{name}.py").write_text(TRAP.format(folder=str(tmp_path)))
    for package in ("sidecar", "client_stub"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(TRAP.format(folder=str(tmp_path)))
    return tmp_path


def test_nothing_is_imported_from_the_current_folder(trap_folder: Path, start_daemon: StartDaemon) -> None:
    with FakeBroker({"t": 1}) as broker:
        daemon: SidecarDaemon = start_daemon(broker.bootstrap_servers, prefix=["env", "-C", str(trap_folder)])
        with Producer(run_dir=daemon.run_dir) as producer:
            producer.send("t", value=b"first").result(timeout=20)
            for _ in range(3):  # by the standby, and by processes that were started while the daemon ran
                killed = daemon.worker_pids()[0]
                os.kill(killed, signal.SIGKILL)
                wait_until(
                    lambda killed=killed: (
                        killed not in daemon.worker_pids() and daemon.info()["state"] == "running"
                    ),
                    "the worker is replaced",
                )
            producer.send("t", value=b"last").result(timeout=20)
        for words, says in ((("doctor",), "A worker process starts."), (("status",), "")):
            done = subprocess.run(
                python_command("sidecar", *words, "--run-dir", str(daemon.run_dir)),
                cwd=trap_folder,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert says in done.stdout
        grandchild = (
            "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import json'], check=True)"
        )
        subprocess.run(
            [sys.executable, "-P", "-c", grandchild],
            cwd=trap_folder,
            env=safe_environment(),
            check=True,
        )
    assert not (trap_folder / "ran").exists(), (trap_folder / "ran").read_text()


def test_workers_that_cannot_be_loaded_end_the_daemon_in_one_sentence(
    tmp_path: Path, start_daemon: StartDaemon
) -> None:
    """Damage that only the workers meet: a package that the controller does not import."""
    (tmp_path / "cramjam.py").write_text("raise ImportError('cramjam is broken')")
    environment = {"PYTHONPATH": str(tmp_path)}
    with FakeBroker({}) as broker:
        daemon = start_daemon(broker.bootstrap_servers, wait=False, environment=environment)
        assert daemon.process is not None
        assert daemon.process.wait(60) == 1
        assert "ended one after the other" in daemon.log_tail()
        assert "cramjam is broken" in daemon.log_tail()
    done = subprocess.run(
        python_command("sidecar", "doctor", "--run-dir", str(daemon.run_dir)),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "A worker process ends while it is loaded: ImportError: cramjam is broken" in done.stdout


def test_a_takeover_whose_workers_cannot_be_loaded_leaves_the_daemon_alone(
    tmp_path: Path, start_daemon: StartDaemon
) -> None:
    (tmp_path / "cramjam.py").write_text("raise ImportError('cramjam is broken')")
    with FakeBroker({"t": 1}) as broker:
        daemon = start_daemon(broker.bootstrap_servers)
        pid = daemon.info()["pid"]
        done = subprocess.run(
            python_command(
                "sidecar",
                *("run", "--takeover", "--run-dir", str(daemon.run_dir)),
                *("-X", f"bootstrap.servers={broker.bootstrap_servers}", "-X", "http.listen="),
            ),
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "cramjam is broken" in done.stderr and "The running daemon continues." in done.stderr
        with Producer(run_dir=daemon.run_dir) as producer:
            producer.send("t", value=b"v").result(timeout=20)
        assert daemon.info()["pid"] == pid
