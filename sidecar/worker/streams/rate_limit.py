"""RateLimit: how long the streams of one topic are held when its rate is used up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sidecar.producer.topic_settings import TopicSettings
from sidecar.shm.rate_words import RateClock, find_clock

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment

BURST_MS = 100.0
"""The burst that may be taken at once after silence, as time at the full rate."""


class _Bucket:
    """One rate in units per second on one clock."""

    __slots__ = ("_clock", "_rate", "_unpaid_us", "text")

    def __init__(self, clock: RateClock, rate: float, text: str) -> None:
        self._clock = clock
        self._rate = rate
        self._unpaid_us = 0.0
        """The cost of earlier charges beyond whole microseconds: above 10^6 a second each costs less than one."""
        self.text = text

    def ready_at_ms(self) -> float:
        return self._clock.paid_at_us() / 1000 - BURST_MS

    def charge(self, units: int, now_ms: float) -> None:
        cost_us = units / self._rate * 1e6 + self._unpaid_us
        whole_us = int(cost_us)
        self._unpaid_us = cost_us - whole_us
        if whole_us:
            self._clock.charge(whole_us, int(now_ms * 1000))


class _Buckets(NamedTuple):
    """The buckets of one topic or of one name of clients."""

    owner: str
    """In the sentence that a held stream is given."""
    clock_prefix: str
    name: str
    workers: int
    find_clock: Callable[[str], RateClock | None]

    def make(self, key: str, rate: int | None, unit: str) -> _Bucket | None:
        """The bucket of one setting; None without a rate. Without a clock in the segment, a part of the rate alone."""
        if rate is None:
            return None
        text = f"{self.owner} is at its {key} of {rate} {unit}"
        # The rate is part of the name: what is owed at one rate says nothing about another.
        clock = self.find_clock(f"{self.clock_prefix}{key} {rate} {self.name}")
        if clock is None:
            return _Bucket(RateClock(bytearray(8), 0), rate / self.workers, text)
        return _Bucket(clock, rate, text)


class RateLimits:
    """The rate of each topic, all ``workers`` together: the clocks stand in the segment."""

    def __init__(self, segment: Segment, workers: int) -> None:
        self._segment = segment
        self._workers = workers

    def of(self, topic: str, settings: TopicSettings) -> RateLimit | None:
        """None for a topic without a rate."""
        return RateLimit.of(
            topic, settings, workers=self._workers, find_clock=partial(find_clock, self._segment)
        )


class RateLimit:
    """The buckets of a topic: bytes, records, or both. Belongs to the worker's loop."""

    __slots__ = ("_bytes", "_records")

    def __init__(self, *, rate_bytes: _Bucket | None, rate_records: _Bucket | None) -> None:
        self._bytes = rate_bytes
        self._records = rate_records

    @classmethod
    def of(
        cls,
        topic: str,
        settings: TopicSettings,
        *,
        workers: int,
        find_clock: Callable[[str], RateClock | None],
    ) -> RateLimit | None:
        """None for a topic without a rate. ``find_clock``: the clock that all workers share, by name.

        With no such clock left each worker keeps to its part of the rate alone.
        """

        return cls._of(
            _Buckets(f"topic {topic}", "", topic, workers, find_clock),
            rate_bytes=("rate", settings.rate_bytes),
            rate_records=("records.per.second", settings.rate_records),
        )

    @classmethod
    def of_client(
        cls,
        name: str,
        *,
        rate_bytes: int | None,
        rate_records: int | None,
        workers: int,
        find_clock: Callable[[str], RateClock | None],
    ) -> RateLimit | None:
        """For all clients of one name; None without a rate. ``find_clock`` as in :meth:`of`."""
        return cls._of(
            _Buckets(f"client {name}", "client ", name, workers, find_clock),
            rate_bytes=("bytes.per.second", rate_bytes),
            rate_records=("records.per.second", rate_records),
        )

    @classmethod
    def _of(
        cls, buckets: _Buckets, *, rate_bytes: tuple[str, int | None], rate_records: tuple[str, int | None]
    ) -> RateLimit | None:
        of_bytes = buckets.make(*rate_bytes, "bytes per second")
        of_records = buckets.make(*rate_records, "records per second")
        if of_bytes is None and of_records is None:
            return None
        return cls(rate_bytes=of_bytes, rate_records=of_records)

    def refusal(self, now_ms: float) -> tuple[str, float] | None:
        """Why nothing may be taken now, and the monotonic ms at which to look again; None when it may."""
        for bucket in (self._bytes, self._records):
            if bucket is not None:
                ready_at_ms = bucket.ready_at_ms()
                if ready_at_ms > now_ms:
                    return bucket.text, ready_at_ms
        return None

    def charge(self, count: int, payload_bytes: int, now_ms: float) -> None:
        """An entry was accepted."""
        if self._bytes is not None:
            self._bytes.charge(payload_bytes, now_ms)
        if self._records is not None:
            self._records.charge(count, now_ms)
