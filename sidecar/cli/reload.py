"""``kafka-sidecar reload``: makes the running daemon read its configuration again."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import click

from sidecar.cli.common import daemon_info, fail, run_dir_option, say
from sidecar.cli.options import timeout_option
from sidecar.common.model import ExitStatus
from sidecar.common.own_process import own_version
from sidecar.common.processes import process_start_time
from sidecar.controller.reload import RELOAD_SIGNAL
from sidecar.controller.rundir.published import read_json
from sidecar.controller.rundir.run_dir import RunDir

POLL_S = 0.005


@click.command()
@run_dir_option
@click.option(
    "--check-version", is_flag=True, help="Exit 6 if the daemon is of another version than this command."
)
@timeout_option(30.0, "for the result")
def reload(run_dir: RunDir, check_version: bool, timeout_s: float) -> None:
    """Let the running daemon read its configuration again, from the file, variables and -X it was started with.

    All changes are applied at once, while records flow, or none. A configuration with a fault is refused with one
    sentence each and exit status 1. One that needs a new daemon is refused with exit status 6 and the remedy: `run
    --takeover`, or a clean stop and a start for the sizes of the segment. docs/configuration.md names what is live.

    \b
    kafka-sidecar reload
    kafka-sidecar reload --run-dir /run/kafka-sidecar
    """
    info = daemon_info(run_dir)
    if "reload_json" not in info or (check_version and info["version"] != own_version()):
        fail(
            f"The daemon is of version {info['version']} and this command of {own_version()}: replace it with "
            "`kafka-sidecar run --takeover`.",
            ExitStatus.NEEDS_TAKEOVER,
        )
    asked_s = time.monotonic()
    pid = _signal(info)
    result = _await_result(run_dir, pid, info, asked_s, timeout_s)
    for sentence in result["warnings"]:
        say(f"Warning: {sentence}")
    if result["faults"]:
        fail(
            "\n".join([*result["faults"], "The daemon keeps its earlier configuration."]),
            ExitStatus.NEEDS_TAKEOVER if result["needs_takeover"] else ExitStatus.FAILED,
        )
    for change in result["changes"]:
        click.echo(change)
    if not result["changes"]:
        click.echo("Nothing has changed.")


def _signal(info: dict[str, Any]) -> int:
    pid = int(info["pid"])
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        pidfd = -1
    # Compared while holding the pidfd: the pid cannot have been reused since.
    if pidfd < 0 or process_start_time(pid) != info["start_time"]:
        fail(
            f"The daemon with pid {pid} is not visible from here (another container?): reload it where it runs.",
            ExitStatus.DAEMON_UNREACHABLE,
        )
    try:
        signal.pidfd_send_signal(pidfd, RELOAD_SIGNAL)
    except PermissionError:
        fail(f"The daemon with pid {pid} belongs to another user: reload it as that user or as root.")
    finally:
        os.close(pidfd)
    return pid


def _await_result(
    run_dir: RunDir, pid: int, info: dict[str, Any], asked_s: float, timeout_s: float
) -> dict[str, Any]:
    while True:
        result = read_json(run_dir.files.reload_json)
        if result is not None and result["began_s"] >= asked_s and result["pid"] == pid:
            return result
        if process_start_time(pid, alive=True) != info["start_time"]:
            fail("The daemon ended before it had read its configuration.", ExitStatus.DAEMON_UNREACHABLE)
        if time.monotonic() - asked_s > timeout_s:
            fail(
                f"The daemon on run dir {run_dir.path} did not answer within {timeout_s:g} s: "
                "look at its log and at `kafka-sidecar status`.",
                ExitStatus.TIMED_OUT,
            )
        time.sleep(POLL_S)
