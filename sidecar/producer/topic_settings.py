"""TopicSettings: what holds for one topic, once the patterns of the configuration have been looked through."""

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
    """Its records that were never in a request wait, by an operator's order; their time goes on."""

    @classmethod
    def of(cls, config: ProducerConfig, own: Mapping[str, Any]) -> TopicSettings:
        """``own``: validated values of the pattern that matched, by their names in the configuration."""
        acks = int(own.get("acks", config.acks))
        codec = str(own.get("compression.type", config.compression_type))
        idempotent = config.enable_idempotence and acks == ACKS_ALL
        return cls(
            acks=acks,
            lane=IDEMPOTENT_LANE if idempotent else PLAIN_LANE,
            # A request, and so its buffer, holds a whole batch at least (Kafka's max.request.size caps batches, too).
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
    """``[topics."PATTERN"]``: the first pattern, in the order of the file, that matches a topic counts for it."""

    def __init__(
        self,
        config: ProducerConfig,
        patterns: Mapping[str, Mapping[str, Any]] | None = None,
        paused: Iterable[str] = (),
    ) -> None:
        """``paused``: names of topics of which nothing is sent."""
        self._config = config
        self._paused = frozenset(paused)
        self._patterns = [(pattern, dict(own)) for pattern, own in (patterns or {}).items()]
        self._default = TopicSettings.of(config, {})
        self._found: dict[str, TopicSettings] = {}

    def of(self, topic: str) -> TopicSettings:
        """Resolved at the first call for a topic, and the same object until :meth:`forget`."""
        found = self._found.get(topic)
        if found is None:
            own = next((own for pattern, own in self._patterns if fnmatchcase(topic, pattern)), None)
            found = self._default if own is None else TopicSettings.of(self._config, own)
            if topic in self._paused:
                found = replace(found, is_paused=True)
            self._found[topic] = found
        return found

    def forget(self, topic: str) -> None:
        """Nothing uses the topic any more."""
        self._found.pop(topic, None)
