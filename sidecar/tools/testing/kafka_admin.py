"""Change a running cluster as an operator would: leaders, replicas, topics, partition counts, settings.

All of it uses clients that share no code with ours. When a method returns, the broker that was asked last knows the
new state; another broker may learn it a moment later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sidecar.tools.testing.kafka_topics import quiet_config
from sidecar.tools.testing.waiting import wait_until

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

TIMEOUT_S = 60.0
"""Long enough for a cluster that has just lost a node, which answers late."""


class KafkaAdmin:
    """Operator of one cluster. Raises KafkaException when the cluster refuses, ConditionTimeout when it is late."""

    def __init__(self, bootstrap_servers: str) -> None:
        from confluent_kafka.admin import AdminClient

        self._bootstrap_servers = bootstrap_servers
        self._admin: AdminClient = AdminClient(
            quiet_config(bootstrap_servers, {"topic.metadata.refresh.interval.ms": 500})
        )

    # Queries

    def partitions(self, topic: str) -> Mapping[int, Any]:
        """Return the leader, replicas and isrs of each partition; empty when there is no such topic."""
        found = self._admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        partitions: Mapping[int, Any] = found.partitions if found.error is None else {}
        return partitions

    def leaders(self, topic: str) -> dict[int, int]:
        """Return partition → node id of its leader, -1 for none."""
        return {index: each.leader for index, each in sorted(self.partitions(topic).items())}

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return partition → offset of its next record, also while the topic is being written to.

        A partition is left out while its leader does not answer.
        """
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, index): latest for index in self.partitions(topic)}
        found: dict[int, int] = {}
        for each, done in (self._admin.list_offsets(wanted) if wanted else {}).items():
            with contextlib.suppress(KafkaException):
                found[each.partition] = int(done.result(TIMEOUT_S).offset)
        return found

    def wait_leaders(self, topic: str, wanted: Mapping[int, int]) -> None:
        """Wait until these partitions are led by these nodes."""
        wait_until(
            lambda: wanted.items() <= self.leaders(topic).items(),
            f"leaders {dict(wanted)} of {topic}",
            timeout_s=TIMEOUT_S,
            describe=lambda: f"They are {self.leaders(topic)}.",
        )

    def wait_in_sync(self, topic: str, count: int) -> None:
        """Wait until every partition of ``topic`` has ``count`` replicas in sync."""
        wait_until(
            lambda: all(len(each.isrs) == count for each in self.partitions(topic).values()),
            f"{count} replicas of {topic} in sync",
            timeout_s=TIMEOUT_S,
            describe=lambda: str({index: each.isrs for index, each in self.partitions(topic).items()}),
        )

    # Topics

    def create_assigned(
        self, topic: str, replicas: Sequence[Sequence[int]], config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic with these nodes for each partition; the first one of a partition is its leader."""
        from confluent_kafka.cimpl import NewTopic

        wanted = NewTopic(
            topic,
            num_partitions=len(replicas),
            replica_assignment=[list(each) for each in replicas],
            config=dict(config or {}),
        )
        self._admin.create_topics([wanted])[topic].result(TIMEOUT_S)
        self.wait_leaders(topic, {index: each[0] for index, each in enumerate(replicas)})

    def delete_records(self, topic: str, partition: int) -> None:
        """Delete all records that the partition has now."""
        from confluent_kafka import TopicPartition

        (done,) = self._admin.delete_records([TopicPartition(topic, partition, -1)]).values()
        done.result(TIMEOUT_S)

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic], operation_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)
        wait_until(lambda: not self.partitions(topic), f"{topic} to be gone", timeout_s=TIMEOUT_S)

    def grow_topic(self, topic: str, partitions: int) -> None:
        """Raise the partition count to ``partitions`` and wait until every partition has a leader."""
        from confluent_kafka.cimpl import NewPartitions

        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(TIMEOUT_S)

        def all_led() -> bool:
            leaders = self.leaders(topic)
            return len(leaders) == partitions and min(leaders.values()) >= 0

        wait_until(all_led, f"{partitions} led partitions of {topic}", timeout_s=TIMEOUT_S)

    def set_topic_config(self, topic: str, settings: Mapping[str, str]) -> None:
        """Change these settings of a topic; all others keep their values."""
        set_config(self._admin, topic=topic, settings=settings)

    # Leaders

    def move_leaders(self, topic: str, wanted: Mapping[int, int]) -> None:
        """Make these replicas the leaders: each becomes the preferred replica, then an election follows."""
        replicas = {index: list(each.replicas) for index, each in self.partitions(topic).items()}
        self.reassign(
            topic,
            {
                index: [node, *(each for each in replicas[index] if each != node)]
                for index, node in wanted.items()
            },
        )
        self.elect_preferred(topic, list(wanted))
        self.wait_leaders(topic, wanted)

    def reassign(self, topic: str, replicas: Mapping[int, Sequence[int]]) -> None:
        """Move partitions to these replicas, in this order, and wait until the move is done."""
        # confluent-kafka has no such call, and Kafka's own tool costs a JVM for each.
        from kafka import TopicPartition
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=self._bootstrap_servers.split(","))
        try:
            admin.alter_partition_reassignments(
                {TopicPartition(topic, index): list(nodes) for index, nodes in replicas.items()}
            )
        finally:
            admin.close()
        wait_until(
            lambda: all(
                list(self.partitions(topic)[index].replicas) == list(nodes)
                for index, nodes in replicas.items()
            ),
            f"{topic} to be moved to {dict(replicas)}",
            timeout_s=TIMEOUT_S,
        )

    def elect_preferred(self, topic: str, partitions: Sequence[int]) -> None:
        """Elect the first replica of each partition as its leader. A partition that it leads already stays
        unchanged.
        """
        from confluent_kafka import ElectionType, TopicPartition

        elected = self._admin.elect_leaders(
            ElectionType.PREFERRED, [TopicPartition(topic, index) for index in partitions]
        )
        elected.result(TIMEOUT_S)

    def elect_unclean(self, topic: str, partitions: Sequence[int]) -> None:
        """Elect any living replica, even without all records, and wait until one leads."""
        from confluent_kafka import ElectionType, TopicPartition

        self._admin.elect_leaders(
            ElectionType.UNCLEAN, [TopicPartition(topic, index) for index in partitions]
        ).result(TIMEOUT_S)
        wait_until(
            lambda: all(self.leaders(topic)[index] >= 0 for index in partitions),
            f"a leader of {topic}",
            timeout_s=TIMEOUT_S,
        )


def set_config(
    admin: AdminClient, *, settings: Mapping[str, str], topic: str | None = None, node_id: int = -1
) -> None:
    """Change these settings of a topic, or of the broker ``node_id``; all others keep their values."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    kind = ResourceType.BROKER if topic is None else ResourceType.TOPIC
    resource = ConfigResource(kind, str(node_id) if topic is None else topic, incremental_configs=entries)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(TIMEOUT_S)
