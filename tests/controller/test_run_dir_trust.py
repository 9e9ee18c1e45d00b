"""Whose a run dir is: what somebody else made, or could write, is refused by name; where it is found by default."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from client_stub import Producer
from client_stub.contract.run_dir import default_run_dir
from sidecar.cli.main import cli
from sidecar.controller.rundir.opening import PoolSize, open_segment
from sidecar.controller.rundir.own_files import LINKS_MAX, replacers
from sidecar.controller.rundir.predecessor import Predecessor
from sidecar.controller.rundir.published import read_json
from sidecar.controller.rundir.run_dir import BELIEVED, RunDir, RunDirError
from sidecar.controller.rundir.segment_store import SegmentStore
from sidecar.controller.start_checks import warn_of_replacers
from tests.tools import ROOT_USER, lacks, needs

SOMEBODY = 12_345
only_root = needs(ROOT_USER)


def open_store(run_dir: RunDir, path: str = "") -> SegmentStore:
    return open_segment(
        run_dir,
        PoolSize(4096, 1 << 20, 16),
        sync="none",
        workers=1,
        configured_path=path,
        instance_id=b"i" * 16,
    )


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722, 0o1777])
def test_a_run_dir_that_others_may_write_is_refused_with_path_owner_and_mode(
    short_dir: Path, mode: int
) -> None:
    place = short_dir / "run"
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(RunDirError) as refused:
        RunDir(place).acquire()
    for word in (str(place), f"uid {os.geteuid()}", f"mode {mode:04o}", "chmod go-w"):
        assert word in str(refused.value)
    assert not list(place.iterdir()), "nothing was made in it"
    place.chmod(0o750)
    RunDir(place).acquire()


def test_a_run_dir_of_somebody_else_is_refused(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)
    with pytest.raises(
        RunDirError, match=f"somebody else's folder, of uid {owner} with mode 0700.*uid {SOMEBODY}"
    ):
        RunDir(short_dir).acquire()


@only_root
@pytest.mark.parametrize("part", ["the folder", "a folder above", "a link to it", "a link above"])
def test_whatever_somebody_else_owns_on_the_way_is_refused(short_dir: Path, part: str) -> None:
    real = short_dir / "above" / "run"
    real.mkdir(mode=0o750, parents=True)
    path = {
        "the folder": real,
        "a folder above": real,
        "a link to it": short_dir / "link",
        "a link above": short_dir / "way" / "run",
    }[part]
    (short_dir / "link").symlink_to(real)
    (short_dir / "way").symlink_to(Path("above"))
    RunDir(path).check_ours()
    theirs = {
        "the folder": real,
        "a folder above": real.parent,
        "a link to it": short_dir / "link",
        "a link above": short_dir / "way",
    }[part]
    os.chown(theirs, SOMEBODY, -1, follow_symlinks=False)
    with pytest.raises(RunDirError, match=re.escape(str(theirs)) + f".*uid {SOMEBODY}"):
        RunDir(path).acquire()


def test_our_own_links_are_followed_but_not_for_ever(short_dir: Path) -> None:
    (short_dir / "real").mkdir(mode=0o750)
    (short_dir / "0").symlink_to("real")
    for number in range(1, LINKS_MAX + 1):
        (short_dir / str(number)).symlink_to(f"./../{short_dir.name}/{number - 1}")
    RunDir(short_dir / str(LINKS_MAX - 1)).check_ours()
    with pytest.raises((RunDirError, OSError)):
        RunDir(short_dir / str(LINKS_MAX)).check_ours()


@pytest.mark.parametrize("name", [name for name in BELIEVED if name != "dead-letters"])
def test_a_planted_link_is_refused_and_not_written_through(short_dir: Path, name: str) -> None:
    target = short_dir / "precious"
    target.write_text("mine")
    place = short_dir / "run"
    place.mkdir(mode=0o750)
    (place / name).symlink_to(target)
    with pytest.raises(RunDirError, match=rf"{name}\): it is a symbolic link.*remove it"):
        RunDir(place).acquire()
    assert target.read_text() == "mine"


@only_root
@pytest.mark.parametrize("name", BELIEVED)
def test_a_file_of_another_user_is_refused(short_dir: Path, name: str) -> None:
    (short_dir / name).write_text("{}")
    os.chown(short_dir / name, SOMEBODY, -1)
    with pytest.raises(RunDirError, match=rf"{name}\): it is somebody else's.*uid {SOMEBODY}"):
        RunDir(short_dir).acquire()


def test_a_link_under_the_name_of_a_temporary_file_is_not_written_through(short_dir: Path) -> None:
    target = short_dir / "precious"
    target.write_text("mine")
    (short_dir / f".daemon.json.{os.getpid()}").symlink_to(target)
    run_dir = RunDir(short_dir)
    run_dir.files.publish({"pid": 1})
    assert target.read_text() == "mine"
    assert read_json(run_dir.files.daemon_json) == {"pid": 1}


def test_whatever_the_umask_nobody_else_may_write_what_is_believed(short_dir: Path) -> None:
    before = os.umask(0)
    try:
        run_dir = RunDir(short_dir / "run")
        run_dir.acquire()
        run_dir.files.publish({"pid": 1})
        run_dir.files.publish_segment(Path("/dev/shm/x"))
        run_dir.files.store_epoch(5)
    finally:
        os.umask(before)
    modes = {each.name: each.stat().st_mode & 0o777 for each in run_dir.path.iterdir()}
    assert modes == {"daemon.lock": 0o600, "daemon.json": 0o640, "segment.json": 0o600, "epoch": 0o600}
    assert run_dir.path.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("mode", [0o660, 0o606])
def test_a_segment_that_others_could_write_is_not_adopted(short_dir: Path, mode: int) -> None:
    run_dir = RunDir(short_dir)
    store = open_store(run_dir, str(short_dir / "segment"))
    store.leave()
    (short_dir / "segment").chmod(mode)
    with pytest.raises(RunDirError, match=rf"mode 0{mode:o}: its contents cannot be trusted"):
        open_store(run_dir, str(short_dir / "segment"))
    (short_dir / "segment").chmod(0o600)
    open_store(run_dir, str(short_dir / "segment")).close()


def test_a_takeover_looks_at_the_run_dir_first(short_dir: Path) -> None:
    """As when root is to take over from a user's daemon, whose folder could lead anywhere."""
    RunDir(short_dir).acquire()
    short_dir.chmod(0o777)
    with pytest.raises(RunDirError, match="may be written by others"):
        Predecessor.find(RunDir(short_dir))


