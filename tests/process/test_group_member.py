"""Goal: a member of the sending group can send and look at `status`, and nothing else; a stranger can do neither."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_stub import Producer
from client_stub.errors import DaemonRefused
from sidecar.controller.rundir.run_dir import RunDir, RunDirError
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.mock_broker import MockBroker
from tests.tools import ROOT_USER, needs

pytestmark = [
    pytest.mark.process,
    needs(ROOT_USER),
]

SENDERS = 12_345
ASK = f"ask as user root, or as a member of gid {SENDERS}"
NOBODY = 65_534


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ks-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def daemon(home: Path, start_daemon: StartDaemon, mock_broker: MockBroker) -> SidecarDaemon:
    """As the unit runs it: a group of its own, and a umask that leaves the group all rights."""
    found = start_daemon(
        mock_broker.bootstrap_servers,
        run_dir=home / "run",
        settings={"pool.path": home / "pool", "pool.sync": "none"},
        prefix=["setpriv", f"--regid={SENDERS}", "--clear-groups", "sh", "-c", 'umask 007; exec "$@"', "sh"],
    )
    with Producer(run_dir=str(found.run_dir)) as producer:  # what is imported late, is imported now
        producer.send("smoke", b"secret").result(timeout=30)
    return found


def as_user(group: int, work: Callable[[], None]) -> None:
    """Run ``work`` in a child of another user; its traceback is on stderr."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_member_sends_and_looks_and_opens_nothing_else(daemon: SidecarDaemon, home: Path) -> None:
    run_dir = daemon.run_dir
    # Names with a dot are of files that are about to be renamed: they come and go.
    found = [path for path in run_dir.iterdir() if not path.name.startswith(".")]
    files = [path for path in [*found, home / "pool"] if path.is_file()]
    assert {"segment.json", "epoch", "daemon.lock", "workers.lock", "daemon.json", "pool"} <= {
        path.name for path in files
    }

    def work() -> None:
        assert json.loads((run_dir / "daemon.json").read_text())["pid"] == RunDir(run_dir).holder()
        with Producer(run_dir=str(run_dir)) as producer:
            assert producer.send("smoke", b"1").result(timeout=30).offset >= 0
        opened = []
        for path in files:
            for flags in (os.O_RDONLY, os.O_WRONLY):
                try:
                    fd = os.open(path, flags)
                except PermissionError:
                    continue
                opened.append((path.name, flags))
                os.close(fd)
        assert opened == [("daemon.json", os.O_RDONLY)], opened
        for planted in (run_dir / ".daemon.json.1", run_dir / "worker-9.1.sock", run_dir / "dead-letters"):
            with pytest.raises(PermissionError):
                planted.symlink_to("/etc/passwd")
        with pytest.raises(PermissionError):
            (run_dir / "segment.json").unlink()

    as_user(SENDERS, work)


def test_a_stranger_is_not_let_in_and_hears_why(daemon: SidecarDaemon) -> None:
    def work() -> None:
        with (
            pytest.raises(DaemonRefused, match=rf"Permission denied: .* may not use {daemon.run_dir}: {ASK}"),
            Producer(run_dir=str(daemon.run_dir), connect_timeout_ms=60_000) as producer,
        ):
            producer.send("smoke", b"1")
        with (
            pytest.raises(DaemonRefused, match=ASK),
            Producer(run_dir=str(daemon.run_dir), max_block_ms=60_000) as producer,
        ):
            producer.partitions_for("smoke")
        with pytest.raises(RunDirError, match=rf"Permission denied: .* may not use {daemon.run_dir}: {ASK}"):
            RunDir(daemon.run_dir).holder()
        with pytest.raises(PermissionError):
            fcntl.flock(os.open(daemon.run_dir / "daemon.lock", os.O_RDONLY), fcntl.LOCK_SH)

    as_user(NOBODY, work)
