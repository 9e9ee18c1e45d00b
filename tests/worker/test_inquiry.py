"""Goal: a batch of unknown outcome is sent again exactly when its broker will recognise what it has."""

from __future__ import annotations

from datetime import timedelta
from io import BytesIO

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.primitive import i32Timedelta

from sidecar.producer.partition_queue import PartitionQueue
from sidecar.producer.producer_batch import ProducerBatch
from sidecar.producer.topic_settings import TopicRules
from sidecar.protocol.describe_producers import (
    ProducerState,
    describe_producers_request,
    parse_describe_producers,
)
from sidecar.protocol.messages import decode_response, encode_request, response_module
from sidecar.worker.brokers.inquiry import FRESH_MS, Verdict, verdict_on
from tests.configs import producer_config

NOW = 10_000_000
MASK = 0x7FFFFFFF


class Records:
    def __init__(self, count: int, stamped_ms: int) -> None:
        self.count = count
        self.size_bytes = 100 * count
        self.max_timestamp_ms = stamped_ms


def sent(
    base: int, count: int = 10, *, epoch: int = 0, age_ms: int = 1000, stamp_age_ms: int = 1000
) -> tuple[ProducerBatch, int]:
    queue = PartitionQueue("t", 0, 0, TopicRules(producer_config()).of("t"))
    batch = ProducerBatch(
        queue=queue,
        records=Records(count, NOW - stamp_age_ms),  # type: ignore[arg-type]
        chain=None,
        order=0,
        created_ms=0,
        deadline_ms=1,
    )
    batch.identify(7, epoch, base)
    return batch, NOW - age_ms


def known(last_sequence: int, epoch: int = 0) -> dict[int, ProducerState]:
    return {7: ProducerState(epoch, last_sequence)}


def test_only_the_batch_whose_sequence_the_broker_tells_is_surely_there() -> None:
    """Of the one before it nothing is said: with the id forgotten meanwhile, a broker takes the later one without."""
    batches = [sent(100), sent(110), sent(120)]
    assert verdict_on(batches, known(119), NOW) is Verdict.SEND_AGAIN
    assert [batch.appended for batch, _ in batches] == [False, True, False]


def test_sequences_wrap() -> None:
    batches = [sent(MASK - 4), sent(5)]
    assert verdict_on(batches, known(4), NOW) is Verdict.SEND_AGAIN
    assert [batch.appended for batch, _ in batches] == [True, False]


def test_batches_that_a_broker_lacks_are_marked() -> None:
    """Behind its last sequence is nothing, nor where it does not know an id that was never acknowledged."""
    batches = [sent(MASK - 9), sent(0), sent(10)]
    verdict_on(batches, known(MASK), NOW)
    assert [batch.was_absent for batch, _ in batches] == [False, True, True]
    first = [sent(0), sent(10)]
    verdict_on(first, {}, NOW)
    assert all(batch.was_absent for batch, _ in first)
    other_epoch = [sent(100, epoch=1)]
    verdict_on(other_epoch, known(50, epoch=2), NOW)
    assert not other_epoch[0][0].was_absent


@pytest.mark.parametrize("producers", [{}, None])
def test_old_records_are_forgotten_at_once(producers: dict[int, ProducerState] | None) -> None:
    """However lately they were sent: a broker forgets an id by the records' timestamps."""
    assert verdict_on([sent(0, stamp_age_ms=FRESH_MS + 1)], producers, NOW) is Verdict.UNKNOWN
    later = [sent(0), sent(10, stamp_age_ms=FRESH_MS + 1)]
    assert verdict_on(later, producers, NOW) is Verdict.UNKNOWN


def test_sequence_0_after_a_wrap_proves_nothing_by_itself() -> None:
    """2^31 records were acknowledged before, and the id was forgotten since: time alone tells that it never arrived."""
    assert verdict_on([sent(0, age_ms=FRESH_MS + 1)], {}, NOW) is Verdict.UNKNOWN
    assert verdict_on([sent(0)], {}, NOW) is Verdict.SEND_AGAIN


@pytest.mark.parametrize(
    ("base", "age_ms", "producers", "verdict"),
    [
        (0, 1000, {}, Verdict.SEND_AGAIN),
        (0, FRESH_MS + 1, {}, Verdict.UNKNOWN),
        (10, 1000, {}, Verdict.UNKNOWN),
        (0, NOW, {}, Verdict.UNKNOWN),
        (10, 1000, None, Verdict.SEND_AGAIN),
        (0, FRESH_MS + 1, None, Verdict.UNKNOWN),
        (0, -1000, {}, Verdict.SEND_AGAIN),
        (0, -FRESH_MS - 1, {}, Verdict.UNKNOWN),
        (10, -FRESH_MS - 1, None, Verdict.UNKNOWN),
    ],
)
def test_not_known(
    base: int, age_ms: int, producers: dict[int, ProducerState] | None, verdict: Verdict
) -> None:
    assert verdict_on([sent(base, age_ms=age_ms)], producers, NOW) is verdict


def test_epochs() -> None:
    assert verdict_on([sent(0, epoch=3, age_ms=NOW)], known(50, epoch=2), NOW) is Verdict.SEND_AGAIN
    assert verdict_on([sent(10, epoch=3)], known(50, epoch=2), NOW) is Verdict.UNKNOWN
    batches = [sent(0, epoch=1)]
    assert verdict_on(batches, known(50, epoch=2), NOW) is Verdict.SEND_AGAIN
    assert not batches[0][0].appended, "the later epoch's sequences say nothing of it"


def test_messages() -> None:
    request = encode_request(describe_producers_request(0, {"t": [0, 3]}), 5, "client")
    assert b"\x02t" in request
    module = response_module(61, 0)
    state = module.ProducerState(producer_id=7, producer_epoch=2, last_sequence=41, coordinator_epoch=-1)
    partition = module.PartitionResponse(
        partition_index=3, error_code=ErrorCode(0), active_producers=(state,)
    )
    answer = module.DescribeProducersResponse(
        throttle_time=i32Timedelta.parse(timedelta(0)),
        topics=(module.TopicResponse(name="t", partitions=(partition,)),),
    )
    buffer = BytesIO()
    entity_writer(module.DescribeProducersResponse)(buffer, answer)
    (found,) = parse_describe_producers(decode_response(61, 0, buffer.getvalue()))
    assert (found.topic, found.partition, found.error_code) == ("t", 3, 0)
    assert found.producers == {7: ProducerState(2, 41)}
