"""Goal: what kills three workers fails alone, told to its client; all the rest is delivered once and in order."""

from __future__ import annotations

from client_stub.contract.wire import LocalCode, OutcomeKind, Persistence
from sidecar.shm.client_table import ClientTable
from sidecar.shm.in_work import InWork, batch_word, entry_word
from sidecar.shm.recovery import describe_undelivered
from sidecar.shm.segment import Segment
from tests.outcomes import unpack_outcomes
from tests.reading_back import row_of

from .slot_harness import CLIENT_ID, MemoryBroker, SlotHarness


def heir(harness: SlotHarness) -> SlotHarness:
    following = SlotHarness(harness.segment, harness.broker, harness.segment.slot(0).incarnation + 1)
    following.broker.is_silent = False
    return following


def failures(harness: SlotHarness) -> list[tuple[int, int, int, int, int]]:
    """(seq, first index, count, code, persistence) of every failure that was told; acknowledged here."""
    row = row_of(ClientTable(harness.segment), CLIENT_ID)
    assert row is not None
    session = harness.sessions.of_row(row.index)
    assert session is not None
    news = session.row.ring_slice_from(session.row.acked_number + 1)
    found = unpack_outcomes(news[2]) if news else []
    if news:
        session.row.ring_ack(news[1])
    harness.acker.acked(session, harness.now_ms)
    return [
        (each.seq, each.first_index, each.count, each.code, each.persistence)
        for each in found
        if each.kind == OutcomeKind.FAILED
    ]


def test_a_submission_that_kills_its_reader(segment: Segment) -> None:
    first = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    for values in ([b"a", b"b"], [b"poison", b"too"], [b"c"]):
        first.accept(session, values, [0] * len(values))
    queue = first.topics.get("t")
    assert queue is not None
    bad = [entry.ordinal for entry in queue.chain.entries()][1]
    harness = first
    for _ in range(3):
        assert not harness.broker.spool
        InWork(segment.slot(0)).loop_word[:] = entry_word(queue.chain.chain_id, bad).to_bytes(
            8, "little"
        )  # and dies
        harness = heir(harness)
    harness.run()
    assert harness.broker.log == {0: [b"a", b"b", b"c"]}
    assert failures(harness) == [(2, 0, 2, LocalCode.POISON_SUBMISSION, Persistence.NOT_PERSISTED)]
    (letter,) = harness.broker.spool
    assert (letter.topic, letter.sender.rpartition("/")[2], letter.indexes, letter.code) == (
        "t",
        "2",
        [0, 1],
        LocalCode.POISON_SUBMISSION,
    )
    assert b"poison" in letter.payload
    counters = harness.counters.read()
    assert (counters["poison_submissions_total"], counters["records_failed_total"]) == (1, 2)
    assert counters["records_accepted_total"] == 5 == counters["records_delivered_total"] + 2
    assert describe_undelivered(segment) == []
    last = heir(harness)
    assert last.counters.get("poison_submissions_total") == 1
    assert len(last.broker.spool) == 1


def test_a_poisonous_submission_is_not_read_before_it_has_ended(segment: Segment) -> None:
    """Its client has not acknowledged the failure: the next worker must not read it either."""
    first = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    first.accept(session, [b"poison"], [0])
    (entry,) = first.topics.get("t").chain.entries()  # type: ignore[union-attr]
    harness = first
    for _ in range(3):
        InWork(segment.slot(0)).loop_word[:] = entry_word(0, entry.ordinal).to_bytes(8, "little")
        harness = heir(harness)
    for _ in range(3):
        harness = heir(harness)  # told, and not acknowledged
        assert bytes(segment.slot(0).area[256:264]) == bytes(8), "nobody had it in work"
    assert harness.counters.get("poison_submissions_total") == 1
    assert failures(harness)
    assert harness.counters.get("records_failed_total") == 1
    assert describe_undelivered(segment) == []


def test_a_batch_that_kills_its_encoder(segment: Segment) -> None:
    """It has a descriptor: possibly persisted. Records behind it in its partition go on."""
    first = SlotHarness(segment, MemoryBroker(is_silent=True), 1)
    session, _ = first.attach()
    first.know_topic()
    first.accept(session, [b"poison", b"x"], [0, 1])
    first.turn()
    first.turn()
    bad = next(each for each in first.descriptors if each.partition == 0)
    first.broker.log.clear()
    first.broker.producers.clear()  # it died before it sent a byte
    first.accept(session, [b"behind"], [0])
    harness = first
    for _ in range(3):
        InWork(segment.slot(0)).loop_word[:] = batch_word(bad.serial).to_bytes(8, "little")
        harness = heir(harness)
    harness.ask()
    harness.run()
    assert harness.broker.log == {0: [b"behind"], 1: [b"x"]}
    assert failures(harness) == [(1, 0, 1, LocalCode.POISON_SUBMISSION, Persistence.POSSIBLY_PERSISTED)]
    assert [letter.indexes for letter in harness.broker.spool] == [[0]]
    assert harness.counters.get("poison_submissions_total") == 1
    assert describe_undelivered(segment) == []


def test_a_submission_of_which_a_part_was_sent(segment: Segment) -> None:
    """Nobody can read it again, so the part under a descriptor is possibly persisted, as what shares its batch."""
    first = SlotHarness(segment, MemoryBroker(is_silent=True), 1)
    session, _ = first.attach()
    first.know_topic()
    first.accept(session, [b"poison", b"and"], [0, 77])
    first.turn()
    first.turn()
    assert len(list(first.descriptors)) == 1
    (entry,) = first.topics.get("t").chain.entries()  # type: ignore[union-attr]
    harness = first
    for _ in range(3):
        InWork(segment.slot(0)).loop_word[:] = entry_word(0, entry.ordinal).to_bytes(8, "little")
        harness = heir(harness)
    harness.ask()
    harness.run()
    told = {each[1]: each[3:] for each in failures(harness)}
    assert told[0] == (LocalCode.ENCODE_MISMATCH, Persistence.POSSIBLY_PERSISTED)
    assert told[1][1] == Persistence.NOT_PERSISTED
    assert describe_undelivered(segment) == []
    assert list(harness.descriptors) == []


def test_records_after_an_unsendable_batch_are_sent_at_once(segment: Segment) -> None:
    """A batch of two submissions was sent, one of them is poisonous. Nobody can tell what the broker has, so the
    partition takes a new identity, and does not wait for the next record's deadline."""
    first = SlotHarness(segment, MemoryBroker(is_silent=True), 1)
    session, _ = first.attach()
    first.know_topic()
    first.accept(session, [b"poison"], [0])
    first.accept(session, [b"beside"], [0])
    first.turn()
    first.turn()
    (sent,) = first.descriptors
    assert sent.count == 2
    entry = next(iter(first.topics.get("t").chain.entries()))  # type: ignore[union-attr]
    first.accept(session, [b"waiting"], [0])
    harness = first
    for _ in range(3):
        InWork(segment.slot(0)).loop_word[:] = entry_word(0, entry.ordinal).to_bytes(8, "little")
        harness = heir(harness)
    harness.ask()
    harness.know_topic()
    again, _ = harness.attach(session.row.secret)
    harness.accept(again, [b"next"], [0])
    harness.run()
    assert harness.broker.log[0][2:] == [b"waiting", b"next"]
    assert {told[4] for told in failures(harness)} == {Persistence.POSSIBLY_PERSISTED}
    assert describe_undelivered(segment) == []
