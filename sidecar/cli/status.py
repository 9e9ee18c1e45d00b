"""``kafka-sidecar status``: shows whether the daemon accepts records, and how many it holds."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any

import click

from client_stub.contract.wire import Kind
from sidecar.cli.common import daemon_info, fail, run_dir_option, say
from sidecar.cli.json_output import print_object
from sidecar.cli.options import json_option
from sidecar.common.model import ExitStatus
from sidecar.controller.rundir.run_dir import RunDir

LEDGER = (
    "records_accepted_total",
    "records_delivered_total",
    "records_failed_total",
    "records_dead_lettered_total",
    "records_aborted_total",
    "records_held",
    "records_staged",
)
"""The first is the sum of all others."""
FAILURES_SHOWN = 5
"""How many of the latest pairs of topic and error are shown; --json has more."""
POOL_NAMED = 3
"""How many topics and how many clients with most of the pool are named."""
WATCH_S = 1.0
STATE_EXITS = {
    **{"running": 0, "degraded": 10, "starting": 11, "unreachable": 12},
    **{"draining": 13, "refusing": 14, "stopped": 15},
}
"""The exit statuses of --by-state."""
ALIVE_S = 3.0
"""How long a health check waits for the controller's answer."""


@click.command()
@run_dir_option
@json_option
@click.option(
    "--alive",
    is_flag=True,
    help="For health checks: exit 0 also while Kafka is away, and ask the daemon itself for a sign.",
)
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C or the daemon's end.")
@click.option("--by-state", is_flag=True, help="Exit with a different status for each state; see above.")
def status(run_dir: RunDir, as_json: bool, alive: bool, watch: bool, by_state: bool) -> None:
    """Show the daemon's state; exit 0 once it takes records.

    Exit 1 with the sentence why when it does not (Kafka unreachable, workers down, draining), 69 when no
    daemon runs there. It reads files only, so it also works on a daemon that hangs.

    With --alive it fails where a restart could help: no daemon, no answer from it within 3 s (exit 75), or
    no worker that is ready. While Kafka is away or a disk is full, records wait and a restart changes nothing.

    With --by-state: 0 running, 10 degraded, 11 starting, 12 unreachable, 13 draining, 14 refusing, 15 stopped.

    \b
    kafka-sidecar status
    kafka-sidecar status --watch
    kafka-sidecar status --json | jq .counters.records_delivered_total
    kafka-sidecar status --alive >/dev/null
    until kafka-sidecar status >/dev/null 2>&1; do sleep 0.2; done
    """
    if watch and (as_json or alive):
        raise click.UsageError("--watch goes with neither --json nor --alive.")
    info = _read(run_dir)
    if as_json:
        print_object(info)
    elif watch:
        info = _watch(run_dir, info)
    else:
        click.echo(describe(info))
    if alive:
        ask_for_a_sign(run_dir, info)
        return
    if not info["takes_records"] and as_json:
        say(info["sentence"])
    if by_state:
        raise SystemExit(STATE_EXITS.get(info["state"], int(ExitStatus.FAILED)))
    if not info["takes_records"]:
        raise SystemExit(int(ExitStatus.FAILED))


def _read(run_dir: RunDir) -> dict[str, Any]:
    """daemon.json with the counters of the segment."""
    from sidecar.telemetry.collector import sum_counters

    report = daemon_info(run_dir)
    by_slot = counters_of(report)
    info = {**report, "counters": sum_counters(by_slot) if by_slot else {}}
    for worker in info["workers"] if by_slot else ():
        # daemon.json is written only on changes; live figures come from the segment.
        worker["clients"] = by_slot.get(worker["slot"], {}).get("clients_connected", 0)
    return info


def _watch(run_dir: RunDir, info: dict[str, Any]) -> dict[str, Any]:
    """Show the state until Ctrl-C, and return the last one shown. Ends with 69 when the daemon ends."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            if sys.stdout.isatty():
                click.clear()
            click.echo(f"{time.strftime('%H:%M:%S')}  {describe(info)}")
            time.sleep(WATCH_S)
            info = _read(run_dir)
    return info


def ask_for_a_sign(run_dir: RunDir, info: dict[str, Any]) -> None:
    """Ends the command with a status other than 0 unless the controller answers and a worker is ready."""
    from sidecar.cli.control_client import ask

    if not any(worker["state"] == "ready" for worker in info["workers"]):
        fail(info["sentence"] or "No worker of the daemon is ready yet; try again.")
    ask(run_dir, [Kind.PING], ALIVE_S)


def counters_of(info: dict[str, Any]) -> dict[int, dict[str, int]]:
    """Slot → its counters, from the daemon's segment; empty when it cannot be read (the daemon is just ending)."""
    from sidecar.shm.segment import Segment, SegmentError
    from sidecar.telemetry.collector import read_counters

    try:
        segment = Segment.attach(info["segment"])
    except (SegmentError, OSError):
        return {}
    try:
        return read_counters(segment)
    finally:
        segment.close()


def http_url(address: str) -> str:
    """The address to open: a URL, or ``unix:`` and the path of the socket."""
    if not address:
        return "none"
    if address.startswith("unix:"):
        return address
    return f"{address if '://' in address else f'http://{address}'}/"


def pool_line(info: dict[str, Any]) -> str:
    """The line about the pool: pages in use now, and the topics and clients that held most of them at the last
    report.
    """
    pool = info["pool"]
    used = info["counters"].get("buffer_pages_taken", pool["pages_used"])
    named = [f"topic {each['topic']} {each['pages']:,}" for each in pool["by_topic"][:POOL_NAMED]]
    named += [f"client {each['client']} {each['pages']:,}" for each in pool["by_client"][:POOL_NAMED]]
    return (
        f"  pool      {used:,} of {pool['pages']:,} pages used ({100 * used // pool['pages']} %)"
        + (": " if named else "")
        + ", ".join(named)
    )


