"""Goal: whatever the umask, all that a daemon makes is its user's alone, but for what clients need."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.waiting import wait_until

pytestmark = [pytest.mark.process]

FOR_THE_GROUP = {"daemon.json": 0o640, "control.sock": 0o660, "worker-*.sock": 0o660}


@pytest.mark.parametrize("umask", ["000", "007", "022", "077"])
def test_only_sockets_and_daemon_json_are_for_the_group_under_any_umask(
    short_dir: Path, start_daemon: StartDaemon, umask: str
) -> None:
    run_dir, disk = short_dir / "run", short_dir / "disk"
    disk.mkdir()
    daemon = start_daemon(
        "127.0.0.1:1",
        wait=False,
        run_dir=run_dir,
        settings={"pool.path": disk / "pool", "dead_letters.path": short_dir / "spool" / "letters"},
        prefix=["sh", "-c", f'umask {umask}; exec "$@"', "sh"],
    )
    daemon.wait_published()
    wait_until(lambda: len(daemon.ready_pids()) == 2, "both workers", describe=daemon.log_tail)
    # Names with a dot are of files that are about to be renamed: they come and go.
    stay = [path for path in run_dir.iterdir() if not path.name.startswith(".")]
    for path in [*stay, *disk.iterdir(), *(short_dir / "spool" / "letters").iterdir()]:
        name = "worker-*.sock" if path.name.startswith("worker-") else path.name
        wanted = FOR_THE_GROUP.get(name, 0o600)
        assert stat.S_IMODE(path.lstat().st_mode) == wanted, path
    folders = [run_dir, short_dir / "spool" / "letters", short_dir / "spool"]
    assert [stat.S_IMODE(each.stat().st_mode) for each in folders] == [0o750, 0o700, 0o755]


def test_files_of_an_earlier_version_are_taken_over_and_closed(
    short_dir: Path, start_daemon: StartDaemon
) -> None:
    """They followed the umask of the unit: the group could write segment.json, and read the letters."""
    daemon = start_daemon("127.0.0.1:1", wait=False, run_dir=short_dir / "run")
    run_dir = daemon.run_dir
    letters = run_dir / "dead-letters"
    wait_until((run_dir / "workers.lock").exists, "a worker", describe=daemon.log_tail)
    daemon.kill_all()
    letters.mkdir(mode=0o750, exist_ok=True)
    (letters / "w-1.jsonl").touch()
    opened = ["daemon.lock", "segment.json", "epoch", "daemon.json", "workers.lock"]
    for path in (*(run_dir / name for name in opened), letters / "w-1.jsonl"):
        path.chmod(0o660)
    daemon.spawn()
    daemon.wait_published()
    assert stat.S_IMODE(Path(daemon.info()["segment"]).stat().st_mode) == 0o600
    assert {(run_dir / name).stat().st_mode & 0o7777 for name in opened if name != "daemon.json"} == {0o600}
    assert (letters / "w-1.jsonl").stat().st_mode & 0o7777 == 0o600
    (said,) = [line for line in daemon.log_lines() if "other users could read or change" in line]
    for name in ("segment.json (0660)", "epoch (0660)", "w-1.jsonl (0660)"):
        assert name in said
