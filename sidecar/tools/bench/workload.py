"""The records of every side of the bench: the same keys, the same values, made before the clock starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

Record = tuple[bytes, bytes]

DISTINCT_MAX = 10_000
DISTINCT_BYTES_MAX = 16 << 20
"""Values share a few megabytes at most, so that a run of large records needs no large caller."""
BATCH_RECORDS = 1_000


@dataclass(frozen=True)
class Workload:
    """``records`` of ``key_bytes`` and ``value_bytes`` each to ``topic``; keys spread over all partitions."""

    topic: str
    records: int
    key_bytes: int = 16
    value_bytes: int = 100
    distinct: int = DISTINCT_MAX
    """The number of different keys, and of values."""

    @property
    def record_bytes(self) -> int:
        return self.key_bytes + self.value_bytes

    def make(self) -> list[Record]:
        """Distinct records; a longer run repeats the list. Made once per process: do not change them."""
        count = max(1, min(self.distinct, self.records, DISTINCT_BYTES_MAX // max(1, self.record_bytes)))
        return _distinct(count, self.key_bytes, self.value_bytes)

    def batches(self) -> list[list[Record]]:
        """The same records, split for calls that take many at once: 1,000, or fewer large ones."""
        records = self.make()
        size = max(1, min(BATCH_RECORDS, (1 << 20) // max(1, self.record_bytes)))
        whole = len(records) // size * size
        return [records[start : start + size] for start in range(0, whole, size)] or [records]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@lru_cache(maxsize=2)
def _distinct(count: int, key_bytes: int, value_bytes: int) -> list[Record]:
    return [
        (
            b"%0*d" % (key_bytes, number),
            (b"value-%06d-" % number).ljust(value_bytes, b"x")[:value_bytes],
        )
        for number in range(count)
    ]
