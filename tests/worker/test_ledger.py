"""Goal: accepted = delivered + failed + dead lettered + held, whenever somebody looks and wherever a worker dies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from client_stub.contract.wire import LocalCode
from sidecar.deadletter.letters import lines, parse
from sidecar.shm import slots
from sidecar.shm.client_table import ClientTable
from sidecar.shm.recovery import describe_undelivered
from sidecar.shm.segment import Segment
from sidecar.shm.slots import Counters
from sidecar.worker.outcomes import releases
from sidecar.worker.streams.session import ClientSession
from tests.reading_back import row_of

from . import store_moments
from .slot_harness import CLIENT_ID, MemoryBroker, SlotHarness
from .store_moments import STORES, Recorder, restore, successor

REFUSED = b"refused"
SUBMISSIONS: list[tuple[list[bytes], list[int | None]]] = [
    ([b"0.0", b"0.1", b"0.2"], [0, 1, 0]),
    ([b"1.0", b"nowhere-1", b"1.2"], [0, 77, 1]),
    ([REFUSED, b"2.1"], [0, 1]),
    ([b"nowhere-2", b"3.1"], [99, 0]),
    ([b"4.0", b"4.1"], [1, 0]),
]
GOOD = sorted(
    value
    for values, places in SUBMISSIONS
    for value, place in zip(values, places, strict=True)
    if place in (0, 1)
)
TOTAL = sum(len(values) for values, _ in SUBMISSIONS)


def balance(counters: Mapping[str, int]) -> tuple[int, int]:
    ended = sum(
        counters[f"records_{outcome}_total"]
        for outcome in ("delivered", "failed", "dead_lettered", "aborted")
    )
    return counters["records_accepted_total"], ended + counters["records_held"]


def truly_held(harness: SlotHarness) -> int:
    """From the journal's words: records that are not done, without those that a descriptor calls delivered."""
    open_records = sum(chain.live_records for chain in harness.chain_table)
    return open_records - sum(each.count for each in harness.descriptors if each.state >= 2 and not each.code)


def step(harness: SlotHarness) -> None:
    harness.turn()
    # A record that names a partition that is not there waits for it up to max.block.ms, which ends at once here.
    for queue in harness.topics:
        while queue.out_of_range:
            ordinal, accepted_ms = queue.out_of_range.popleft()
            harness.topics.waiting._fail(queue, ordinal, LocalCode.INVALID_PARTITION, accepted_ms)


def live(harness: SlotHarness, *, first: int, is_acking: bool, look: Callable[[], None]) -> None:
    """The client sends its remaining records; it says that it knows of failures, or never does."""
    row = row_of(ClientTable(harness.segment), CLIENT_ID)
    session: ClientSession = harness.attach(None if row is None else row.secret)[0]
    at = session.streams[1].position if 1 in session.streams else first
    for number in range(at, len(SUBMISSIONS)):
        if number == 1:
            harness.know_topic()
        harness.accept(session, *SUBMISSIONS[number])
        look()
        step(harness)
        look()
        if is_acking:
            harness.acknowledge(session)
            look()
    harness.know_topic()
    for _ in range(60):
        step(harness)
        look()
        if is_acking:
            harness.acknowledge(session)
        if harness.sender.is_idle and not harness.topics.waiting.entry_count:
            break
    if not is_acking:
        harness.sessions.detach(session, harness.now_ms)
        look()
        harness.give_up()
    look()


def check_end(harness: SlotHarness, *, is_acking: bool) -> None:
    """All ended. The log has the records that were counted as delivered; each failure was reported or is a letter."""
    counters = harness.counters.read()
    log = sorted(value for values in harness.broker.log.values() for value in values)
    assert len(log) == len(set(log)) == counters["records_delivered_total"]
    assert set(log) <= set(GOOD) - {REFUSED}
    assert counters["records_held"] == 0
    assert counters["records_accepted_total"] == TOTAL
    assert balance(counters) == (TOTAL, TOTAL)
    letters = {parse(line).identity: parse(line).value for line in lines(harness.broker.spool, 1)}
    assert not set(letters.values()) & set(log)
    assert counters["records_dead_lettered_total"] <= len(letters)
    if not is_acking:
        assert len(letters) == TOTAL - len(log), "nobody was told, so each one is kept"
    assert describe_undelivered(harness.segment) == []
    assert list(harness.descriptors) == []


@pytest.mark.parametrize("is_acking", [True, False])
def test_the_balance_holds_at_every_store(segment: Segment, is_acking: bool) -> None:
    broker = MemoryBroker(refuse_value=REFUSED)
    harness = SlotHarness(segment, broker, 1)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        counters = harness.counters.read()
        assert balance(counters)[0] == balance(counters)[1], counters
        assert counters["records_held"] == truly_held(harness)

    live(harness, first=0, is_acking=is_acking, look=look)
    assert looks > 10
    check_end(harness, is_acking=is_acking)
    counters = harness.counters.read()
    told, kept = ("failed", "dead_lettered") if is_acking else ("dead_lettered", "failed")
    assert counters[f"records_{told}_total"] == TOTAL - counters["records_delivered_total"] > 2
    assert counters[f"records_{kept}_total"] == 0
    assert bool(broker.spool) == (not is_acking)


@pytest.mark.slow
@pytest.mark.parametrize("is_acking", [True, False])
def test_a_worker_that_dies_anywhere(
    monkeypatch: pytest.MonkeyPatch, segment: Segment, is_acking: bool
) -> None:
    """Before and after every store, and between the rows of one write of the counters."""
    broker = MemoryBroker(refuse_value=REFUSED)
    whole = Counters.add
    recorder = Recorder(monkeypatch, segment, broker)

    def torn(self: Counters, amounts: Mapping[str, int]) -> None:
        for row, amount in amounts.items():
            recorder.take()
            whole(self, {row: amount})
        recorder.take()

    more: list[tuple[Any, str]] = [(slots, "store_release_u64"), (releases, "mark_failed_done")]
    monkeypatch.setattr(store_moments, "STORES", [*STORES, *more])
    with recorder:
        first = SlotHarness(segment, broker, 1)
        monkeypatch.setattr(Counters, "add", torn)
        live(first, first=0, is_acking=is_acking, look=recorder.take)
        monkeypatch.setattr(Counters, "add", whole)
    check_end(first, is_acking=is_acking)
    moments = list(recorder.moments.values())
    assert len(moments) > 100
    for moment, state in moments[::3]:  # all of them take a minute, and neighbours differ little
        restore(segment, moment)
        following = successor(segment, state.copy())
        counters = following.counters.read()
        assert balance(counters)[0] == balance(counters)[1], "balanced by adoption"
        assert counters["records_held"] == truly_held(following)
        following.ask()
        following.broker.refuse_value = REFUSED
        live(following, first=0, is_acking=is_acking, look=lambda: None)
        check_end(following, is_acking=is_acking)
