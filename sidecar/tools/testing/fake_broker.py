"""FakeBroker: a cluster of fake brokers on real sockets, which follows rules.

::

    with FakeBroker({"orders": 3}, nodes=2) as kafka:
        kafka.add(on(Api.PRODUCE, topic="orders").refuse(NOT_LEADER))
        start_client(kafka.bootstrap_servers)
        kafka.move_leader("orders", 0, 2)
        assert [record.value for record in kafka.records("orders")] == [...]

It answers a producer's requests: ApiVersions, Metadata, InitProducerId, Produce, DescribeProducers, and those of
transactions. It reads record batches with its own decoder, refuses any invalid batch (CORRUPT_MESSAGE), and keeps
producer ids and sequences as a real broker does. Of a compacted topic it also serves Fetch. It has no API for groups
of consumers and no replication: read by :meth:`records`.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from math import inf
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sidecar.tools.testing.fake_coordinator import FakeCoordinator
from sidecar.tools.testing.fake_coordinator_answers import (
    NOT_COORDINATOR,
    TRANSACTION_APIS,
    coordinated,
    coordinator_found,
)
from sidecar.tools.testing.fake_log import TRANSACTIONAL, PartitionLog, StoredBatch, StoredRecord
from sidecar.tools.testing.fake_reads import READ_APIS, asked_topic, created, read_answer
from sidecar.tools.testing.fault_server import Channel, Connection, ConnectionLost, Exchange, FaultServer
from sidecar.tools.testing.kafka_frames import Api, Request, build, response_type, write_answer
from sidecar.tools.testing.record_batches import BadBatch, BatchRecord, read_batch
from sidecar.tools.testing.refusals import produced, refused

VERSIONS: Final = {
    Api.PRODUCE: (3, 13),
    Api.FETCH: (4, 11),
    Api.LIST_OFFSETS: (1, 5),
    Api.CREATE_TOPICS: (2, 4),
    Api.DESCRIBE_CONFIGS: (1, 4),
    Api.METADATA: (4, 13),
    Api.API_VERSIONS: (0, 4),
    Api.FIND_COORDINATOR: (0, 6),
    Api.INIT_PRODUCER_ID: (0, 5),
    Api.ADD_PARTITIONS_TO_TXN: (0, 5),
    Api.ADD_OFFSETS_TO_TXN: (0, 4),
    Api.END_TXN: (0, 5),
    Api.TXN_OFFSET_COMMIT: (0, 5),
    Api.DESCRIBE_PRODUCERS: (0, 0),
}
"""Api → lowest and highest version offered, unless set otherwise."""
_UNSUPPORTED_VERSION: Final = 35
_UNKNOWN_TOPIC: Final = 3
_UNKNOWN_TOPIC_ID: Final = 100
_NOT_LEADER: Final = 6
_LEADER_NOT_AVAILABLE: Final = 5
_MESSAGE_TOO_LARGE: Final = 10
_CORRUPT: Final = 2
_INVALID_RECORD: Final = 87
_NO_TIME: Final = timedelta()
FEATURES_VERSION: Final = 3

JudgeRecord = Callable[[str, BatchRecord], str | None]
"""(topic, record) → why the record is invalid, or None."""


class FakeBroker(FaultServer):
    """A cluster of ``nodes`` brokers with ids from 1; leaders are assigned in turn. Thread-safe.

    ``versions`` replaces rows of :data:`VERSIONS`. ``leader_hints``: NOT_LEADER names the leader (KIP-951).
    ``advertised_host``: the brokers' host in metadata, if it is not ``host``. ``transaction_version``: the finalised
    feature, which :attr:`coordinator` follows; it runs at the first node until :meth:`move_coordinator`.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        nodes: int = 1,
        versions: Mapping[int, tuple[int, int]] | None = None,
        message_bytes_max: int = 1_048_588,
        leader_hints: bool = True,
        host: str = "127.0.0.1",
        advertised_host: str | None = None,
        receive_buffer_bytes: int | None = None,
        transaction_version: int = 2,
    ) -> None:
        super().__init__(
            host=host, advertised_host=advertised_host, receive_buffer_bytes=receive_buffer_bytes
        )
        self.message_bytes_max = message_bytes_max
        self.leader_hints = leader_hints
        self.throttle_ms = 0
        """Sent with every answer to a Produce request."""
        self.judge_record: JudgeRecord | None = None
        self.bad_batches: list[str] = []
        """Faults of invalid batches: a bug of the producer, or damage on the way."""
        self.next_identity: tuple[int, int] | None = None
        """(producer id, epoch) of the next InitProducerId answer; taken once."""
        self.producer_expiration_ms = inf
        """``producer.id.expiration.ms``: how old a producer id's last batch may be, by its records' timestamps.
        Checked before each request that needs it, so nothing is kept longer.
        """
        self._versions = {**VERSIONS, **(versions or {})}
        self._nodes = list(range(1, nodes + 1))
        self._topics: dict[str, list[PartitionLog]] = {}
        self._topic_ids: dict[str, uuid.UUID] = {}
        self._producer_ids = 1000
        self.coordinator = FakeCoordinator(transaction_version, self._write_marker)
        self._coordinator_node = self._nodes[0]
        for name, count in (topics or {}).items():
            self.create_topic(name, count)

    # --- scripting -----------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self.address(node) for node in self._nodes)

    def start(self) -> None:
        for node in self._nodes:
            self.listen(node)

    def create_topic(self, name: str, partitions: int = 1, *, is_compacted: bool = False) -> None:
        """Create a topic with a new id, or add partitions to an existing one."""
        with self._lock:
            if name not in self._topics:
                self._topics[name] = []
                self._topic_ids[name] = uuid.uuid4()
                self.topic_names[self._topic_ids[name]] = name
            logs = self._topics[name]
            while len(logs) < partitions:
                logs.append(PartitionLog(is_compacted=is_compacted))
                logs[-1].leader = self._nodes[(len(logs) - 1) % len(self._nodes)]

    def delete_topic(self, name: str) -> None:
        with self._lock:
            del self._topics[name]
            self.topic_names.pop(self._topic_ids.pop(name))

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        """Make ``node`` the leader from now on (-1: none), under the next leader epoch."""
        with self._lock:
            log = self._topics[topic][partition]
            log.leader = node
            log.leader_epoch += 1

    def move_coordinator(self, node: int) -> None:
        """From now on the other nodes answer requests to the coordinator with NOT_COORDINATOR."""
        with self._lock:
            self._coordinator_node = node

    def _write_marker(
        self, partition: tuple[str, int], producer_id: int, epoch: int, is_commit: bool
    ) -> None:
        topic, index = partition
        if topic in self._topics:
            self._topics[topic][index].write_marker(producer_id, epoch, is_commit)

    def forget_producers(self, topic: str, partition: int) -> None:
        """Forget the producer ids, as after ``producer.id.expiration.ms``; the broker does not report that."""
        with self._lock:
            self._topics[topic][partition].producers.clear()

    def knows_producers(self, topic: str, partition: int = 0) -> bool:
        """Whether the broker knows any producer id there."""
        with self._lock:
            log = self._topics[topic][partition]
            self._expire_producers(log)
            return bool(log.producers)

    def delete_records(self, topic: str, partition: int) -> None:
        """Delete all records: the log then begins at its end."""
        with self._lock:
            log = self._topics[topic][partition]
            log.start_offset = log.end_offset

    def records(
        self, topic: str, partition: int | None = None, *, committed: bool = False
    ) -> list[StoredRecord]:
        """The records that a consumer would read, in the order of offsets, one partition after the other.
        ``committed``: with isolation.level=read_committed.
        """
        with self._lock:
            self.coordinator.expire()
            return [
                record
                for index, log in enumerate(self._topics[topic])
                if partition in (None, index)
                for record in log.records(index, committed=committed)
            ]

    def batches(self, topic: str, partition: int = 0) -> list[StoredBatch]:
        """The batches that ``kafka-dump-log`` would show."""
        with self._lock:
            return list(self._topics[topic][partition].batches)

    def duplicates(self, topic: str, partition: int = 0) -> int:
        """The number of batches that were sent again and recognised."""
        with self._lock:
            return self._topics[topic][partition].duplicates

    # --- answers -------------------------------------------------------------------------------------------

    def open_channel(self, connection: Connection) -> Channel:
        return _Local(self, connection.node)

    def answer(self, node: int, exchange: Exchange) -> bytes | None:
        """Carry out one request at ``node``; None when it has no answer. Raises ConnectionLost."""
        request = exchange.request
        low, high = self._versions.get(request.api, (0, -1))
        if not low <= request.version <= high:
            if request.api != Api.API_VERSIONS:
                raise ConnectionLost(f"api {request.api} v{request.version} is not offered here")
            return write_answer(request.correlation_id, self._api_versions(0, _UNSUPPORTED_VERSION))
        refusal = exchange.refusal
        text = exchange.rule.text if exchange.rule is not None else None
        if request.api == Api.PRODUCE:
            entity, failed = self._produce(node, exchange)
            if request.acks == 0:
                if failed:
                    raise ConnectionLost("an acks=0 request that failed ends its connection")
                return None
        elif request.api == Api.API_VERSIONS:
            entity = self._api_versions(request.version, refusal or 0)
        elif refusal is not None:
            entity = refused(request, refusal, text)
            if request.api == Api.METADATA:
                entity = self._with_brokers(entity)
        elif request.api == Api.METADATA:
            entity = self._metadata(request)
        elif request.api == Api.INIT_PRODUCER_ID and request.message.transactional_id is None:
            entity = self._init_producer_id(request)
        elif request.api in READ_APIS:
            with self._lock:
                self.coordinator.expire()
                entity = read_answer(request, self._topics.get(asked_topic(request)))
        elif request.api == Api.CREATE_TOPICS:
            (wanted,) = request.message.topics
            is_compacted = any(each.value == "compact" for each in wanted.configs)
            self.create_topic(wanted.name, int(wanted.num_partitions), is_compacted=is_compacted)
            entity = created(request)
        elif request.api in TRANSACTION_APIS:
            with self._lock:
                entity = self._transactional(node, request)
        else:
            entity = self._describe_producers(request)
        return write_answer(request.correlation_id, entity)

    def _api_versions(self, version: int, code: int) -> Any:
        row = response_type(Api.API_VERSIONS, version, "ApiVersion")
        rows = tuple(
            row(api_key=api, min_version=low, max_version=high) for api, (low, high) in self._versions.items()
        )
        kind = response_type(Api.API_VERSIONS, version)
        features: tuple[Any, ...] = ()
        if version >= FEATURES_VERSION:
            level = self.coordinator.transaction_version
            feature = response_type(Api.API_VERSIONS, version, "FinalizedFeatureKey")
            features = (
                feature(name="transaction.version", max_version_level=level, min_version_level=level),
            )
        return build(
            kind,
            error_code=ErrorCode(code),
            api_keys=rows,
            throttle_time=_NO_TIME,
            finalized_features_epoch=1,
            finalized_features=features,
        )

    def _transactional(self, node: int, request: Request) -> Any:
        """Answer a request to a coordinator, or for one."""
        at = self._coordinator_node
        if request.api == Api.FIND_COORDINATOR:
            return coordinator_found(request, at, self._advertised_host, self._listeners[at].port)
        if node != at:
            return refused(request, NOT_COORDINATOR)
        return coordinated(self.coordinator, request)

    def _with_brokers(self, entity: Any) -> Any:
        return dataclasses.replace(entity, brokers=self._brokers(type(entity).__version__))

    def _brokers(self, version: int) -> tuple[Any, ...]:
        kind = response_type(Api.METADATA, version, "MetadataResponseBroker")
        return tuple(
            build(kind, node_id=node, host=self._advertised_host, port=self._listeners[node].port, rack=None)
            for node in self._nodes
        )

    def _metadata(self, request: Request) -> Any:
        version = request.version
        with self._lock:
            asked = request.message.topics
            names: list[str]
            if asked is None:
                names = list(self._topics)
            else:
                names = [
                    each.name or self.topic_names.get(getattr(each, "topic_id", None) or uuid.UUID(int=0), "")
                    for each in asked
                ]
            topics = tuple(self._topic_metadata(version, name) for name in names)
        kind = response_type(Api.METADATA, version)
        return build(
            kind,
            throttle_time=_NO_TIME,
            brokers=self._brokers(version),
            cluster_id="fake",
            controller_id=self._nodes[0],
            topics=topics,
            error_code=ErrorCode(0),
        )

    def _topic_metadata(self, version: int, name: str) -> Any:
        kind = response_type(Api.METADATA, version, "MetadataResponseTopic")
        logs = self._topics.get(name)
        if logs is None:
            return build(kind, error_code=ErrorCode(_UNKNOWN_TOPIC), name=name, topic_id=None, partitions=())
        part = response_type(Api.METADATA, version, "MetadataResponsePartition")
        partitions = tuple(
            build(
                part,
                error_code=ErrorCode(0 if log.leader >= 0 else _LEADER_NOT_AVAILABLE),
                partition_index=index,
                leader_id=log.leader,
                leader_epoch=log.leader_epoch,
                replica_nodes=tuple(self._nodes),
                isr_nodes=tuple(self._nodes),
                offline_replicas=(),
            )
            for index, log in enumerate(logs)
        )
        return build(
            kind, error_code=ErrorCode(0), name=name, topic_id=self._topic_ids[name], partitions=partitions
        )

    def _init_producer_id(self, request: Request) -> Any:
        with self._lock:
            self._producer_ids += 1
            producer_id, epoch = self.next_identity or (self._producer_ids, 0)
            self.next_identity = None
        kind = response_type(Api.INIT_PRODUCER_ID, request.version)
        return build(
            kind,
            throttle_time=_NO_TIME,
            error_code=ErrorCode(0),
            producer_id=producer_id,
            producer_epoch=epoch,
        )

    def _produce(self, node: int, exchange: Exchange) -> tuple[Any, bool]:
        request = exchange.request
        version, failed, topics = request.version, False, []
        with self._lock:
            for topic in request.message.topic_data:
                name = topic.name if version < 13 else self.topic_names.get(topic.topic_id)
                parts = []
                for each in topic.partition_data:
                    part = self._append(node, exchange, name, int(each.index), bytes(each.records or b""))
                    failed = failed or part.error_code != ErrorCode.none
                    parts.append(part)
                topics.append(
                    build(
                        response_type(Api.PRODUCE, version, "TopicProduceResponse"),
                        name=name,
                        topic_id=getattr(topic, "topic_id", None),
                        partition_responses=tuple(parts),
                    )
                )
        kind = response_type(Api.PRODUCE, version)
        throttle = timedelta(milliseconds=self.throttle_ms)
        return build(kind, responses=tuple(topics), throttle_time=throttle), failed

    def _append(self, node: int, exchange: Exchange, name: str | None, partition: int, data: bytes) -> Any:
        version, rule, refusal = exchange.request.version, exchange.rule, exchange.refusal
        if refusal is not None and rule is not None and rule.means(name, partition):
            return produced(version, partition, refusal, text=rule.text)
        logs = self._topics.get(name) if name is not None else None
        if logs is None or not 0 <= partition < len(logs):
            return produced(version, partition, _UNKNOWN_TOPIC if version < 13 else _UNKNOWN_TOPIC_ID)
        assert name is not None
        log = logs[partition]
        if log.leader != node:
            hint = (log.leader, log.leader_epoch) if self.leader_hints and log.leader >= 0 else None
            return produced(version, partition, _NOT_LEADER, leader=hint)
        if len(data) > self.message_bytes_max:
            return produced(version, partition, _MESSAGE_TOO_LARGE)
        try:
            header, records = read_batch(data)
        except BadBatch as error:
            self.bad_batches.append(f"{name}-{partition}: {error}")
            return produced(version, partition, _CORRUPT)
        if self.judge_record is not None:
            texts = [(index, self.judge_record(name, record)) for index, record in enumerate(records)]
            bad = tuple((index, text) for index, text in texts if text is not None)
            if bad:
                return produced(version, partition, _INVALID_RECORD, record_errors=bad)
        self._expire_producers(log)
        if header.attributes & TRANSACTIONAL and header.producer_id >= 0:
            transactional_id = exchange.request.message.transactional_id
            code = self.coordinator.may_append(
                transactional_id, header.producer_id, header.epoch, (name, partition), version
            )
            if code:
                return produced(version, partition, code)
        code, base_offset = log.append(header, records, data)
        return produced(version, partition, code, base_offset, log_start_offset=log.start_offset)

    def _expire_producers(self, log: PartitionLog) -> None:
        if self.producer_expiration_ms < inf:
            log.expire_producers(time.time() * 1000 - self.producer_expiration_ms)

    def _describe_producers(self, request: Request) -> Any:
        def named(name: str) -> Any:
            return response_type(Api.DESCRIBE_PRODUCERS, request.version, name)

        topics = []
        with self._lock:
            for topic in request.message.topics:
                parts = []
                for index in topic.partition_indexes:
                    logs = self._topics.get(topic.name, [])
                    is_there = int(index) < len(logs)
                    if is_there:
                        self._expire_producers(logs[int(index)])
                    active = tuple(
                        build(
                            named("ProducerState"),
                            producer_id=producer_id,
                            producer_epoch=entry.epoch,
                            last_sequence=entry.last_sequence,
                            last_timestamp=entry.last_timestamp_ms,
                            coordinator_epoch=-1,
                            current_txn_start_offset=-1,
                        )
                        for producer_id, entry in (logs[int(index)].producers.items() if is_there else ())
                    )
                    parts.append(
                        build(
                            named("PartitionResponse"),
                            partition_index=index,
                            error_code=ErrorCode(0 if is_there else _UNKNOWN_TOPIC),
                            error_message=None,
                            active_producers=active,
                        )
                    )
                topics.append(build(named("TopicResponse"), name=topic.name, partitions=tuple(parts)))
        kind = response_type(Api.DESCRIBE_PRODUCERS, request.version)
        return build(kind, throttle_time=_NO_TIME, topics=tuple(topics))


class _Local(Channel):
    """The channel to a fake broker, which is a direct call."""

    def __init__(self, broker: FakeBroker, node: int) -> None:
        self._broker = broker
        self._node = node

    def submit(self, exchange: Exchange) -> None:
        try:
            answer = self._broker.answer(self._node, exchange)
        except ConnectionLost:
            exchange.lose()
            raise
        if answer is not None:
            exchange.complete(answer)

    def close(self) -> None:
        pass
