"""``kafka-sidecar pause``, ``resume`` and ``drain``: stop and restart the work of a running daemon."""

from __future__ import annotations

import time
from typing import Any

import click

from client_stub.contract.wire import Kind
from sidecar.cli.common import daemon_info, fail, run_dir_option, say
from sidecar.cli.control_client import ask
from sidecar.cli.options import timeout_option
from sidecar.cli.status import counters_of
from sidecar.common.model import ExitStatus
from sidecar.common.wording import counted, printable
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.segment import Segment, SegmentError

ANSWER_S = 10.0
POLL_S = 0.1
SAY_S = 2.0
"""A drain that has lasted this long says what it waits for."""


def order_message(verb: str, topics: tuple[str, ...] = ()) -> list[Any]:
    return [Kind.ORDER, verb, list(topics)]


@click.command()
@run_dir_option
@click.argument("topics", nargs=-1, required=True)
def pause(run_dir: RunDir, topics: tuple[str, ...]) -> None:
    """Send nothing of TOPICS until `resume`: records are accepted, up to their share of the pool, and wait.

    Their time runs: after delivery.timeout.ms they fail. A pause outlives workers, a takeover and a crash of
    the daemon. A stop (SIGTERM) ends it and delivers all. Batches on their way to a broker are not called back.

    \b
    kafka-sidecar pause orders payments
    """
    _give(run_dir, order_message("pause", topics))
    known = _topics_here(run_dir)
    for topic in topics:
        if known and topic not in known:
            say(f"Nothing was sent to {printable(topic)} here lately: is its name right?")
    click.echo(f"Paused: {', '.join(topics)}. `kafka-sidecar resume {' '.join(topics)}` lets them continue.")


@click.command()
@run_dir_option
@click.argument("topics", nargs=-1)
def resume(run_dir: RunDir, topics: tuple[str, ...]) -> None:
    """Send TOPICS again; without TOPICS let everything continue that `pause` and `drain` have stopped.

    \b
    kafka-sidecar resume orders
    kafka-sidecar resume
    """
    left = _give(run_dir, order_message("resume", topics))
    still = ", ".join(left["topics"])
    click.echo(
        "Records are accepted and sent."
        if left["drained_since_ms"] is None
        else "Still drained: resume without TOPICS."
    )
    if still:
        click.echo(f"Still paused: {still}.")


@click.command()
@run_dir_option
@timeout_option(60.0, "until nothing is held")
def drain(run_dir: RunDir, timeout_s: float) -> None:
    """Accept no more records, deliver all that are held, and stay: before maintenance, or to move clients away.

    Clients lose nothing: their records wait in their processes, and `send()` waits for room as it does with a
    full pool. `kafka-sidecar resume` lets them continue. Exit 0 once nothing is held, 75 when records are left at
    the end of the time; the daemon stays drained in both cases.

    \b
    kafka-sidecar drain --timeout 120 && systemctl restart kafka-sidecar
    """
    paused = _give(run_dir, order_message("drain"))["topics"]
    why = f" Topics are paused: {', '.join(paused)}." if paused else ""
    now_s = time.monotonic()
    say_s, deadline_s = now_s + SAY_S, now_s + timeout_s
    while held := _held(run_dir):
        now_s = time.monotonic()
        if say_s <= now_s <= deadline_s:
            say_s = deadline_s + 1.0
            what = counted(held, "record is", "records are")
            say(f"{what} still held.{why} `kafka-sidecar explain` says for what.")
        if now_s > deadline_s:
            fail(
                f"{counted(held, 'record is', 'records are')} held after {timeout_s:g} s.{why} The daemon "
                "takes no more and keeps delivering; `kafka-sidecar status` says why they wait, "
                "`kafka-sidecar resume` lets clients continue.",
                ExitStatus.TIMED_OUT,
            )
        time.sleep(POLL_S)
    click.echo("Drained: nothing is held, and clients wait. `kafka-sidecar resume` lets them continue.")


def _give(run_dir: RunDir, message: list[Any]) -> dict[str, Any]:
    """Send an order. Ends the command unless the daemon has accepted it. Returns the daemon's pauses."""
    pauses, late = ask(run_dir, message, ANSWER_S)
    for sentence in late:
        say(f"Warning: {sentence}")
    found: dict[str, Any] = pauses
    return found


def _topics_here(run_dir: RunDir) -> set[str]:
    """The topics for which the journal has chains; empty when the segment cannot be read."""
    try:
        segment = Segment.attach(daemon_info(run_dir)["segment"])
    except (SegmentError, OSError):
        return set()
    try:
        slots = segment.prepared_slots()
        return {chain.topic for slot in slots for chain in ChainTable(segment, slot).names()}
    finally:
        segment.close()


def _held(run_dir: RunDir) -> int:
    counters = counters_of(daemon_info(run_dir))
    if not counters:
        fail("The daemon's segment cannot be read: ask as the daemon's user or as root.")
    return sum(each.get("records_held", 0) for each in counters.values())
