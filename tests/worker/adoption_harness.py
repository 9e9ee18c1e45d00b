"""Submissions that a dead worker had, its successor, and what must be there in the end."""

from __future__ import annotations

from typing import Any

from client_stub.contract.wire import OutcomeKind, Shape
from sidecar.shm.client_table import ClientTable
from sidecar.shm.recovery import describe_undelivered
from tests.outcomes import unpack_outcomes
from tests.reading_back import row_of, stream_position

from .slot_harness import CLIENT_ID, MemoryBroker, SlotHarness


def submission(number: int, count: int = 4) -> tuple[list[bytes], list[int | None]]:
    values = [b"%d.%d" % (number, i) for i in range(count)]
    # Explicit partitions: who looks at the log knows where a record must be, and in which order.
    return values, [(number + i) % 2 for i in range(count)]


def accept(harness: SlotHarness, session: Any, numbers: range) -> None:
    for number in numbers:
        harness.accept(session, *submission(number))


def check_end(harness: SlotHarness, submissions: int, *, count: int = 4) -> None:
    """Every record of the submissions in the log once and in order, told, and nothing left anywhere."""
    expected: dict[int, list[bytes]] = {0: [], 1: []}
    for number in range(submissions):
        for value, partition in zip(*submission(number, count), strict=True):
            assert partition is not None
            expected[partition].append(value)
    assert {partition: harness.broker.log.get(partition, []) for partition in expected} == expected
    assert describe_undelivered(harness.segment) == []
    assert list(harness.descriptors) == []
    counters = harness.counters.read()
    assert counters["records_accepted_total"] == submissions * count
    assert counters["records_delivered_total"] == submissions * count
    assert counters["records_failed_total"] == 0
    row = row_of(ClientTable(harness.segment), CLIENT_ID)
    assert row is not None
    assert stream_position(row, 1) == submissions
    offsets = told_offsets(harness)
    for number in range(submissions):
        for index, (value, partition) in enumerate(zip(*submission(number, count), strict=True)):
            found = offsets[number + 1, index]
            assert len(found) == 1, "told again is told the same"
            (offset,) = found
            assert harness.broker.log[partition or 0][offset] == value
    assert all(session.unsettled_records == 0 for session in harness.sessions.by_row.values())
    for chain in list(harness.chain_table):
        pages = chain.release_idle()
        if pages:
            harness.pool.give(pages)
    assert not any(harness.segment.owners.cast("Q").tolist()), "every page is back"
    assert harness.pool.taken_count == 0


def told_offsets(harness: SlotHarness) -> dict[tuple[int, int], set[int]]:
    """(seq, record index) → the offsets it was told at."""
    row = row_of(ClientTable(harness.segment), CLIENT_ID)
    assert row is not None
    news = row.ring_slice_from(1)
    told: dict[tuple[int, int], set[int]] = {}
    for outcome in unpack_outcomes(news[2]) if news else []:
        assert outcome.kind == OutcomeKind.DELIVERED, outcome
        if outcome.shape == Shape.RANGE:
            indexes = list(range(outcome.first_index, outcome.first_index + outcome.count))
        else:
            bits = int.from_bytes(outcome.indexes, "little")
            indexes = [outcome.first_index + i for i in range(bits.bit_length()) if bits >> i & 1]
        for place, index in enumerate(indexes):
            told.setdefault((outcome.seq, index), set()).add(outcome.base_offset + place)
    return told


def heir(harness: SlotHarness, broker: MemoryBroker | None = None) -> SlotHarness:
    """The successor of a worker that died where it stands."""
    following = SlotHarness(
        harness.segment, broker or harness.broker, harness.segment.slot(0).incarnation + 1
    )
    following.broker.is_silent = False
    following.ask()
    return following
