"""Real brokers of each transaction.version, a daemon on each, and readers that we did not write."""

from __future__ import annotations

from itertools import count
from typing import Final

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, TopicPartition

from client_stub import Producer
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
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


class RealBed:
    """A real broker, a daemon on it, and readers."""

    def __init__(self, kafka: KafkaCluster, daemon: SidecarDaemon) -> None:
        self.kafka = kafka
        self.daemon = daemon

    def topic(self, partitions: int = 1) -> str:
        name = f"tx-{next(_serial)}"
        self.kafka.create_topics({name: partitions})
        return name

    def producer(
        self, name: str = "", *, daemon: SidecarDaemon | None = None, timeout_ms: int = 60_000
    ) -> Producer:
        return Producer(
            run_dir=str((daemon or self.daemon).run_dir),
            client_name="tx",
            transactional_id=name or f"id-{next(_serial)}",
            transaction_timeout_ms=timeout_ms,
            connect_timeout_ms=CONNECT_MS,
        )

    def read(self, topic: str, partitions: int = 1, *, committed: bool = True) -> list[bytes]:
        """By librdkafka, partition after partition, to the end of what it may see."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )
        found: dict[int, list[bytes]] = {}
        ended: set[int] = set()

        def read_more() -> bool:
            for message in consumer.consume(1_000, 0.2):
                if message.error():
                    ended.add(message.partition())
                else:
                    found.setdefault(message.partition(), []).append(message.value())
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
        found: list[bytes] = []
        try:
            assigned = [TopicPartition(topic, index) for index in range(partitions)]
            consumer.assign(assigned)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(assigned)

            def read_more() -> bool:
                for records in consumer.poll(timeout_ms=200).values():
                    found.extend(record.value for record in records)
                return all(consumer.position(each) >= ends[each] for each in assigned)

            wait_until(read_more, f"the end of {topic}", timeout_s=CALL_S)
        finally:
            consumer.close()
        return found


LEVELS: Final = [("3.9", None), ("4.1", 0), ("4.1", 1), ("4.4", 2)]