# ---- the folder of pool.path


@pytest.mark.parametrize(
    ("mode", "who"),
    [
        (0o777, "every user may, since {} has mode 0777,"),
        (0o707, "every user may, since {} has mode 0707,"),
        (0o770, "every user of group 12345 may, since {} has mode 0770,"),
        (0o1777, None),
        (0o755, None),
        (0o700, None),
    ],
)
def test_users_that_may_write_in_the_folder_of_the_pool_are_named(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, mode: int, who: str | None
) -> None:
    folder = short_dir / "pools"
    folder.mkdir()
    monkeypatch.setattr("sidecar.controller.rundir.own_files.os.getegid", lambda: SOMEBODY + 1)
    folder.chmod(mode)
    if os.geteuid() == 0:
        os.chown(folder, -1, SOMEBODY)
    elif mode == 0o770:
        pytest.skip(lacks(ROOT_USER))
    assert replacers(folder / "pool") == ([] if who is None else [who.format(folder)])
    assert replacers(folder / "missing" / "pool") == replacers(folder / "pool"), (
        "a folder above counts as well"
    )
    assert replacers(Path("/dev/shm/pool")) == [], "where a pool is by default"


@only_root
def test_owners_of_folders_and_links_on_the_way_to_the_pool_are_named(short_dir: Path) -> None:
    folder = short_dir / "pools"
    folder.mkdir(mode=0o755)
    (short_dir / "link").symlink_to(folder)
    assert replacers(short_dir / "link" / "pool") == []
    for theirs in (folder, short_dir / "link"):
        os.chown(theirs, SOMEBODY, -1, follow_symlinks=False)
        assert replacers(short_dir / "link" / "pool") == [f"uid {SOMEBODY}, who owns {theirs}, may"]
        os.chown(theirs, 0, -1, follow_symlinks=False)