def condition_lines(info: dict[str, Any]) -> list[str]:
    """Lines with advice, brokers in a bad state, and clients that wait."""
    from sidecar.telemetry.page import oldest_held

    lines = [f"  do        {info['advice']}"] if info["advice"] else []
    lines += [_broker_line(each) for each in info["brokers"] if _is_worth_a_line(each)]
    oldest = oldest_held(info)
    if oldest:
        lines.append(f"  oldest    held record {oldest}")
    return [*lines, *(f"  note      {notice}" for notice in info["notices"])]


def _is_worth_a_line(broker: dict[str, Any]) -> bool:
    """Whether the broker is in a bad state, or was when it was last tried."""
    return broker["state"] != "up" and (broker["state"] != "known" or bool(broker["last_error"]))


def _broker_line(broker: dict[str, Any]) -> str:
    from sidecar.telemetry.page import duration

    lasts = duration(broker["since_seconds"])
    error = f": {broker['last_error']}" if broker["last_error"] else ""
    if broker["state"] == "known":
        return (
            f"  broker {broker['id']}  known, not connected to for {lasts}, and no record waits for it{error}"
        )
    held, in_flight = broker["held_records"], broker["in_flight"]
    return (
        f"  broker {broker['id']}  {broker['state']} for {lasts}, "
        f"{held:,} record{' waits' if held == 1 else 's wait'} for it, "
        f"{in_flight} request{'' if in_flight == 1 else 's'} unanswered{error}"
    )


def life_lines(info: dict[str, Any]) -> list[str]:
    """Lines about restarts of workers, with the cause of the last one, and about the previous daemon."""
    from sidecar.telemetry.page import duration

    lines = []
    last = info["last_restart"]
    if last is not None:
        ago = duration(time.time() - last["at_ms"] / 1000.0)
        lines.append(f"  restarts  {info['restarts']} of workers, the last {ago} ago: {last['sentence']}")
    before = info["predecessor"]
    if before is not None and "sentence" in before:  # missing in earlier versions
        lines.append(f"  before    {before['sentence']}")
    return lines


def tcp_lines(info: dict[str, Any]) -> list[str]:
    """Lines about the TCP address, and the public keys by which clients know the daemon."""
    if not info.get("listen"):
        return []
    first, *others = info["curve_public_keys"] or ["none"]
    lines = [f"  tcp       {info['listen']}, public key {first}"]
    return [*lines, *(f"            clients may still know it by {key}" for key in others)]


def _restarts(worker: dict[str, Any]) -> str:
    """A text such as ``, restarts 3 (silent 2, killed 1)``; empty for a worker that was never replaced."""
    causes = worker.get("restarts_by_cause", {})  # missing in earlier versions
    named = [
        f"{cause} {count}" for cause, count in sorted(causes.items(), key=lambda pair: -pair[1]) if count
    ]
    return f", restarts {worker['restarts']} ({', '.join(named)})" if named else ""


def describe(info: dict[str, Any]) -> str:
    """The lines for the terminal."""
    from sidecar.telemetry.page import brokers, duration

    counters = info["counters"]
    up = duration(time.time() - info["started_ms"] / 1000.0)
    lines = [
        f"{info['state']}"
        + (f": {info['sentence']}" if info["sentence"] else f" for {up}, pid {info['pid']}"),
        *([f"  daemon    up for {up}, pid {info['pid']}"] if info["sentence"] else []),
        f"  run dir   {info['run_dir']}",
        f"  kafka     {info['bootstrap']} ({brokers(info)})",
        *condition_lines(info),
        *life_lines(info),
        f"  http      {http_url(info['http'])}",
        *tcp_lines(info),
        f"  segment   {info['segment']}",
        pool_line(info),
    ]
    for worker in info["workers"]:
        lines.append(
            f"  worker {worker['index']}  {worker['state']}, pid {worker['pid']}, slot {worker['slot']}, "
            f"clients {worker['clients']}" + _restarts(worker)
        )
    if info["held_slots"]:
        slots = ", ".join(map(str, info["held_slots"]))
        lines.append(f"  held      slots {slots} keep records of dead workers")
    for failure in info.get("failures", ())[:FAILURES_SHOWN]:
        lines.append(
            f"  failed    {failure['records']:,} of topic {failure['topic']}: {failure['error']}, last "
            f"{duration(time.time() - failure['last_ms'] / 1000.0)} ago from client {failure['client'] or 'unknown'}: "
            f"{failure['text']}" + (f" {failure['advice']}" if failure.get("advice") else "")
        )
    if not counters and not os.access(info["segment"], os.R_OK):
        lines.append("  records   shown to the daemon's user and to root, who may read the segment")
    if counters:
        accepted, delivered, failed, dead, aborted, held, staged = (counters.get(name, 0) for name in LEDGER)
        lines.append(
            f"  records   {accepted:,} accepted = {delivered:,} delivered + {failed:,} failed "
            f"+ {dead:,} dead lettered + {f'{aborted:,} aborted + ' if aborted else ''}{held:,} held"
            f"{f' + {staged:,} staged' if staged else ''}"
        )
        if dead:
            lines.append(f"  letters   {info['dead_letters']}: `kafka-sidecar replay --dry-run` lists them")
    return "\n".join(lines)
