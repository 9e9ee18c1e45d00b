"""BrokerMemory: how long a broker can be counted on to remember a producer id on a partition (rule S4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sidecar.producer.producer_batch import ProducerBatch

IDLE_MS: Final = 1_000.0
"""So long after its last answer a partition's next batch may still go beside others. A broker may be set to forget
within seconds, and what it costs to go alone after a second of silence is one round trip."""
TIMESTAMP_AGE_MS: Final = 300_000.0
"""A batch whose newest record is older goes alone. More than ``delivery.timeout.ms``, so that a backlog of records
stamped by their callers is not sent one batch at a time; far less than any expiration that makes sense."""


class BrokerMemory:
    """The part of a broker's memory that may be relied on. Single-threaded: the worker's loop.

    A broker forgets a producer id on a partition by the timestamp of the last batch it appended under it
    (``ProducerStateManager.removeExpiredProducers``: ``now - lastTimestamp >= producer.id.expiration.ms``), so a batch
    with old timestamps may be forgotten at the next check after it was appended. ``timestamp_ms`` is the wall clock.
    """

    __slots__ = ("_timestamp_ms",)

    def __init__(self, timestamp_ms: Callable[[], int]) -> None:
        self._timestamp_ms = timestamp_ms

    def young_from_ms(self) -> float:
        """Wall ms. A broker that appends a batch whose newest record is older may forget the producer id at once."""
        return self._timestamp_ms() - TIMESTAMP_AGE_MS

    def lasts_until_ms(self, batch: ProducerBatch, append_time_ms: int, now_ms: float) -> float:
        """Until when (monotonic) the broker that has acknowledged the batch just now surely remembers its id.

        ``append_time_ms`` is the broker's own timestamp, if it sent one: then that one counts.
        """
        stamp_ms = batch.records.max_timestamp_ms if append_time_ms < 0 else append_time_ms
        return now_ms + IDLE_MS if self._timestamp_ms() - stamp_ms <= TIMESTAMP_AGE_MS else 0.0
