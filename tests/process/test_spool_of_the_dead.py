"""Goal: what the workers of a dead daemon had open is closed by the next one, also of slots that get no worker now."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from sidecar.deadletter.spool_files import spool_files, writer_of
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.waiting import wait_until

pytestmark = [pytest.mark.process]


def test_fewer_workers_and_a_link_to_the_run_dir_leave_no_file_open(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    letters, home = tmp_path / "letters", Path(tempfile.mkdtemp(prefix="ks-", dir="/tmp"))
    real, link = home / "real", home / "link"
    (real / "run").mkdir(parents=True, mode=0o700)
    link.symlink_to(real)
    letters.mkdir()
    other = letters / f"{writer_of(tmp_path, 1)}-1.jsonl.open"
    other.write_bytes(b"{}\n")  # of another daemon
    try:
        for run_dir, workers in ((real / "run", 4), (link / "run", 1)):
            daemon = start_daemon(
                "127.0.0.1:1",
                wait=False,
                run_dir=run_dir,
                settings={"dead_letters.path": letters, "daemon.workers": workers},
            )
            daemon.wait_published()
            wait_until(
                lambda: [path for path in spool_files(letters) if path.suffix == ".open"] == [other],
                "all that is not another daemon's to be closed",
                describe=daemon.log_tail,
            )
            assert len(spool_files(letters)) == (1 if workers == 4 else 5)
            for slot in range(workers):
                (letters / f"{writer_of(run_dir, slot)}-{slot}.jsonl.open").write_bytes(b"{}\n")
            daemon.kill_all()
        daemon.remove()  # while the run dir says where the segment is
    finally:
        shutil.rmtree(home, ignore_errors=True)
