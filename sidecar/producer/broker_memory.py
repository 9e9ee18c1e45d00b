"""BrokerMemory: how long a broker can be counted on to remember a producer id on a partition (rule S4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sidecar.producer.producer_batch import ProducerBatch

IDLE_MS: Final = 1_000.0
"""Within this time after a partition's last answer its next batch may go with others. A broker may be set to forget
within seconds, and a batch that goes alone after a second of silence costs one round trip.
"""
TIMESTAMP_AGE_MS: Final = 300_000.0
"""A batch whose newest record is older than this goes alone. The value is above ``delivery.timeout.ms``, so a backlog
with timestamps of its callers is not sent one batch at a time. It is far below any sensible expiration.
"""


class BrokerMemory:
    """The time for which a broker surely remembers a producer id. Single-threaded: the worker's loop.

    A broker expires a producer id on a partition by the timestamp of the last batch appended under it
    (``ProducerStateManager.removeExpiredProducers``: ``now - lastTimestamp >= producer.id.expiration.ms``). So an id
    whose last batch has old timestamps may be forgotten at the next check. ``timestamp_ms`` is the wall clock.
    """

    __slots__ = ("_timestamp_ms",)

    def __init__(self, timestamp_ms: Callable[[], int]) -> None:
        self._timestamp_ms = timestamp_ms

    def young_from_ms(self) -> float:
        """Wall-clock ms. After a batch whose newest record is older than this, a broker may forget the producer id at
        once.
        """
        return self._timestamp_ms() - TIMESTAMP_AGE_MS

    def lasts_until_ms(self, batch: ProducerBatch, append_time_ms: int, now_ms: float) -> float:
        """Monotonic ms until which the broker surely remembers the id, after it acknowledged the batch just now.

        ``append_time_ms`` is the broker's timestamp of the batch. If it is -1, the records' newest timestamp counts.
        """
        stamp_ms = batch.records.max_timestamp_ms if append_time_ms < 0 else append_time_ms
        return now_ms + IDLE_MS if self._timestamp_ms() - stamp_ms <= TIMESTAMP_AGE_MS else 0.0
