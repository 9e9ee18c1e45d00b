"""ThrottleTimes: recent throttle times of brokers, as Kafka's produce-throttle-time-avg and -max report them.

Sans-IO: the Sender fills it, on the worker's loop.
"""

from __future__ import annotations

from typing import Final

SAMPLE_MS: Final = 30_000.0
"""Length of a sample. Two are kept, as by Kafka's defaults of metrics.sample.window.ms and metrics.num.samples."""


class ThrottleTimes:
    """Average and maximum throttle time of the answers of the last 30 to 60 s, including those without a throttle."""

    __slots__ = ("_begun_ms", "_counted", "_now", "_past", "answers")

    def __init__(self) -> None:
        self.answers = 0
        """Answers to Produce requests since the start. The caller notes its throttle, if any, and counts it."""
        self._counted = 0
        """``answers`` when the present sample began."""
        self._begun_ms = 0.0
        self._now = (0, 0)
        """Sum and maximum of the present sample."""
        self._past = (0, 0, 0)
        """Answers, sum and maximum of the sample before it."""

    def note(self, throttle_ms: int, now_ms: float) -> None:
        """Note the throttle time of an answer to a Produce request."""
        self._roll(now_ms)
        total_ms, max_ms = self._now
        self._now = total_ms + throttle_ms, max(max_ms, throttle_ms)

    def average_ms(self, now_ms: float) -> int:
        """Average in ms, 0 if nothing was answered."""
        self._roll(now_ms)
        answers = self.answers - self._counted + self._past[0]
        return round((self._now[0] + self._past[1]) / answers) if answers else 0

    def max_ms(self, now_ms: float) -> int:
        self._roll(now_ms)
        return max(self._now[1], self._past[2])

    def _roll(self, now_ms: float) -> None:
        """Begin the next sample when the present one is over. The gauges read at least once a second, so answers
        without a throttle count to a sample that ends no later than that.
        """
        age_ms = now_ms - self._begun_ms
        if age_ms < SAMPLE_MS:
            return
        self._past = (self.answers - self._counted, *self._now) if age_ms < 2 * SAMPLE_MS else (0, 0, 0)
        self._counted = self.answers
        self._now = (0, 0)
        self._begun_ms = now_ms
