"""Core: the objects that decide what is sent, wired as the worker has them. No clock, no sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from sidecar.common.backoff import ExponentialBackoff
from sidecar.producer.broker_memory import BrokerMemory
from sidecar.producer.producer_id import ProducerIds
from sidecar.producer.record_accumulator import RecordAccumulator
from sidecar.producer.request_capacity import Descriptors, RequestBufferPool, RequestCapacity
from sidecar.producer.sender import Sender

if TYPE_CHECKING:
    from sidecar.kernel import BatchRecords
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.topic_settings import TopicRules


class Core(NamedTuple):
    """The parts of the producer core: producer ids, accumulator, request buffers, sender. Single-threaded."""

    ids: ProducerIds
    accumulator: RecordAccumulator
    buffers: RequestBufferPool
    sender: Sender

    @classmethod
    def build(
        cls,
        config: ProducerConfig,
        descriptors: Descriptors,
        *,
        random: Callable[[], float],
        timestamp_ms: Callable[[], int],
        rules: TopicRules | None = None,
        request_buffers_bytes: int,
        records_factory: Callable[[], BatchRecords] | None = None,
    ) -> Core:
        """``random`` in [0, 1) spreads retries; ``timestamp_ms`` is the wall clock, Unix epoch.

        ``records_factory`` as in RecordAccumulator. Raises ValueError when two largest requests do not fit into
        ``request_buffers_bytes``.
        """
        backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        ids = ProducerIds(backoff=backoff, memory=BrokerMemory(timestamp_ms))
        accumulator = RecordAccumulator(config, ids, rules=rules, records_factory=records_factory)
        buffers = RequestBufferPool(
            max_request_size=config.max_request_size, limit_bytes=request_buffers_bytes
        )
        sender = Sender(
            config, accumulator, ids, capacity=RequestCapacity(buffers, descriptors), backoff=backoff
        )
        return cls(ids, accumulator, buffers, sender)
