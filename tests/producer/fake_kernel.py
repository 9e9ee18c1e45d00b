"""The kernel's BatchRecords and RecordBlock in a few lines, for tests that need no bytes.

A record is any object; its encoded size is fixed by the block. Same methods, same rules as the real ones: the
first record of an empty batch is always taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HEADER_BYTES = 61


class FakeChain:
    """A place in the journal that nobody reads."""

    chain_id = 0


class FakeBlock:
    """``records`` of one submission as (partition, payload), grouped by partition in first-seen order."""

    def __init__(
        self, records: Sequence[tuple[int, Any]], record_bytes: int = 100, timestamp_ms: int = 0
    ) -> None:
        self.entry = None
        self.chain = FakeChain()
        self.failures: list[tuple[int, int]] = []
        self.record_bytes = record_bytes
        self.timestamp_ms = timestamp_ms
        self.payloads: list[Any] = []
        self.groups: list[tuple[int, int, int]] = []
        for partition in dict.fromkeys(partition for partition, _ in records):
            start = len(self.payloads)
            self.payloads.extend(payload for each, payload in records if each == partition)
            self.groups.append((partition, start, len(self.payloads)))


class FakeRecords:
    """Holds payloads instead of references."""

    def __init__(self) -> None:
        self.payloads: list[Any] = []
        self._sizes: list[int] = []
        self.max_timestamp_ms = 0

    first_cursor = (1, 0)
    last_cursor = (1, 0)

    @property
    def count(self) -> int:
        return len(self.payloads)

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + sum(self._sizes)

    def try_append(
        self, block: FakeBlock, start: int, stop: int, limit_bytes: int, since_ms: float = 0.0
    ) -> int:
        taken = 0
        size = self.size_bytes
        for position in range(start, stop):
            if self.payloads and size + block.record_bytes > limit_bytes:
                break
            self.payloads.append(block.payloads[position])
            self._sizes.append(block.record_bytes)
            size += block.record_bytes
            taken += 1
        if taken:
            self.max_timestamp_ms = max(self.max_timestamp_ms, block.timestamp_ms)
        return taken

    def split(self) -> tuple[FakeRecords, FakeRecords]:
        middle = len(self.payloads) // 2
        halves = FakeRecords(), FakeRecords()
        halves[0].payloads, halves[1].payloads = self.payloads[:middle], self.payloads[middle:]
        halves[0].max_timestamp_ms = halves[1].max_timestamp_ms = self.max_timestamp_ms
        halves[0]._sizes, halves[1]._sizes = self._sizes[:middle], self._sizes[middle:]
        return halves

    def select(self, indexes: Sequence[int]) -> FakeRecords:
        chosen = FakeRecords()
        chosen.payloads = [self.payloads[index] for index in indexes]
        chosen.max_timestamp_ms = self.max_timestamp_ms
        chosen._sizes = [self._sizes[index] for index in indexes]
        return chosen