def test_a_start_says_who_may_take_the_pool_away(short_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_replacers("")
    warn_of_replacers(str(short_dir / "pool"))
    assert not caplog.messages
    short_dir.chmod(0o777)
    warn_of_replacers(str(short_dir / "pool"))
    (line,) = caplog.messages
    assert line == (
        f"pool.path = {short_dir}/pool can be taken away, with the records in it: every user may, since {short_dir} "
        "has mode 0777, rename or remove what is there. Give it a folder that only this user may write."
    )


# ---- where it is by default


def test_daemon_and_stub_have_one_default(monkeypatch: pytest.MonkeyPatch, short_dir: Path) -> None:
    runtime = short_dir / "runtime"
    runtime.mkdir(mode=0o700)
    for name in ("KAFKA_SIDECAR_RUN_DIR", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_run_dir() == "/run/kafka-sidecar"
    monkeypatch.setattr(os, "geteuid", lambda: me or SOMEBODY)
    if not me:
        os.chown(runtime, SOMEBODY, -1)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert default_run_dir() == f"{runtime}/kafka-sidecar"
    monkeypatch.setenv("KAFKA_SIDECAR_RUN_DIR", "/named")
    assert default_run_dir() == "/named"


@pytest.mark.parametrize("told", ["", "/no/such/folder", "others"])
def test_without_a_folder_of_ones_own_there_is_no_default(
    monkeypatch: pytest.MonkeyPatch, short_dir: Path, told: str
) -> None:
    """Never one under /tmp, which anybody can make first; both sides say what to do."""
    monkeypatch.delenv("KAFKA_SIDECAR_RUN_DIR", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)
    short_dir.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_dir) if told == "others" else told)
    with pytest.raises(
        ValueError, match=r"no default run directory.*--run-dir, run_dir or KAFKA_SIDECAR_RUN_DIR"
    ) as no:
        default_run_dir()
    assert "/tmp/kafka-sidecar" not in str(no.value)
    assert (str(short_dir) if told == "others" else told or f"/run/user/{SOMEBODY}") in str(no.value)
    with pytest.raises(ValueError, match="no default run directory"):
        Producer()
    from click.testing import CliRunner

    done = CliRunner().invoke(cli, ["status"])
    assert done.exit_code == 1 and "no default run directory" in done.output
    done = CliRunner().invoke(cli, ["run", "-X", "bootstrap.servers=127.0.0.1:1"])
    assert done.exit_code == 1 and "no default run directory" in done.output


# ---- who may look


