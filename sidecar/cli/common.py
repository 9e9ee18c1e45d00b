"""Shared by the commands: --run-dir, failing with one sentence, finding the daemon and reading its state."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from sidecar.common.model import ExitStatus
from sidecar.common.processes import process_state
from sidecar.common.wording import counted
from sidecar.controller.rundir.published import read_json
from sidecar.controller.rundir.run_dir import RunDir, RunDirError, usual_run_dir

Command = TypeVar("Command", bound=Callable[..., Any])


def run_dir_option(command: Command) -> Command:
    """``--run-dir`` of a command, passed as ``run_dir`` (RunDir); the root's --run-dir if it is not given here."""

    def chosen(ctx: click.Context, _: click.Parameter, value: Path | None) -> RunDir:
        root = ctx.find_root().obj
        try:
            return RunDir(value or (root if isinstance(root, Path) else None) or usual_run_dir())
        except RunDirError as error:
            fail(str(error))

    return click.option(
        "--run-dir",
        type=click.Path(path_type=Path, readable=False),
        callback=chosen,
        help="Run dir of the daemon [default: $KAFKA_SIDECAR_RUN_DIR, or the usual place].",
    )(command)


class Failed(SystemExit):
    """The end of a command that has said why."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(status)
        self.sentence = sentence


def say(sentence: str) -> None:
    """Print one sentence on stderr: above the bar of a work that is under way, into which click.echo() would write.

    In one piece: another thread prints lines of the work, and would come between a sentence and its end.
    """
    print(f"{sentence}\n", end="", file=sys.stderr, flush=True)


def fail(sentence: str, status: int = ExitStatus.FAILED) -> NoReturn:
    """Print one sentence on stderr and end with ``status``."""
    sys.stdout.flush()
    print(sentence, file=sys.stderr)
    raise Failed(sentence, int(status))


def holder_of(run_dir: RunDir) -> int | None:
    """The pid of the running daemon of ``run_dir``; None without one. Ends with 69 when this user may not know."""
    try:
        return run_dir.holder()
    except RunDirError as error:
        fail(str(error), ExitStatus.DAEMON_UNREACHABLE)


def _left_behind(run_dir: RunDir) -> str:
    """A text such as ``the last one (pid 4711) is dead, and 500 records wait …; ``, or empty; only for users that may
    read its segment.
    """
    from sidecar.shm.segment import Segment, SegmentError
    from sidecar.telemetry.collector import read_counters, sum_counters

    path = (read_json(run_dir.files.segment_json) or {}).get("path")
    pid = (read_json(run_dir.files.daemon_json) or {}).get("pid")
    if not path:
        return ""
    try:
        segment = Segment.attach(path)
    except (SegmentError, OSError):
        return ""
    try:
        held = sum_counters(read_counters(segment))["records_held"]
    finally:
        segment.close()
    who = f"the last one (pid {pid}) is dead, and " if pid else ""
    what = counted(held, "record waits", "records wait")
    return f"{who}{what} in its segment {path} for the next one; "


def daemon_info(run_dir: RunDir) -> dict[str, Any]:
    """daemon.json of the running daemon of ``run_dir``. Ends with 69 and a sentence when there is none."""
    holder = holder_of(run_dir)
    if run_dir.path.exists() and not run_dir.path.is_dir():
        fail(f"{run_dir.path} is a file, not a run dir: name its folder with --run-dir.", ExitStatus.USAGE)
    if holder is None:
        fail(
            f"No daemon runs on run dir {run_dir.path}: {_left_behind(run_dir)}start one with "
            f"`kafka-sidecar run --run-dir {run_dir.path} -X bootstrap.servers=host:port`, "
            "or name another with --run-dir.",
            ExitStatus.DAEMON_UNREACHABLE,
        )
    info = read_json(run_dir.files.daemon_json)
    # The file of a killed daemon says nothing about this one.
    if info is None or info.get("pid") != holder:
        fail(
            f"The daemon on run dir {run_dir.path} (pid {holder}) is only starting; try again.",
            ExitStatus.DAEMON_UNREACHABLE,
        )
    now_ms = time.time() * 1e3
    age_s = max(now_ms - info.get("reported_ms", now_ms), 0.0) / 1e3  # missing in older versions
    for broker in info["brokers"]:
        # daemon.json is written only on changes, but the time in a state still grows.
        broker["since_seconds"] = round(broker["since_seconds"] + age_s, 1)
    if process_state(int(info["pid"])) in {"T", "t"}:
        info["state"], info["takes_records"] = "stopped", False
        info["sentence"] = (
            f"The daemon (pid {info['pid']}) is stopped: `kill -CONT {info['pid']}` lets it continue."
        )
    return info


def running_configuration(run_dir: RunDir, overrides: tuple[str, ...]) -> tuple[Path | None, tuple[str, ...]]:
    """(file, overrides): the configuration file and the servers of a running daemon. Its -X and variables are not
    known.
    """
    with contextlib.suppress(RunDirError):
        if run_dir.holder() is None:
            return None, overrides
    info = read_json(run_dir.files.daemon_json) or {}
    file, servers = info.get("config_file"), info.get("bootstrap")
    if servers:
        overrides = (*overrides, f"bootstrap.servers={servers}")
    return (Path(str(file)) if file else None), overrides
