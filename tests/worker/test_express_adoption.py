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
from tests.worker.express_stage import (
    LOUD,
    QUIET,
    SMALL,
    Stage,
    finish,
    log_of,
    quiet_and_loud,
    small_segment,
    successor,
)

from .slot_stage import TOPIC, MemoryBroker


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    with closing(small_segment(tmp_path)) as made:
        yield made


@pytest.fixture
def stage(segment: Segment) -> Stage:
    return quiet_and_loud(segment)


@pytest.mark.parametrize("is_answered", [False, True])
def test_batches_of_both_chains_that_were_sent_go_again_as_they_were_numbered(
    stage: Stage, segment: Segment, is_answered: bool
) -> None:
    """The express batch has the lower sequence here, and the other one lies before it by the number of its chain."""
    stage.submit(LOUD, b"known")
    stage.settle_all()
    count = stage.pile_up()
    stage.submit(QUIET, b"quiet")
    stage.broker.is_silent = not is_answered
    for _ in range(3):
        stage.turn(stop_after=SendProduce)
    assert b"quiet" in log_of(stage.broker)
    sent = list(stage.descriptors)
    assert {stage.chain_table.ids()[0, TOPIC]} <= {each.chain_id for each in sent}
    stage.submit(QUIET, b"quiet too")
    second = successor(stage, segment)
    found = finish(second)
    assert sorted(found) == sorted([b"known", b"quiet", b"quiet too", *(b"%d" % n for n in range(count))])
    assert [value for value in found if value.startswith(b"quiet")] == [b"quiet", b"quiet too"]
    loud = [value for value in found if not value.startswith(b"quiet")]
    assert loud == [b"known", *(b"%d" % number for number in range(count))]
    assert found.index(b"quiet too") < len(found) - 1, "it passes what was never sent at a successor, too"


def test_nothing_unsent_before_an_express_batch_counts_as_a_gap(stage: Stage, segment: Segment) -> None:
    """Bulk records that were accepted before it and never sent say nothing about it."""
    stage.submit(LOUD, b"known")
    stage.settle_all()
    stage.pile_up()
    stage.submit(QUIET, b"quiet")
    stage.broker.is_silent = True
    stage.turn(stop_after=SendProduce)
    second = successor(stage, segment)
    finish(second)
    assert second.ids.epoch_bumps == 0
    assert second.counters.get("records_failed_total") == 0


def test_express_records_that_were_refused_go_before_later_ones_of_their_client_in_bulk(
    stage: Stage, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their worker died when the batch in bulk was sent, and they waited to be sent again beside a refused record."""
    stage.submit(LOUD, b"known")
    stage.settle_all()
    quiet = stage.sessions_of[QUIET]
    stage.accept(quiet, [b"bad", b"q0"], [0, 0], is_express=True)
    stage.accept(quiet, [b"q1"], [0])
    stage.broker.invalid_value = b"bad"
    result = stage._result

    def silent_in_bulk(batch: ProducerBatch) -> PartitionResult:
        stage.broker.is_silent = not batch.is_express
        return result(batch)

    monkeypatch.setattr(stage, "_result", silent_in_bulk)
    stage.turn()
    stage.turn()
    assert [each.chain_id for each in stage.descriptors] == [stage.chain_table.ids()[0, TOPIC]]
    assert finish(successor(stage, segment)) == [b"known", b"q0", b"q1"]


def test_without_numbers_express_batches_go_again_before_those_in_bulk(segment: Segment) -> None:
    """Their client became loud in between; the first batch in bulk is of somebody else."""
    config = producer_config(batch_size=100, linger_ms=0, acks=1, enable_idempotence=False)
    stage = Stage(segment, MemoryBroker(is_silent=True), 1, config)
    stage.know_topic()
    loud, quiet = stage.join(LOUD), stage.join(QUIET)
    for session, value, is_express in ((loud, b"l0", False), (quiet, b"q0", True), (quiet, b"q1", False)):
        stage.accept(session, [value], [0], is_express=is_express)
        stage.turn()
    stage.broker.log.clear()  # nothing of it arrived
    second = Stage(segment, stage.broker, 2, config)
    second.broker.is_silent = False
    second.ask()
    second.know_topic()
    assert [value for value in finish(second) if value.startswith(b"q")] == [b"q0", b"q1"]


def test_express_records_without_a_partition_wait_for_the_metadata(
    stage: Stage, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their worker died between the acceptance and the partition."""
    stage.pile_up()
    monkeypatch.setattr(stage.topics, "on_entry", lambda *_: None)
    stage.submit(QUIET, b"q0")
    second = Stage(segment, stage.broker, 2)
    second.ask()
    assert second.topics.waiting.entry_count == 1
    second.know_topic()
    assert finish(second)[0] == b"q0"


def test_a_client_s_position_is_the_later_of_both_chains(stage: Stage, segment: Segment) -> None:
    stage.pile_up()
    stage.submit(QUIET, b"q0")
    for number in range(1, QUIET_BYTES // SMALL + 3):
        stage.submit(QUIET, b"q%d" % number + b" " * SMALL)
    session = stage.sessions_of[QUIET]
    position = session.streams[1].position
    index, unsettled = session.row.index, session.unsettled_records
    second = Stage(segment, stage.broker, 2)
    adopted = second.sessions.of_row(index)
    assert adopted is not None
    assert (adopted.streams[1].position, adopted.unsettled_records) == (position, unsettled)
    assert not second.express._may_change(adopted.streams[1]), "what it has in bulk is not known any more"


def test_an_express_chain_alone_brings_its_topic_back(stage: Stage, segment: Segment) -> None:
    stage.pile_up()
    stage.submit(QUIET, b"quiet")
    queue = stage.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    for batch in stage.accumulator.incomplete.oldest_first():
        if not batch.is_express:
            batch.records.mark_done()
    stage.release_idle()
    second = successor(stage, segment)
    assert finish(second) == [b"quiet"]