@only_root
@pytest.mark.process
@pytest.mark.parametrize("before", [True, False])
def test_a_command_of_a_stranger_ends_with_69_and_the_group_to_join(short_dir: Path, before: bool) -> None:
    """A run dir that this user cannot read is no wrong usage of the command line."""
    # Whatever the command imports late comes first: the stranger may not read this clone.
    look = "import sys, os; import sidecar.cli.status, sidecar.cli.common, sidecar.telemetry.collector\n"
    look += "import sidecar.telemetry.page; from sidecar.cli.main import cli\n"
    look += "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
    look += "cli(sys.argv[1:])"
    run_dir = RunDir(short_dir / "run")
    run_dir.acquire()
    run_dir.files.publish({"pid": os.getpid()})
    short_dir.chmod(0o755)
    words = ["--run-dir", str(run_dir.path)]
    done = subprocess.run(
        [sys.executable, "-c", look, *([*words, "status"] if before else ["status", *words])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 69, done.stderr
    assert "as a member of group root" in done.stderr


@only_root
@pytest.mark.process
@pytest.mark.parametrize(("mode", "sees"), [(0o755, True), (0o700, False)])
def test_a_user_who_may_not_see_the_lock_hears_the_truth(short_dir: Path, mode: int, sees: bool) -> None:
    """daemon.json names the daemon to those who may read it; others are told that they cannot tell."""
    look = "import sys; from pathlib import Path; from sidecar.controller.rundir.run_dir import RunDir, RunDirError\n"
    look += "import os; os.setresuid(65534, 65534, 65534)\n"
    look += "try: print(RunDir(Path(sys.argv[1])).holder())\nexcept RunDirError as error: print(error)"
    run_dir = RunDir(short_dir)
    run_dir.acquire()
    run_dir.files.publish({"pid": os.getpid()})
    run_dir.files.daemon_json.chmod(0o644)
    short_dir.chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", look, str(short_dir)], capture_output=True, text=True, check=True
    )
    if sees:
        assert done.stdout.strip() == str(os.getpid())
        run_dir.files.publish({"pid": 2**22 + 1})  # one that has died
        run_dir.files.daemon_json.chmod(0o644)
        done = subprocess.run(
            [sys.executable, "-c", look, str(short_dir)], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "None"
    else:
        assert "Permission denied: " in done.stdout


@only_root
@pytest.mark.process
def test_a_user_that_may_only_read_cannot_hold_the_lock(short_dir: Path) -> None:
    """An older version made it readable for the group: the next daemon takes that right away."""
    (short_dir / "daemon.lock").touch(0o644)
    (short_dir / "daemon.lock").chmod(0o644)
    short_dir.chmod(0o755)
    RunDir(short_dir).acquire()
    program = "import os, sys; os.setresuid(65534, 65534, 65534); os.open(sys.argv[1], os.O_RDONLY)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(short_dir / "daemon.lock")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "PermissionError" in done.stderr


def test_a_stranger_who_holds_the_lock_is_said_to_be_one(short_dir: Path) -> None:
    """A process opened it while it could: no daemon is made up, and the text says what to do."""
    lock = short_dir / "daemon.lock"
    lock.touch(0o600)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(RunDirError, match="a process that is not a daemon holds its lock file"):
            RunDir(short_dir).acquire()
        assert RunDir(short_dir).holder() is None
    RunDir(short_dir).acquire()


def test_published_files_of_another_kind_are_no_traceback(short_dir: Path) -> None:
    from click.testing import CliRunner

    run_dir = RunDir(short_dir)
    run_dir.acquire()
    for content in ("{}", '{"pid": "x"}', json.dumps({"pid": None}), "[", ""):
        run_dir.files.daemon_json.write_text(content)
        done = CliRunner().invoke(cli, ["status", "--run-dir", str(short_dir)])
        assert done.exit_code == 69
        assert "only starting" in done.output
    shutil.rmtree(short_dir)
    short_dir.mkdir(mode=0o700)


def test_a_folder_above_that_everybody_may_write_is_named(
    short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its users could put a run dir of their own in the place of ours; with the sticky bit they cannot."""
    above = short_dir / "above"
    above.mkdir()
    for mode, is_named in ((0o1777, False), (0o777, True), (0o755, False)):
        above.chmod(mode)
        caplog.clear()
        run_dir = RunDir(above / "run")
        run_dir.acquire()
        run_dir.release(forget_segment=True)
        assert (f"because {above} has mode 0777" in caplog.text) is is_named


@only_root
@pytest.mark.process
@pytest.mark.parametrize(
    ("mode", "words"), [(0o750, "user daemon, or as a member of group bin"), (0o700, "user daemon.")]
)
def test_a_stranger_hears_whom_to_be(short_dir: Path, mode: int, words: str) -> None:
    """Never that no daemon runs: with a lock that may not be seen that is not known."""
    for parent in [short_dir, *short_dir.parents]:
        assert parent == short_dir or parent.stat().st_mode & 0o001
    place = short_dir / "run"
    place.mkdir()
    (place / "daemon.lock").touch(0o600)
    os.chown(place, 1, 2)
    place.chmod(mode)
    short_dir.chmod(0o755)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            RunDir(place).holder()
        except RunDirError as error:
            code = 0 if f"may not use {place}: ask as {words}" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@only_root
def test_a_way_that_a_group_may_change_is_named(short_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The user's own group and the sticky bit are no danger; another group is named with what to do."""
    above = short_dir / "above"
    above.mkdir()
    for gid, mode, is_named in ((4_711, 0o770, True), (4_711, 0o1770, False), (os.getegid(), 0o770, False)):
        os.chown(above, -1, gid)
        above.chmod(mode)
        caplog.clear()
        run_dir = RunDir(above / "run")
        run_dir.acquire()
        run_dir.release(forget_segment=True)
        said = [each.getMessage() for each in caplog.records if str(above) in each.getMessage()]
        assert bool(said) == is_named
        assert all("Every user of group 4711 may" in each and "chmod g-w" in each for each in said)
