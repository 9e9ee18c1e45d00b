"""Twin of meters.pxi: counters and histograms in shared words, and measurements of a worker's batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_BOUNDS_MAX: Final = 32


class CounterBlock:
    def __init__(self, block: Any, indexes: dict[str, int]) -> None:
        self._words = memoryview(block).cast("B").cast("Q")
        if not all(0 < index < len(self._words) for index in indexes.values()):
            raise ValueError(f"not every row is in a block of {len(block)} bytes")
        self._indexes = indexes

    def inc(self, row: str, amount: int = 1) -> None:
        index = self._indexes[row]
        self._words[0] += 1
        self._words[index] += amount
        self._words[0] += 1

    def add(self, amounts: dict[str, int]) -> None:
        self._words[0] += 1
        try:
            for row, amount in amounts.items():
                index = self._indexes[row]
                self._words[index] = max(self._words[index] + amount, 0)
        finally:
            self._words[0] += 1

    def set(self, row: str, value: int) -> None:
        index = self._indexes[row]
        self._words[0] += 1
        self._words[index] = value
        self._words[0] += 1

    def get(self, row: str) -> int:
        return self._words[self._indexes[row]]


class Histogram:
    def __init__(self, block: Any, first: int, bounds: Sequence[int]) -> None:
        if not 0 < len(bounds) <= _BOUNDS_MAX or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"bounds {bounds!r} are not 1 to {_BOUNDS_MAX} ascending numbers")
        self._words = memoryview(block).cast("B").cast("Q")
        if not 0 < first <= len(self._words) - (len(bounds) + 2):
            raise ValueError(
                f"{len(bounds) + 2} words from {first} on are not in a block of {len(block)} bytes"
            )
        self._first = first
        self._bounds = bounds

    def put(self, value: int, times: int) -> None:
        bucket = sum(1 for bound in self._bounds if value > bound)
        self._words[self._first + bucket] += times
        self._words[self._first + len(self._bounds) + 1] += value * times

    def step(self) -> None:
        self._words[0] += 1

    def observe(self, value: float) -> None:
        self.step()
        self.put(max(int(value), 0), 1)
        self.step()

    def observe_ages(self, records: Any, now_ms: float) -> None:
        self.step()
        self.put_ages(records, now_ms)
        self.step()

    def put_ages(self, records: Any, now_ms: float) -> None:
        for i, since_ms in enumerate(records.since_ms):
            age = (int(now_ms * 10) - int(since_ms * 10)) % (1 << 32)
            self.put(age if age < 1 << 31 else 0, records.slice_records(i))


class SendMeter:
    def __init__(self, ages: Histogram, sizes: Histogram, counts: Histogram) -> None:
        self.requests_saved = 0
        self._ages = ages
        self._sizes = sizes
        self._counts = counts
        self._clients: set[int] = set()

    def begin_request(self) -> None:
        self._clients = set()

    def count(self, records: Any, now_ms: float, is_first: bool) -> None:
        self._sizes.step()
        self._sizes.put(records.size_bytes, 1)
        self._counts.put(records.count, 1)
        if is_first:
            self._ages.put_ages(records, now_ms)
        self._sizes.step()
        rows = {entry.client_row for entry in records.live_entries() if entry.client_row < 1 << 20}
        before, self._clients = self._clients, self._clients | rows
        self.requests_saved += max(len(self._clients), 1) - max(len(before), 1)
