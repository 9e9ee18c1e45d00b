"""The stages of a running daemon, for ``kafka-sidecar txn`` and ``explain``: asked, shown, dropped."""

from __future__ import annotations

import contextlib
import io
from typing import Any, Final

from client_stub.contract.wire import Kind
from client_stub.errors import DaemonUnreachable, SidecarError
from sidecar.cli.common import fail
from sidecar.cli.control_client import ask
from sidecar.cli.times import shown_bytes
from sidecar.common.model import ExitStatus
from sidecar.common.wording import counted
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.telemetry.page import duration

ASK_S: Final = 10.0
HEAD: Final = ["transactional id", "number", "owner", "state", "records", "bytes", "age", "left", "by"]


def stages_of(run_dir: RunDir, name: str = "") -> list[dict[str, Any]] | None:
    """Those of a transactional id or a client, or all, the oldest first; None where no daemon answers."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # why nobody answers is no error of this command
            (found,) = ask(run_dir, [Kind.EXPLAIN, name], ASK_S)
    except SystemExit:
        return None
    rows: list[dict[str, Any]] = found.get("stages", [])
    return rows


def stage_rows(stages: list[dict[str, Any]]) -> list[list[str]]:
    """The cells of a table below HEAD."""
    return [
        [
            each["transactional_id"],
            str(each["number"]),
            each["owner"] or "-",
            each["state"],
            f"{each['records']:,}",
            shown_bytes(each["bytes"]),
            "-" if each["age_seconds"] is None else duration(each["age_seconds"]),
            "-" if each["left_seconds"] is None else duration(max(0.0, each["left_seconds"])),
            each["client"] or "-",
        ]
        for each in stages
    ]


def stage_line(each: dict[str, Any]) -> str:
    """What one stage waits for, as a line of ``explain``."""
    owner = f" of owner {each['owner']}" if each["owner"] else ""
    what = f"stage {each['number']} of {each['transactional_id']}{owner}"
    amounts = f"{counted(each['records'], 'record')}, {each['bytes']:,} bytes"
    if each["state"] == "open":
        by = each["client"] or "a client"
        since = "" if each["age_seconds"] is None else f", for {duration(each['age_seconds'])}"
        return f"{what}  open  {amounts}{since}: {by} fills it, and has not sealed it yet"
    left_s = max(0.0, each["left_seconds"])
    return (
        f"{what}  sealed  {amounts}, for {duration(each['age_seconds'])}, {duration(left_s)} left: it waits for "
        f"include() by the producer with transactional id {each['transactional_id']}, or for `kafka-sidecar txn drop`"
    )


def drop_stages(
    run_dir: RunDir, transactional_id: str, up_to: int | None, tokens: list[bytes], timeout_s: float
) -> int:
    """Returns how many were dropped. Ends the command where that fails."""
    from client_stub import Producer

    try:
        with Producer(
            run_dir=str(run_dir.path), client_name="kafka-sidecar txn", transactional_id=transactional_id
        ) as producer:
            return producer.drop_stages(tokens, up_to=up_to, timeout=timeout_s)
    except DaemonUnreachable as error:
        fail(str(error), ExitStatus.DAEMON_UNREACHABLE)
    except SidecarError as error:
        fail(str(error), ExitStatus.TIMED_OUT if isinstance(error, TimeoutError) else ExitStatus.FAILED)
