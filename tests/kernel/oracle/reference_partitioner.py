"""The twin's StickyPartitioner: the rule of each partitioner, written to be read."""

from __future__ import annotations

import itertools
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from tests.kernel.oracle.reference_bytes import murmur2
from tests.kernel.oracle.reference_chain import WORD_FAILED_MIN

PARTITIONERS: Final = ("murmur2", "consistent_random", "fnv1a", "fnv1a_random", "random", "round_robin")
NAMED: Final = (
    "random",
    "consistent",
    "consistent_random",
    "murmur2",
    "murmur2_random",
    "fnv1a",
    "fnv1a_random",
)
"""Those that a client may name, from number 1 on."""
QUEUE_LENGTH_MAX: Final = 65_535
_U64: Final = (1 << 64) - 1


def fnv1a(key: bytes) -> int:
    """librdkafka's rd_fnv1a: the signed 32-bit hash, made positive as Sarama does."""
    h = 0x811C9DC5
    for byte in key:
        h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return (1 << 32) - h if h >> 31 else h


class StickyPartitioner:
    def __init__(
        self,
        partition_count: int,
        available: Sequence[int],
        sticky_batch_bytes: int,
        seed: int,
        *,
        kind: str = "murmur2",
        ignore_keys: bool = False,
    ) -> None:
        if sticky_batch_bytes <= 0:
            raise ValueError(f"sticky_batch_bytes is {sticky_batch_bytes}: it must be positive")
        if kind not in PARTITIONERS:
            raise ValueError(f"partitioner {kind!r} is not one of {', '.join(PARTITIONERS)}")
        self.current = -1
        self._kind = kind
        self._ignore_keys = ignore_keys
        self._produced_bytes = 0
        self._sticky_bytes = sticky_batch_bytes
        self._state = seed & _U64
        self._turn = 0
        self._lengths: dict[int, int] = {}
        self.update(partition_count, available)

    def update(self, partition_count: int, available: Sequence[int]) -> None:
        if partition_count <= 0:
            raise ValueError(f"a topic has at least one partition, not {partition_count}")
        self.partition_count = partition_count
        limit = min(partition_count, WORD_FAILED_MIN)
        self._available = sorted({p for p in available if 0 <= p < limit}) or list(range(limit))
        self._lengths = {p: length for p, length in self._lengths.items() if p < partition_count}
        if self.current not in self._available:
            self.current = -1

    def set_queue_length(self, partition: int, batches: int) -> None:
        if batches < 0:
            raise ValueError(f"a queue has no {batches} batches")
        if 0 <= partition < self.partition_count:
            self._lengths[partition] = min(batches, QUEUE_LENGTH_MAX)

    def _random_below(self, bound: int) -> int:
        z = self._state = (self._state + 0x9E3779B97F4A7C15) & _U64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _U64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _U64
        z ^= z >> 31
        return (z >> 32) * bound >> 32

    def _by_chance(self) -> int:
        return self._available[self._random_below(len(self._available))]

    def _by_load(self) -> int:
        lengths = [self._lengths.get(partition, 0) for partition in self._available]
        longest = max(lengths)
        sums = list(itertools.accumulate(longest + 1 - length for length in lengths))
        return self._available[bisect_right(sums, self._random_below(sums[-1]))]

    def _draw(self, size_bytes: int) -> int:
        if self.current < 0 or self._produced_bytes >= self._sticky_bytes:
            self.current = self._by_load() if any(self._lengths.values()) else self._by_chance()
            self._produced_bytes = 0
        self._produced_bytes += size_bytes
        return self.current

    def next_partition(self, size_bytes: int, key: bytes | None = None, named: int = 0) -> int:
        if not 0 <= named <= len(NAMED):
            raise ValueError(f"no partitioner has the number {named}")
        if named:
            return self._named(NAMED[named - 1], size_bytes, key)
        match self._kind:
            case "murmur2" if key is None or self._ignore_keys:
                return self._draw(size_bytes)
            case "murmur2":
                assert key is not None
                return (murmur2(key) & 0x7FFFFFFF) % self.partition_count
            case "consistent_random" if key:
                return zlib.crc32(key) % self.partition_count
            case "fnv1a":
                return fnv1a(key or b"") % self.partition_count
            case "fnv1a_random" if key is not None:
                return fnv1a(key) % self.partition_count
            case "round_robin":
                self._turn += 1
                return self._available[(self._turn - 1) % (1 << 32) % len(self._available)]
        return self._by_chance()

    def _named(self, name: str, size_bytes: int, key: bytes | None) -> int:
        has_key = bool(key) if name == "consistent_random" else key is not None
        if "random" in name and not has_key:
            return self._draw(size_bytes)
        match name.removesuffix("_random"):
            case "random":
                return self._by_chance()
            case "consistent":
                return zlib.crc32(key or b"") % self.partition_count
            case "murmur2":
                return (murmur2(key or b"") & 0x7FFFFFFF) % self.partition_count
        return fnv1a(key or b"") % self.partition_count
