"""TopicSettings: the settings of one topic, after the patterns of the configuration were applied.

Sans-IO: the accumulator and the rooms of the worker read it, on the worker's loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from sidecar.producer.lanes import ACKS_ALL, IDEMPOTENT_LANE, PLAIN_LANE

if TYPE_CHECKING:
    from sidecar.producer.config import ProducerConfig


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Immutable; one object per topic. Times in ms, sizes in bytes; a rate of None is no limit."""

    acks: int
    lane: int
    batch_size: int
    linger_ms: float
    delivery_timeout_ms: float
    compression_type: str
    compression_level: int | None
    """None: the codec's own default."""
    partitioner: str
    rate_bytes: int | None = None
    """Payload bytes per second that may be accepted, over all workers."""
    rate_records: int | None = None
    is_paused: bool = False
    """An operator paused the topic: its records that were never in a request wait. Their delivery timeout
    still runs.
    """

    @classmethod
    def of(cls, config: ProducerConfig, own: Mapping[str, Any]) -> TopicSettings:
        """``own``: validated values of the pattern that matched, by their names in the configuration."""
        acks = int(own.get("acks", config.acks))
        codec = str(own.get("compression.type", config.compression_type))
        idempotent = config.enable_idempotence and acks == ACKS_ALL
        return cls(
            acks=acks,
            lane=IDEMPOTENT_LANE if idempotent else PLAIN_LANE,
            # A request and its buffer hold at least one whole batch (Kafka's max.request.size limits batches, too).
            batch_size=max(1, min(own.get("batch.size", config.batch_size), config.max_request_size)),
            linger_ms=own.get("linger.ms", config.linger_ms),
            delivery_timeout_ms=own.get("delivery.timeout.ms", config.delivery_timeout_ms),
            compression_type=codec,
            compression_level=own.get(f"compression.{codec}.level", config.level_of(codec)),
            partitioner=own.get("partitioner", config.partitioner),
            rate_bytes=own.get("rate"),
            rate_records=own.get("records.per.second"),
        )


class TopicRules:
    """Rules of ``[topics."PATTERN"]``: the first pattern that matches a topic, in the order of the file, applies to
    it.
    """

    def __init__(
        self,
        config: ProducerConfig,
        patterns: Mapping[str, Mapping[str, Any]] | None = None,
        paused: Iterable[str] = (),
    ) -> None:
        """``paused``: names of topics whose records are held back."""
        self._config = config
        self._paused = frozenset(paused)
        self._patterns = [(pattern, dict(own)) for pattern, own in (patterns or {}).items()]
        self._default = TopicSettings.of(config, {})
        self._found: dict[str, TopicSettings] = {}

    def of(self, topic: str) -> TopicSettings:
        """Settings of a topic. Resolved at its first call, and the same object until :meth:`forget`."""
        found = self._found.get(topic)
        if found is None:
            own = next((own for pattern, own in self._patterns if fnmatchcase(topic, pattern)), None)
            found = self._default if own is None else TopicSettings.of(self._config, own)
            if topic in self._paused:
                found = replace(found, is_paused=True)
            self._found[topic] = found
        return found

    def forget(self, topic: str) -> None:
        """Drop a topic that is no longer in use."""
        self._found.pop(topic, None)
