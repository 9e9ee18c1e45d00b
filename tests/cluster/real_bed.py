"""Real clusters of each transaction.version, a daemon on each, and readers that are not ours."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Final

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, TopicPartition

from client_stub import Producer
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import quiet_config
from sidecar.tools.testing.reading import wait_transactions_ended
from sidecar.tools.testing.waiting import wait_until

CALL_S: Final = 60.0
CONNECT_MS: Final = 60_000
SMALL: Final = {
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
}
_serial = count(1)


def new_id(kind: str = "id") -> str:
    """A transactional id, group or topic that no other test has."""
    return f"{kind}-{next(_serial)}"


class RealBed:
    """A real cluster, a daemon on it, and readers."""

    def __init__(self, kafka: KafkaCluster, daemon: SidecarDaemon) -> None:
        self.kafka = kafka
        self.daemon = daemon

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = new_id("tx")
        self.kafka.create_topics({name: partitions}, config=config)
        return name

    def producer(
        self, name: str = "", *, daemon: SidecarDaemon | None = None, timeout_ms: int = 60_000
    ) -> Producer:
        return Producer(
            run_dir=str((daemon or self.daemon).run_dir),
            client_name="tx",
            transactional_id=name or new_id(),
            transaction_timeout_ms=timeout_ms,
            connect_timeout_ms=CONNECT_MS,
        )

    def read(self, topic: str, partitions: int = 1, *, committed: bool = True) -> list[bytes]:
        """By librdkafka, partition after partition, to the end of what it may see."""
        consumer = Consumer(
            quiet_config(
                self.kafka.bootstrap_servers,
                {
                    "group.id": "reader",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed" if committed else "read_uncommitted",
                },
            )
        )
        found: dict[int, list[bytes]] = {}
        ended: set[int] = set()

        def read_more() -> bool:
            for message in consumer.consume(1_000, 0.2):
                error = message.error()
                if error is None:
                    found.setdefault(message.partition(), []).append(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    assert error.retriable(), error
            return len(ended) == partitions

        try:
            consumer.assign([ConfluentPartition(topic, index, 0) for index in range(partitions)])
            wait_until(read_more, f"the end of {topic}", timeout_s=CALL_S)
        finally:
            consumer.close()
        return [value for index in sorted(found) for value in found[index]]

    def read_by_kafka_python(self, topic: str, partitions: int = 1) -> list[bytes]:
        """As ``read``, by a client that shares no code with librdkafka."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.kafka.bootstrap_servers.split(","),
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        found: dict[int, list[bytes]] = {}
        try:
            assigned = [TopicPartition(topic, index) for index in range(partitions)]
            consumer.assign(assigned)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(assigned)

            def read_more() -> bool:
                for partition, records in consumer.poll(timeout_ms=200).items():
                    found.setdefault(partition.partition, []).extend(record.value for record in records)
                return all(consumer.position(each) >= ends[each] for each in assigned)

            wait_until(read_more, f"the end of {topic}", timeout_s=CALL_S)
        finally:
            consumer.close()
        return [value for index in sorted(found) for value in found[index]]

    def settled(self, topic: str, partitions: int = 1) -> list[bytes]:
        """The committed records once every transaction of the topic has ended, as both consumers read them."""
        wait_transactions_ended(self.kafka.bootstrap_servers, topic)
        found = self.read(topic, partitions)
        assert found == self.read_by_kafka_python(topic, partitions)
        return found


LEVELS: Final = [("3.9", None), ("4.1", 0), ("4.1", 1), ("4.4", 2)]
