"""Goal: a transaction takes positions and group of a consumer of the two libraries, and refuses at once what it cannot
use.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from client_stub import GroupMetadata, OffsetToCommit, Producer
from client_stub.contract.wire import Kind, TxnEffect
from client_stub.engine.consumers import consumer_of, parsed_group
from client_stub.errors import ProducerFenced, TransactionTimeout
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

kafka = pytest.importorskip("kafka")
confluent_kafka = pytest.importorskip("confluent_kafka")
WAIT_S = 30.0
IN = kafka.TopicPartition("in", 0)


class KafkaConsumer(kafka.KafkaConsumer):  # type: ignore[misc]
    """One that has read up to offset 17, without a broker."""

    def __init__(self, **config: Any) -> None:
        self.config = {"enable_auto_commit": False, "group_id": "workers"} | config
        self.sought: list[Any] = []

    def __del__(self) -> None: ...

    def assignment(self) -> set[Any]:
        return {IN}

    def position(self, partition: Any, timeout_ms: int | None = None) -> int:
        return 17

    def committed(self, partition: Any, metadata: bool = False, timeout_ms: int | None = None) -> int | None:
        return 11

    def group_metadata(self) -> Any:
        return kafka.structs.ConsumerGroupMetadata("workers", 3, "m", None)

    def seek(self, partition: Any, offset: int) -> None:
        self.sought.append((partition, offset))


def test_consumer_that_cannot_be_used_is_refused_before_the_block(run_dir: Path) -> None:
    producer = Producer(run_dir, transactional_id="x")
    for wrong, text in (
        (object(), "takes a Consumer of confluent-kafka or a KafkaConsumer of kafka-python, not object"),
        (kafka.TopicPartition("in", 0), "not TopicPartition"),
        (confluent_kafka.TopicPartition("in", 0), "not TopicPartition"),
        (KafkaConsumer(enable_auto_commit=True), "enable_auto_commit=False"),
        (KafkaConsumer(group_id=None), "create it with group_id"),
    ):
        with pytest.raises((TypeError, ValueError), match=text), producer.transaction(wrong):
            raise AssertionError("the block does not begin")
    producer.close()


def test_positions_and_group_of_kafka_python(run_dir: Path) -> None:
    reader = consumer_of(KafkaConsumer())
    assert reader.positions() == [OffsetToCommit("in", 0, 17)]
    assert reader.group() == GroupMetadata("workers", 3, "m", None)


def test_positions_and_group_of_confluent_kafka() -> None:
    consumer = confluent_kafka.Consumer({"group.id": "workers", "group.instance.id": "i"})
    try:
        reader = consumer_of(consumer)
        assert reader.positions() == []
        assert reader.group() == GroupMetadata("workers", -1, "", "i")
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "wrong",
    [None, b"", "CGMDv2:", b"CGMDv2:", b"CGMDv1:" + bytes(9), b"CGMDv2:" + struct.pack("=i", 1) + b"g\0"],
)
def test_group_metadata_of_another_kind_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"consumer_group_metadata\(\)"):
        parsed_group(wrong)


def test_consumer_goes_back_after_a_failure_but_not_while_a_commit_has_no_result(daemon: FakeDaemon) -> None:
    consumer = KafkaConsumer()
    with Producer(daemon.run_dir, transactional_id="x", max_block_ms=50) as producer:
        producer.init_transactions(WAIT_S)
        with pytest.raises(ZeroDivisionError), producer.transaction(consumer):
            raise ZeroDivisionError
        assert consumer.sought == [(IN, 11)]

        def on_txn(client: Any, txn: list[Any]) -> None:
            if txn[0] == Kind.TXN_OFFSETS:
                daemon.answer_txn(client, txn)

        daemon.on_txn = on_txn
        with pytest.raises(TransactionTimeout), producer.transaction(consumer):
            pass
        assert consumer.sought == [(IN, 11)]
        eventually(lambda: daemon.txn_frames[-1][:3] == [Kind.TXN_END, 2, True])
        daemon.do(lambda: daemon.answer_txn(daemon.only_client, daemon.txn_frames[-1]))
        producer.commit_transaction(WAIT_S)
        daemon.on_txn = lambda client, txn: daemon.answer_txn(
            client, txn, code=90, effect=TxnEffect.FATAL, text="Another producer has the id x."
        )
        with pytest.raises(ProducerFenced), producer.transaction(consumer):
            pass
        assert consumer.sought == [(IN, 11)] * 2, "its next producer must not skip what was read"
