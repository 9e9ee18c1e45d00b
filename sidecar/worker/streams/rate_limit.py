"""RateLimit: holds the streams of one topic or client name while its rate is used up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sidecar.producer.topic_settings import TopicSettings
from sidecar.shm.rate_words import RateClock, find_clock

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment

BURST_MS = 100.0
"""The burst allowed at once after silence, in ms at the full rate."""


CHECK_MS = 1_000.0
"""Interval in ms at which the clock is looked up by name: another name may have it now, or one may be free at last."""

FindClock = Callable[[str, int | None], RateClock | None]
"""(name, now in µs or None) → the clock of that name, shared by all workers. With a time, also a clock of another name
that has owed nothing lately is taken. None if there is none.
"""


class _Bucket:
    """One rate in units per second on a clock that all workers share. Without such a clock, the worker keeps to its
    part of the rate alone.
    """

    __slots__ = ("_checked_ms", "_clock", "_find", "_name", "_own", "_rate", "_unpaid_us", "_workers", "text")

    def __init__(self, find: FindClock, name: str, rate: float, workers: int, text: str) -> None:
        self._find = find
        self._name = name
        self._rate = rate
        self._workers = workers
        self._own = RateClock(bytearray(8), 0)
        self._clock = find(name, None) or self._own
        self._checked_ms = float("-inf")
        self._unpaid_us = 0.0
        """Fraction of a µs left over from earlier charges: above 10^6 units per second each costs less than one µs."""
        self.text = text

    def ready_at_ms(self) -> float:
        return self._clock.paid_at_us() / 1000 - BURST_MS

    def charge(self, units: int, now_ms: float) -> None:
        now_us = int(now_ms * 1000)
        if now_ms - self._checked_ms >= CHECK_MS:
            self._find_clock(now_ms, now_us)
        rate = self._rate if self._clock is not self._own else self._rate / self._workers
        cost_us = units / rate * 1e6 + self._unpaid_us
        whole_us = int(cost_us)
        self._unpaid_us = cost_us - whole_us
        if whole_us and not self._clock.charge(whole_us, now_us):
            self._find_clock(now_ms, now_us)
            self._clock.charge(whole_us, now_us)

    def _find_clock(self, now_ms: float, now_us: int) -> None:
        before, self._checked_ms = self._clock, now_ms
        self._clock = self._find(self._name, now_us) or self._own
        if before is self._own and self._clock is not self._own:
            # The debt was made at a part of the rate; convert it to the whole rate.
            owed_us = self._own.paid_at_us() - now_us
            self._own = RateClock(bytearray(8), 0)
            if owed_us > 0:
                self._clock.charge(owed_us // self._workers, now_us)


class _Buckets(NamedTuple):
    """Maker of the buckets of one topic or one client name."""

    owner: str
    """Name of the owner in the reason that a held stream gets."""
    clock_prefix: str
    name: str
    workers: int
    find_clock: FindClock

    def make(self, key: str, rate: int | None, unit: str = "") -> _Bucket | None:
        """Bucket of one setting; None without a rate. ``unit`` where the setting's name does not say it."""
        if rate is None:
            return None
        text = f"{self.owner} is at its {key} of {rate:,}{unit}"
        # The rate is part of the name, because a debt at one rate means nothing at another.
        return _Bucket(
            self.find_clock, f"{self.clock_prefix}{key} {rate} {self.name}", rate, self.workers, text
        )


class RateLimits:
    """Rate of each topic over all ``workers``: the clocks are in the segment."""

    def __init__(self, segment: Segment, workers: int) -> None:
        self._segment = segment
        self._workers = workers

    def of(self, topic: str, settings: TopicSettings) -> RateLimit | None:
        """None for a topic without a rate."""
        return RateLimit.of(
            topic, settings, workers=self._workers, find_clock=partial(find_clock, self._segment)
        )


class RateLimit:
    """Buckets of a topic or client name: bytes, records, or both. Belongs to the worker's loop."""

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
        find_clock: FindClock,
    ) -> RateLimit | None:
        """Rate limit of a topic; None without a rate. If no clock is free, each worker keeps to its part of
        the rate.
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
        find_clock: FindClock,
    ) -> RateLimit | None:
        """Rate limit of all clients of one name; None without a rate. Otherwise as :meth:`of`."""
        return cls._of(
            _Buckets(f"client {name}", "client ", name, workers, find_clock),
            rate_bytes=("bytes.per.second", rate_bytes),
            rate_records=("records.per.second", rate_records),
        )

    @classmethod
    def _of(
        cls, buckets: _Buckets, *, rate_bytes: tuple[str, int | None], rate_records: tuple[str, int | None]
    ) -> RateLimit | None:
        of_bytes = buckets.make(*rate_bytes, " bytes per second" if rate_bytes[0] == "rate" else "")
        of_records = buckets.make(*rate_records)
        if of_bytes is None and of_records is None:
            return None
        return cls(rate_bytes=of_bytes, rate_records=of_records)

    def refusal(self, now_ms: float) -> tuple[str, float] | None:
        """Why nothing may be accepted now, and the monotonic ms at which to ask again. None if records may be
        accepted.
        """
        for bucket in (self._bytes, self._records):
            if bucket is not None:
                ready_at_ms = bucket.ready_at_ms()
                if ready_at_ms > now_ms:
                    return bucket.text, ready_at_ms
        return None

    def charge(self, count: int, payload_bytes: int, now_ms: float) -> None:
        """Charge an accepted entry."""
        if self._bytes is not None:
            self._bytes.charge(payload_bytes, now_ms)
        if self._records is not None:
            self._records.charge(count, now_ms)
