"""LaneCluster: two brokers as transactions see them, in simulated time: logs with markers, and a coordinator.

Logs and coordinator are those of the fake broker; requests are kio's messages, and batches are read from their bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sidecar.common.model import Node
from sidecar.protocol.messages import RequestMessage
from sidecar.tools.testing.fake_coordinator import FakeCoordinator, Phase
from sidecar.tools.testing.fake_coordinator_answers import coordinated, coordinator_found
from sidecar.tools.testing.fake_log import TRANSACTIONAL, Appended, PartitionLog
from sidecar.tools.testing.kafka_frames import Api, build, response_type
from sidecar.tools.testing.record_batches import read_batch
from sidecar.tools.testing.refusals import refused

NODES: Final = {1: Node(1, "kafka-1", 9092), 2: Node(2, "kafka-2", 9092)}
NOT_COORDINATOR: Final = 16
UNKNOWN_TOPIC: Final = 3
NOT_LEADER: Final = 6
UNKNOWN_TOPIC_ID: Final = 100
GROUP: Final = "readers"


class _Coordinator(FakeCoordinator):
    """Counts the transactions that it aborts by itself."""

    timed_out = 0

    def expire(self) -> None:
        before = self._ongoing
        super().expire()
        self.timed_out += before - self._ongoing

    @property
    def _ongoing(self) -> int:
        return sum(each.phase is Phase.ONGOING for each in self.transactions.values())


class LaneCluster:
    """``version``: the finalised transaction.version. ``now_ms`` is the simulation's clock."""

    def __init__(self, version: int, topics: dict[str, int], now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self.topics = {name: [PartitionLog() for _ in range(count)] for name, count in topics.items()}
        self.deleted: list[PartitionLog] = []
        """Logs of earlier topics of these names: the judge still reads them."""
        self.ids = dict.fromkeys(topics, 1)
        """By topic: its topic id, as a number."""
        self.coordinator_id = 1
        self.coordinator = _Coordinator(version, self._write_marker, self._now_s)
        self.happened: Counter[str] = Counter()

    def _now_s(self) -> float:
        return self._now_ms() / 1000

    def _write_marker(
        self, partition: tuple[str, int], producer_id: int, epoch: int, is_commit: bool
    ) -> None:
        topic, index = partition
        self.topics[topic][index].write_marker(producer_id, epoch, is_commit)

    @staticmethod
    def leader(partition: int) -> int:
        return 1 + partition % len(NODES)

    def make_anew(self, topic: str) -> None:
        """Delete a topic and create it again, with another id and nothing in it."""
        self.happened["topic made anew"] += 1
        for log in self.topics[topic]:
            for producer_id in list(
                log.open
            ):  # else nobody could read what was committed after its first record
                log.write_marker(producer_id, log.producers[producer_id].epoch, is_commit=False)
        self.deleted += self.topics[topic]
        self.topics[topic] = [PartitionLog() for _ in self.topics[topic]]
        self.ids[topic] += 1

    # --- requests ----------------------------------------------------------------------------------------

    def append(
        self,
        node: int,
        topic: str,
        topic_id: int,
        partition: int,
        data: bytes,
        name: str | None,
        version: int,
    ) -> Appended:
        """One batch of a Produce request."""
        if self.ids[topic] != topic_id:
            return Appended(UNKNOWN_TOPIC_ID)
        if self.leader(partition) != node:
            return Appended(NOT_LEADER)
        header, records = read_batch(data)
        if name is not None:
            assert header.attributes & TRANSACTIONAL, "a batch without the bit is seen at once"
            assert header.producer_id >= 0, "a batch without a producer id is seen at once"
            code = self.coordinator.may_append(
                name, header.producer_id, header.epoch, (topic, partition), version
            )
            if code:
                self.happened[f"batch refused with {code}"] += 1
                return Appended(code)
        log = self.topics[topic][partition]
        before = log.duplicates
        appended = log.append(header, records, data)
        self.happened["duplicate recognised"] += log.duplicates - before
        if appended.code:
            self.happened[f"batch refused with {appended.code}"] += 1
        return appended

    def answer(self, node: int, message: RequestMessage) -> Any:
        """What the broker answers to any other request."""
        api, version = int(message.__api_key__), int(message.__version__)
        request: Any = SimpleNamespace(node=node, api=api, version=version, message=message)
        if api == Api.DESCRIBE_PRODUCERS:
            return self._describe(request)
        if api == Api.FIND_COORDINATOR:
            at = NODES[self.coordinator_id]
            return coordinator_found(request, at.id, at.host, at.port)
        if node != self.coordinator_id:
            self.happened["NOT_COORDINATOR"] += 1
            return refused(request, NOT_COORDINATOR)
        if api == Api.INIT_PRODUCER_ID and not message.transactional_id:  # type: ignore[attr-defined]
            raise AssertionError("a lane asks with its transactional id")
        return coordinated(self.coordinator, request)

    def _describe(self, request: Any) -> Any:
        version = request.version
        self.coordinator.expire()

        def partition(topic: str, index: int) -> Any:
            producers = self.topics[topic][index].producers if self.leader(index) == request.node else {}
            state = response_type(Api.DESCRIBE_PRODUCERS, version, "ProducerState")
            return build(
                response_type(Api.DESCRIBE_PRODUCERS, version, "PartitionResponse"),
                partition_index=index,
                error_code=ErrorCode(0 if self.leader(index) == request.node else NOT_LEADER),
                error_message=None,
                active_producers=tuple(
                    build(
                        state,
                        producer_id=producer_id,
                        producer_epoch=each.epoch,
                        last_sequence=each.last_sequence,
                        last_timestamp=0,
                        coordinator_epoch=0,
                        current_txn_start_offset=-1,
                    )
                    for producer_id, each in producers.items()
                ),
            )

        topics = tuple(
            build(
                response_type(Api.DESCRIBE_PRODUCERS, version, "TopicResponse"),
                name=topic.name,
                partitions=tuple(partition(topic.name, int(index)) for index in topic.partition_indexes),
            )
            for topic in request.message.topics
        )
        return build(response_type(Api.DESCRIBE_PRODUCERS, version), throttle_time=timedelta(), topics=topics)

    # --- what a reader of committed records sees -----------------------------------------------------------

    def committed(self) -> Counter[bytes]:
        return Counter(
            record.value
            for log in (*self.deleted, *(log for logs in self.topics.values() for log in logs))
            for record in log.records(0, committed=True)
            if record.value is not None
        )

    def offset(self, name: str) -> int | None:
        """The committed offset of the group of a transactional id."""
        found = self.coordinator.committed.get((f"{GROUP}-{name}", "in", 0))
        return None if found is None else found.offset
