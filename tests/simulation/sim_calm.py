"""SimCalm: when the faults of a run were over, and who had long enough of that."""

from __future__ import annotations

from itertools import zip_longest
from math import inf

from client_stub.contract.wire import LocalCode
from sidecar.producer.producer_batch import ProducerBatch

PATIENCE_MS = 90_000.0
"""A record that had so long without faults before its delivery.timeout.ms ended must not have waited for that end. It
is longer than a run needs for its records over one descriptor, a record a batch, each request compressed for long."""


class SimCalm:
    """Calm is a time in which nothing goes wrong with requests. Single events may still strike (a cut connection, a
    moved leader): each costs a second or two."""

    def __init__(self) -> None:
        self._begins_ms: list[float] = []
        self._ends_ms: list[float] = []
        """One fewer while it is calm."""

    @property
    def is_calm(self) -> bool:
        return len(self._begins_ms) > len(self._ends_ms)

    def begin(self, now_ms: float) -> None:
        if not self.is_calm:
            self._begins_ms.append(now_ms)

    def end(self, now_ms: float) -> None:
        assert self.is_calm
        self._ends_ms.append(now_ms)

    def longest_ms(self, from_ms: float, to_ms: float) -> float:
        """The longest calm between the two."""
        calms = zip_longest(self._begins_ms, self._ends_ms, fillvalue=inf)
        return max((min(to_ms, end_ms) - max(from_ms, begin_ms) for begin_ms, end_ms in calms), default=0.0)

    def check(self, batch: ProducerBatch) -> None:
        """One that expires has had its time without faults, or something stalls. A batch whose time ended under faults
        may have had no chance at all."""
        if batch.code == LocalCode.EXPIRED:
            calm_ms = self.longest_ms(batch.created_ms, batch.deadline_ms)
            assert calm_ms < PATIENCE_MS, (
                f"{batch} had {calm_ms:.0f} ms without faults and was not sent: {batch.text}"
            )
