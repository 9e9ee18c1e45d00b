"""Goal: the fake broker is a broker to a client that shares no code with us, and keeps sequences as Kafka does.

librdkafka is the client: it checks versions, metadata, identities and answers for itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fake_log import PartitionLog
from sidecar.tools.testing.fault_rules import ALWAYS, Rule, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.kafka_topics import quiet_config
from sidecar.tools.testing.record_batches import BatchHeader, BatchRecord
from sidecar.tools.testing.waiting import ConditionTimeout, wait_until

RECORD = BatchRecord(None, b"x", (), 1)


@pytest.fixture
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker({"t": 3}, nodes=2) as broker:
        yield broker


def produce(broker: FakeBroker, count: int, **settings: Any) -> list[str]:
    """Send ``count`` records to t-0; their outcomes, "" for delivered."""
    from confluent_kafka import Producer

    producer = Producer(
        quiet_config(broker.bootstrap_servers, {"enable.idempotence": True, "linger.ms": 0, **settings})
    )
    told: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        told.append("" if error is None else error.name())

    for number in range(count):
        producer.produce("t", b"%d" % number, b"k", 0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(20) == 0
    return told


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_another_client_delivers(kafka: FakeBroker, codec: str) -> None:
    assert produce(kafka, 50, **{"compression.type": codec}) == [""] * 50
    assert [record.value for record in kafka.records("t", 0)] == [b"%d" % n for n in range(50)]
    assert {record.key for record in kafka.records("t")} == {b"k"}
    assert not kafka.bad_batches


def test_lost_answers_leave_one_copy(kafka: FakeBroker) -> None:
    rule = kafka.add(on(Api.PRODUCE, topic="t", times=2).cut_answer())
    assert produce(kafka, 3) == [""] * 3
    assert rule.hits == 2
    assert [record.value for record in kafka.records("t")] == [b"0", b"1", b"2"]
    assert kafka.duplicates("t") >= 1


def test_refusals_and_leaders(kafka: FakeBroker) -> None:
    kafka.add(on(Api.PRODUCE, topic="t").refuse(7, 5))
    kafka.add(on(Api.INIT_PRODUCER_ID).refuse(14))
    kafka.move_leader("t", 0, 2)
    assert produce(kafka, 2) == ["", ""]
    assert kafka.requests(Api.PRODUCE)[-1].node == 2
    codes = [request.codes["t", 0] for request in kafka.requests(Api.PRODUCE)]
    assert codes[:2] == [7, 5]
    assert codes[-1] == 0


def test_a_final_error_is_told(kafka: FakeBroker) -> None:
    kafka.add(on(Api.PRODUCE, times=ALWAYS).refuse(29))
    assert produce(kafka, 1, **{"enable.idempotence": False}) == ["TOPIC_AUTHORIZATION_FAILED"]
    assert not kafka.records("t")


def test_a_hold_waits_for_its_release(kafka: FakeBroker) -> None:
    import threading

    rule = kafka.add(on(Api.PRODUCE).hold_answer())
    told: list[str] = []
    sender = threading.Thread(target=lambda: told.extend(produce(kafka, 1)))
    sender.start()
    wait_until(lambda: kafka.records("t"), "the record in the log")
    assert kafka.requests(Api.PRODUCE)[0].fate == "forwarded"
    rule.release()
    sender.join()
    assert told == [""]


def test_a_broker_that_is_down_comes_back_on_its_port(kafka: FakeBroker) -> None:
    address = kafka.address(1)
    kafka.stop_listening(1)
    kafka.move_leader("t", 0, 2)
    assert produce(kafka, 1) == [""]
    kafka.listen_again(1)
    kafka.move_leader("t", 0, 1)
    assert kafka.address(1) == address
    assert produce(kafka, 1) == [""]
    assert kafka.requests(Api.PRODUCE)[-1].node == 1


# --- rules -------------------------------------------------------------------------------------------------


def test_skip_times_and_wait(kafka: FakeBroker) -> None:
    rule = kafka.add(on(Api.PRODUCE, skip=1, times=1).refuse(7))
    produce(kafka, 1)
    assert rule.hits == 0
    with pytest.raises(ConditionTimeout, match="0 hits instead of 1"):
        rule.wait(timeout_s=0)
    produce(kafka, 1)
    rule.wait(timeout_s=0)
    codes = [each.codes["t", 0] for each in kafka.requests(Api.PRODUCE)]
    assert codes == [0, 7, 0]


def test_several_codes_are_several_hits() -> None:
    rule: Rule = on(Api.PRODUCE).refuse(5, 45, 45)
    assert [rule.refusal(hit) for hit in range(4)] == [5, 45, 45, 45]
    assert on(Api.PRODUCE).refusal(0) is None


# --- sequences ---------------------------------------------------------------------------------------------


def batch(base_sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    return BatchHeader(0, 0, 0, 0, 2, 0, 0, count - 1, 1, 1, producer_id, epoch, base_sequence, count)


def append(log: PartitionLog, header: BatchHeader) -> tuple[int, int]:
    return tuple(log.append(header, [RECORD] * header.record_count, b""))  # type: ignore[return-value]


def test_the_last_five_are_known_again() -> None:
    log = PartitionLog()
    assert [append(log, batch(n)) for n in range(7)] == [(0, n) for n in range(7)]
    assert [append(log, batch(n)) for n in range(2, 7)] == [(0, n) for n in range(2, 7)]
    assert append(log, batch(1)) == (45, -1)  # older than that: not told from a gap
    assert append(log, batch(6, 2)) == (45, -1)  # same first, other count
    assert append(log, batch(9)) == (45, -1)
    assert append(log, batch(7)) == (0, 7)
    assert log.end_offset == 8


def test_epochs() -> None:
    log = PartitionLog()
    assert append(log, batch(0)) == (0, 0)
    assert append(log, batch(1, epoch=1)) == (45, -1)
    assert append(log, batch(0, epoch=1)) == (0, 1)
    assert append(log, batch(1)) == (47, -1)


def test_an_unknown_id_is_taken_at_any_sequence() -> None:
    log = PartitionLog()
    assert append(log, batch(5)) == (0, 0)
    assert append(log, batch(7)) == (45, -1)
    assert append(log, batch(2147483647, 3, producer_id=8)) == (0, 1)
    assert append(log, batch(2, producer_id=8)) == (0, 4)  # 2147483647, 0, 1, then 2
    assert append(log, batch(-1, producer_id=-1)) == (0, 5)
