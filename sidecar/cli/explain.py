"""``kafka-sidecar explain``: shows which records wait, why, since when, and how much time they have left."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import click

from client_stub.contract.wire import Kind
from sidecar.cli.common import daemon_info, fail, run_dir_option, say
from sidecar.cli.control_client import ask, is_answering
from sidecar.cli.json_output import print_object
from sidecar.cli.options import json_option, timeout_option
from sidecar.cli.stages import stage_line
from sidecar.common.explanation import WAITING_ROWS_MAX
from sidecar.common.model import ExitStatus
from sidecar.common.wording import counted, printable
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.telemetry.page import duration

FAILURES_SHOWN = 5
STAGES_SHOWN = 20


@click.command()
@run_dir_option
@click.argument("name", default="", metavar="[TOPIC|PARTITION|CLIENT|TRANSACTIONAL_ID]")
@json_option
@timeout_option(10.0, "for the answer", 0.1)
def explain(run_dir: RunDir, name: str, as_json: bool, timeout_s: float) -> None:
    """Say what waits on what, since when, what is left of its time, and the last errors.

    Without a name, or with an empty one: everything that waits, the oldest first. At most 50 waits and 20 clients are
    shown, and how many more there are. A partition is written as TOPIC-NUMBER. Exit 1 when no
    worker knows the name. The daemon asks its workers; of a daemon that hangs the last report and the segment are
    shown instead, and the exit status is 75.

    \b
    kafka-sidecar explain
    kafka-sidecar explain orders
    kafka-sidecar explain orders-3
    kafka-sidecar explain billing --json
    """
    info = daemon_info(run_dir)
    is_stopped = info["state"] == "stopped"
    if not is_stopped and is_answering(run_dir, timeout_s):
        (found,) = ask(run_dir, [Kind.EXPLAIN, name], timeout_s)
    else:
        found = last_report(info, name)
    if as_json:
        print_object(found)
    else:
        for line in describe(found, name):
            click.echo(line)
    if not found["is_answered"]:
        if is_stopped:
            say(info["sentence"])
        raise SystemExit(int(ExitStatus.TIMED_OUT))
    if found.get("workers_asked") == 0:  # missing in earlier versions
        fail(f"No worker is ready, and only workers know what waits. {info['sentence']}".rstrip())
    if not found["is_known"]:
        fail(
            f"No worker knows a topic, a partition, a client or stages named {name}: no record for it has come. "
            "`kafka-sidecar topics` lists the cluster's topics."
        )


def last_report(info: dict[str, Any], name: str) -> dict[str, Any]:
    """The same facts from daemon.json and the segment, as of the moment when the daemon began to hang."""
    from sidecar.shm.segment import Segment, SegmentError
    from sidecar.telemetry.flows import Flows

    flows: dict[str, Any] = {"topics": [], "clients": []}
    try:
        segment = Segment.attach(info["segment"])
    except (SegmentError, OSError):
        pass  # another user's segment: only the report is left
    else:
        try:
            flows = Flows(segment).sample(time.monotonic())
        finally:
            segment.close()
    oldest = info.get("oldest_held")
    waiting = [
        {
            "topic": hold["topic"],
            "client": hold["client"],
            "cause": hold["reason"],
            "text": "held when the daemon last reported",
            "since_seconds": hold["since_seconds"],
        }
        for hold in info.get("holds", ())
    ]
    if oldest:
        waiting.append(
            {
                "topic": oldest["topic"],
                "cause": oldest["cause"],
                "text": oldest["reason"],
                "since_seconds": oldest["seconds"],
                **({} if oldest["partition"] is None else {"partition": oldest["partition"]}),
            }
        )
    waiting += [
        {"topic": each["topic"], "cause": "held", "text": "in the journal now", "bytes": each["held_bytes"]}
        for each in flows["topics"]
        if each["held_bytes"]
    ]
    mine = {each["client"]: each["topics"] for each in flows["clients"]}
    topics = {name, *mine.get(name, ())}
    waiting = [each for each in waiting if not name or each["topic"] in topics or each.get("client") == name]
    return {
        "is_answered": False,
        "is_known": True,
        "waiting": waiting[:WAITING_ROWS_MAX],
        "waiting_count": len(waiting),
        "clients": [],
        "client_count": 0,
        "stages": [],
        "stage_count": 0,
        "unread_batches": 0,
        "failures": [
            each for each in info.get("failures", ()) if name in {"", each["topic"], each["client"]}
        ],
        "silent_workers": [],
    }


def describe(found: dict[str, Any], name: str) -> list[str]:
    """A line for each wait, each client and each error, for the terminal."""
    lines = []
    if not found["is_answered"]:
        lines.append("The daemon does not answer. This is its last report, and its segment as it is now:")
    counts = Counter((each["topic"], each.get("partition")) for each in found["waiting"])
    for each in found["waiting"]:
        lines.append(waiting_line(each, names_worker=counts[each["topic"], each.get("partition")] > 1))
    more = found.get("waiting_count", 0) - len(found["waiting"])
    if more > 0:
        lines.append(f"and {more:,} more that have waited less")
    if found.get("unread_batches"):
        lines.append(f"and {found['unread_batches']:,} batches that were not examined")
    stages = found.get("stages", ())  # missing in earlier versions
    lines += [stage_line(each) for each in stages[:STAGES_SHOWN]]
    more = found.get("stage_count", 0) - len(stages[:STAGES_SHOWN])
    if more > 0:
        lines.append(f"and {counted(more, 'more stage')}: `kafka-sidecar txn list` has them")
    has_asked_all = found.get("workers_asked") != 0 and not found["silent_workers"]
    if not (found["waiting"] or stages) and found["is_known"] and has_asked_all:
        lines.append(f"Nothing of {name} waits." if name else "Nothing waits.")
    clients = [each for each in found["clients"] if name or each["records"] or each["held_streams"]]
    lines += [client_line(each) for each in clients]
    more = found.get("client_count", 0) - len(clients)
    if more > 0 and len(clients) == len(found["clients"]):  # otherwise only idle clients are left out
        lines.append(f"and {counted(more, 'more client')}")
    for each in found["failures"][:FAILURES_SHOWN]:
        ago = duration(time.time() - each["last_ms"] / 1000.0)
        lines.append(
            f"failed  {each['records']:,} of topic {each['topic']}, last {ago} ago from client "
            f"{each['client'] or 'unknown'}: {each['error']}: {each['text']}"
            + (f" {each['advice']}" if each.get("advice") else "")
        )
    more = len(found["failures"]) - FAILURES_SHOWN
    if more > 0:
        lines.append(f"and {counted(more, 'more kind')} of failure: --json has them")
    lines += [f"worker {index} did not answer in time" for index in found["silent_workers"]]
    return [printable(line) for line in lines]  # names in the segment are as clients gave them


def waiting_line(row: dict[str, Any], *, names_worker: bool = False) -> str:
    """The line of one wait, such as ``orders-1 unanswered 1,200 records, 118,400 bytes, for 12 s, 1 min 48 s left:
    they are in flight ...``.

    ``names_worker``: other workers hold records of the same partition, with their own lines.
    """
    where = f"{row['topic']}-{row['partition']}" if "partition" in row else row["topic"]
    if names_worker and "partition" in row and "worker" in row:
        where += f" (worker {row['worker']})"
    if row.get("client"):
        where += f" of client {row['client']}"
    amounts = [counted(row[f"{one}s"], one) for one in ("record", "submission") if row.get(f"{one}s")]
    if row.get("bytes"):  # without a partition the bytes are not known
        amounts.append(f"{row['bytes']:,} bytes" + ("" if row.get("records") else " of the pool"))
    times = [f"for {duration(row['since_seconds'])}"] if "since_seconds" in row else []
    if "left_seconds" in row:
        left_s = row["left_seconds"]
        times.append(f"{duration(left_s)} left" if left_s > 0 else "its time is over")
    words = ", ".join([*amounts, *times])
    error = row.get("last_error", "")
    text = row["text"] + (f" (last error: {error})" if error else "")
    return f"{where}  {row['cause']}  {words}: {text}"


def client_line(row: dict[str, Any]) -> str:
    """The line of one client: records without an outcome, held topics, and whether it is connected."""
    parts = [f"{counted(row['records'], 'record')} without an outcome", counted(row["streams"], "topic")]
    if row["held_streams"]:
        parts.append(f"{row['held_streams']:,} of them held")
    if not row["is_attached"]:
        parts.append(f"not connected, silent for {duration(row['silent_seconds'])}")
    return (
        f"client {row['client']}  pid {row['pid'] or 'unknown'}, worker {row['worker']}: {', '.join(parts)}"
    )
