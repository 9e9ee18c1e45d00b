"""CommittedRecords: answers which record of a key was committed last in a compacted topic, which it can make.

Clients keep in such a topic how far they have come. The controller asks the brokers over connections of its own: no
batch of a worker waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakValueDictionary

from sidecar.common.errors import Code, Refused, classify
from sidecar.common.model import Node
from sidecar.controller.cluster.committed_keys import CommittedKeys
from sidecar.controller.event_wait import happens_within
from sidecar.metadata.answer import MetadataAnswer, PartitionAnswer, TopicAnswer
from sidecar.net.kafka.cluster_links import ClusterLinks, OnState
from sidecar.net.kafka.connector import LinkError
from sidecar.protocol.connection_states import ConnectionConfig
from sidecar.protocol.fetch import (
    EARLIEST,
    LATEST,
    fetch_request,
    offset_request,
    parse_fetch,
    parse_offset,
    partition_of_key,
)
from sidecar.protocol.fetched_batches import FetchedRecord
from sidecar.protocol.messages import ApiKey, ProtocolError, RequestMessage
from sidecar.protocol.topic_admin import (
    CLEANUP_POLICY,
    cleanup_policy_request,
    create_topic_request,
    parse_cleanup_policy,
    parse_create_topic,
)

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock

log = logging.getLogger(__name__)

WAIT_MS_MAX: Final = 30_000.0
FETCH_BYTES: Final = 1 << 20
"""What one answer may have: reading it takes some 30 ms of the controller's loop."""
RETRY_S: Final = 0.1
PARTITIONS_KEPT_MAX: Final = 32
PARTITIONS: Final = 16
"""Of a topic that is made here."""
REPLICAS: Final = 3
IN_SYNC: Final = 2
SETTINGS: Final = {
    CLEANUP_POLICY: "compact",
    # A segment is compacted once it is closed: small ones keep short what is read after a start of the daemon.
    "segment.bytes": str(16 << 20),
    "segment.ms": str(24 * 3_600_000),
}
TOPIC_ALREADY_EXISTS: Final = 36
"""Somebody else was faster."""
_NOT_THERE: Final = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION})
_NO_RIGHT: Final = frozenset({Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED})

AskTopics = Callable[[float, list[str]], Awaitable[MetadataAnswer]]


class Found(NamedTuple):
    """``partition``: that of the key. ``record`` is None for a key that has none."""

    partition: int
    record: FetchedRecord | None


class _Again(Exception):
    """Why the question is asked again."""


class _Kept(NamedTuple):
    topic_id: object
    leader_epoch: int
    keys: CommittedKeys


