"""Goal: a successor goes on with express chains as with those in bulk, in each client's own order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.producer.effects import SendProduce
from sidecar.producer.producer_batch import ProducerBatch
from sidecar.protocol.produce import PartitionResult
from sidecar.shm.segment import Segment
from sidecar.worker.stubs.express import (
    QUIET_BYTES,
)
from tests.configs import producer_config
from tests.worker.express_harness import (
    LOUD,
    QUIET,
    SMALL,
    ExpressHarness,
    finish,
    log_of,
    quiet_and_loud,
    small_segment,
    successor,
)

from .slot_harness import TOPIC, MemoryBroker


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    with closing(small_segment(tmp_path)) as made:
        yield made


@pytest.fixture
def harness(segment: Segment) -> ExpressHarness:
    return quiet_and_loud(segment)


@pytest.mark.parametrize("is_answered", [False, True])
def test_batches_of_both_chains_that_were_sent_go_again_as_they_were_numbered(
    harness: ExpressHarness, segment: Segment, is_answered: bool
) -> None:
    """The express batch has the lower sequence here, and the other one lies before it by the number of its chain."""
    harness.submit(LOUD, b"known")
    harness.settle_all()
    count = harness.pile_up()
    harness.submit(QUIET, b"quiet")
    harness.broker.is_silent = not is_answered
    for _ in range(3):
        harness.turn(stop_after=SendProduce)
    assert b"quiet" in log_of(harness.broker)
    sent = list(harness.descriptors)
    assert {harness.chain_table.ids()[0, TOPIC]} <= {each.chain_id for each in sent}
    harness.submit(QUIET, b"quiet too")
    second = successor(harness, segment)
    found = finish(second)
    assert sorted(found) == sorted([b"known", b"quiet", b"quiet too", *(b"%d" % n for n in range(count))])
    assert [value for value in found if value.startswith(b"quiet")] == [b"quiet", b"quiet too"]
    loud = [value for value in found if not value.startswith(b"quiet")]
    assert loud == [b"known", *(b"%d" % number for number in range(count))]
    assert found.index(b"quiet too") < len(found) - 1, "it passes what was never sent at a successor, too"


def test_nothing_unsent_before_an_express_batch_counts_as_a_gap(
    harness: ExpressHarness, segment: Segment
) -> None:
    """Bulk records that were accepted before it and never sent say nothing about it."""
    harness.submit(LOUD, b"known")
    harness.settle_all()
    harness.pile_up()
    harness.submit(QUIET, b"quiet")
    harness.broker.is_silent = True
    harness.turn(stop_after=SendProduce)
    second = successor(harness, segment)
    finish(second)
    assert second.ids.epoch_bumps == 0
    assert second.counters.get("records_failed_total") == 0


def test_express_records_that_were_refused_go_before_later_ones_of_their_client_in_bulk(
    harness: ExpressHarness, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their worker died when the batch in bulk was sent, and they waited to be sent again beside a refused record."""
    harness.submit(LOUD, b"known")
    harness.settle_all()
    quiet = harness.sessions_of[QUIET]
    harness.accept(quiet, [b"bad", b"q0"], [0, 0], is_express=True)
    harness.accept(quiet, [b"q1"], [0])
    harness.broker.invalid_value = b"bad"
    result = harness._result

    def silent_in_bulk(batch: ProducerBatch) -> PartitionResult:
        harness.broker.is_silent = not batch.is_express
        return result(batch)

    monkeypatch.setattr(harness, "_result", silent_in_bulk)
    harness.turn()
    harness.turn()
    assert [each.chain_id for each in harness.descriptors] == [harness.chain_table.ids()[0, TOPIC]]
    assert finish(successor(harness, segment)) == [b"known", b"q0", b"q1"]


def test_without_numbers_express_batches_go_again_before_those_in_bulk(segment: Segment) -> None:
    """Their client became loud in between; the first batch in bulk is of somebody else."""
    config = producer_config(batch_size=100, linger_ms=0, acks=1, enable_idempotence=False)
    harness = ExpressHarness(segment, MemoryBroker(is_silent=True), 1, config)
    harness.know_topic()
    loud, quiet = harness.join(LOUD), harness.join(QUIET)
    for session, value, is_express in ((loud, b"l0", False), (quiet, b"q0", True), (quiet, b"q1", False)):
        harness.accept(session, [value], [0], is_express=is_express)
        harness.turn()
    harness.broker.log.clear()  # nothing of it arrived
    second = ExpressHarness(segment, harness.broker, 2, config)
    second.broker.is_silent = False
    second.ask()
    second.know_topic()
    assert [value for value in finish(second) if value.startswith(b"q")] == [b"q0", b"q1"]


def test_express_records_without_a_partition_wait_for_the_metadata(
    harness: ExpressHarness, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their worker died between the acceptance and the partition."""
    harness.pile_up()
    monkeypatch.setattr(harness.topics, "on_entry", lambda *_: None)
    harness.submit(QUIET, b"q0")
    second = ExpressHarness(segment, harness.broker, 2)
    second.ask()
    assert second.topics.waiting.entry_count == 1
    second.know_topic()
    assert finish(second)[0] == b"q0"


def test_a_client_s_position_is_the_later_of_both_chains(harness: ExpressHarness, segment: Segment) -> None:
    harness.pile_up()
    harness.submit(QUIET, b"q0")
    for number in range(1, QUIET_BYTES // SMALL + 3):
        harness.submit(QUIET, b"q%d" % number + b" " * SMALL)
    session = harness.sessions_of[QUIET]
    position = session.streams[1].position
    index, unsettled = session.row.index, session.unsettled_records
    second = ExpressHarness(segment, harness.broker, 2)
    adopted = second.sessions.of_row(index)
    assert adopted is not None
    assert (adopted.streams[1].position, adopted.unsettled_records) == (position, unsettled)
    assert not second.express._may_change(adopted.streams[1]), "what it has in bulk is not known any more"


def test_an_express_chain_alone_brings_its_topic_back(harness: ExpressHarness, segment: Segment) -> None:
    harness.pile_up()
    harness.submit(QUIET, b"quiet")
    queue = harness.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    for batch in harness.accumulator.incomplete.oldest_first():
        if not batch.is_express:
            batch.records.mark_done()
    harness.release_idle()
    second = successor(harness, segment)
    assert finish(second) == [b"quiet"]