class CommittedRecords:
    """Belongs to the controller's loop. ``ask_topics(timeout_ms, names)`` asks the cluster; it creates no topic."""

    def __init__(
        self,
        make_links: Callable[[OnState], ClusterLinks],
        ask_topics: AskTopics,
        clock: MonotonicClock,
    ) -> None:
        self._make_links = make_links
        self._links: ClusterLinks | None = None
        """Made by the first question: most daemons have none."""
        self._ask_topics = ask_topics
        self._clock = clock
        self._changed = asyncio.Event()
        self._kept: OrderedDict[tuple[str, int], _Kept] = OrderedDict()
        self._locks: WeakValueDictionary[tuple[str, int], asyncio.Lock] = WeakValueDictionary()
        """Two questions of one partition would both read on from the same position."""

    def close(self) -> None:
        if self._links is not None:
            self._links.close_all()

    def use(self, config: ConnectionConfig) -> None:
        if self._links is not None:
            self._links.use(config)

    async def last(self, topic: str, key: bytes, max_wait_ms: float, *, creates: bool) -> Found:
        """The last committed record of ``key``. Raises Refused, also when that is not known in ``max_wait_ms``."""
        deadline_ms = self._clock.now_ms() + min(max_wait_ms, WAIT_MS_MAX)
        while True:
            try:
                return await self._ask(topic, key, deadline_ms, creates=creates)
            except (_Again, LinkError, ProtocolError) as error:
                why = str(error)
            if self._clock.now_ms() + RETRY_S * 1e3 >= deadline_ms:
                raise Refused(
                    "KAFKA_UNREACHABLE", f"The last record in topic {topic} could not be read: {why}"
                )
            await asyncio.sleep(RETRY_S)

    async def _ask(self, topic: str, key: bytes, deadline_ms: float, *, creates: bool) -> Found:
        answer = await self._ask_topics(max(1.0, deadline_ms - self._clock.now_ms()), [topic])
        found = next((each for each in answer.topics if each.name == topic), None)
        code = Code.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error_code
        if code in _NOT_THERE:
            if not creates:
                raise Refused("INVALID_TOPIC", f"Topic {topic} is not in Kafka; {_make_it(topic, answer)}")
            await self._create(topic, answer, deadline_ms)
            raise _Again(f"topic {topic} was just made.")
        _check(topic, code)
        assert found is not None
        partition = partition_of_key(key, max(1, len(found.partitions)))
        row = next((each for each in found.partitions if each.partition == partition), None)
        if row is None:
            raise _Again("its partition of the key is not known.")
        leader = next((node for node in answer.brokers if node.id == row.leader), None)
        if leader is None:
            raise _Again(f"partition {partition} has no leader.")
        lock = self._locks.get((topic, partition)) or asyncio.Lock()
        self._locks[topic, partition] = lock
        async with lock:
            await self._check_policy(topic, leader, deadline_ms)
            keys = await self._read(found, row, leader, key, deadline_ms)
        return Found(partition, keys.last(key))

    async def _read(
        self, topic: TopicAnswer, row: PartitionAnswer, leader: Node, key: bytes, deadline_ms: float
    ) -> CommittedKeys:
        """Read what has come since the last question, or all. Of a large partition only ``key`` is kept."""
        place = (topic.name, row.partition)
        kept = self._kept.pop(place, None)
        is_same = kept is not None and topic.topic_id is not None and kept.topic_id == topic.topic_id
        if kept is not None and is_same and row.leader_epoch < kept.leader_epoch:
            self._kept[place] = kept
            raise _Again(f"partition {row.partition} had a newer leader before than the broker knows.")
        # Another leader, or topic, may lack what an earlier one had.
        if kept is None or kept[:2] != (topic.topic_id, row.leader_epoch):
            begin = await self._offset(topic.name, row, leader, EARLIEST, deadline_ms)
            kept = _Kept(topic.topic_id, row.leader_epoch, CommittedKeys(begin))
        keys = kept.keys
        end = await self._offset(topic.name, row, leader, LATEST, deadline_ms)
        if end < keys.position:
            raise _Again(
                f"partition {row.partition} ends at offset {end}, and was read up to {keys.position}."
            )
        while keys.position < end:
            request = partial(
                fetch_request,
                topic=topic.name,
                partition=row.partition,
                offset=keys.position,
                bytes_max=FETCH_BYTES,
            )
            answer = parse_fetch(await self._send(leader, ApiKey.FETCH, request, deadline_ms))
            _check(topic.name, answer.error_code)
            if not keys.read(answer.records):
                raise _Again(f"the broker has nothing at offset {keys.position} of {end}.")
            if not keys.is_small:
                keys.keep_only(key)
            if self._clock.now_ms() >= deadline_ms and keys.position < end:
                raise _Again(f"partition {row.partition} was read up to offset {keys.position} of {end}.")
        if keys.is_whole:
            self._kept[place] = kept
            while len(self._kept) > PARTITIONS_KEPT_MAX:
                self._kept.popitem(last=False)
        return keys

    async def _offset(
        self, topic: str, row: PartitionAnswer, leader: Node, which: int, deadline_ms: float
    ) -> int:
        request = partial(offset_request, topic=topic, partition=row.partition, which=which)
        code, offset = parse_offset(await self._send(leader, ApiKey.LIST_OFFSETS, request, deadline_ms))
        _check(topic, code)
        return offset

    async def _check_policy(self, topic: str, node: Node, deadline_ms: float) -> None:
        """A topic that forgets by age would forget a key's last record."""
        request = partial(cleanup_policy_request, topic=topic)
        code, policy = parse_cleanup_policy(
            await self._send(node, ApiKey.DESCRIBE_CONFIGS, request, deadline_ms)
        )
        if code in _NO_RIGHT:
            raise Refused(
                "TOPIC_AUTHORIZATION_FAILED",
                f"The daemon may not read the settings of topic {topic}: give it DESCRIBE_CONFIGS on it.",
            )
        _check(topic, code)
        if policy != "compact":
            raise Refused(
                "NOT_COMPACTED",
                f"Topic {topic} has {CLEANUP_POLICY}={policy}, by which it would forget a key's last record; set "
                f"compact: kafka-configs.sh --alter --topic {topic} --add-config {CLEANUP_POLICY}=compact.",
            )

    async def _create(self, topic: str, answer: MetadataAnswer, deadline_ms: float) -> None:
        if not answer.brokers:
            raise _Again("no broker is known.")
        replicas = min(REPLICAS, len(answer.brokers))
        settings = {**SETTINGS, "min.insync.replicas": str(min(IN_SYNC, replicas))}
        request = partial(
            create_topic_request, topic=topic, partitions=PARTITIONS, replicas=replicas, settings=settings
        )
        code, text = parse_create_topic(
            await self._send(answer.brokers[0], ApiKey.CREATE_TOPICS, request, deadline_ms)
        )
        if not code:
            log.info("Topic %s was not there, and is made: compacted, %d replicas.", topic, replicas)
        elif code != TOPIC_ALREADY_EXISTS:
            row = classify(code)
            if row.retriable:
                raise _Again(f"it is not there and cannot be made: {row.name}: {text or row.text}")
            raise Refused(
                "INVALID_TOPIC",
                f"Topic {topic} is not in Kafka and cannot be made ({row.name}: {text or row.text}); "
                f"{_make_it(topic, answer)}",
            )

    async def _send(
        self,
        node: Node,
        api: ApiKey,
        message_of: Callable[[int], RequestMessage],
        deadline_ms: float,
    ) -> Any:
        """The answer of ``node``. Raises LinkError and ProtocolError."""
        if self._links is None:
            self._links = self._make_links(lambda node_id, is_connected, error: self._changed.set())
        while (link := self._links.ready(node)) is None:
            now_ms = self._clock.now_ms()
            if now_ms >= deadline_ms:
                raise LinkError(
                    self._links.last_error(node.id) or f"{node.host}:{node.port} does not answer."
                )
            self._changed.clear()
            wait_ms = min(deadline_ms - now_ms, self._links.next_attempt_delay_ms(node.id, now_ms) + 1)
            await happens_within(self._changed, wait_ms / 1e3)
        version = link.version(api)
        if version is None:
            raise Refused(
                "UNSUPPORTED_VERSION", f"{node.host}:{node.port} has no {api.name} that is known here."
            )
        left_ms = max(1.0, deadline_ms - self._clock.now_ms())
        return await link.request(message_of(version), timeout_ms=left_ms)


def _check(topic: str, code: int) -> None:
    """Raises Refused for an error that stays, and _Again for one that passes."""
    if code in _NO_RIGHT:
        raise Refused(
            "TOPIC_AUTHORIZATION_FAILED", f"The daemon may not read topic {topic}: give it READ on it."
        )
    if code:
        row = classify(code)
        raise _Again(f"{row.name}: {row.text}")


def _make_it(topic: str, answer: MetadataAnswer) -> str:
    replicas = min(REPLICAS, max(1, len(answer.brokers)))
    return (
        f"make it: kafka-topics.sh --create --topic {topic} --partitions {PARTITIONS} --replication-factor {replicas} "
        f"--config {CLEANUP_POLICY}=compact --config min.insync.replicas={min(IN_SYNC, replicas)}."
    )
