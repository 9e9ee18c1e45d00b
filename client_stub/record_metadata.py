"""RecordMetadata: where a delivered record stands (Kafka's class of that name)."""

from __future__ import annotations

from typing import NamedTuple


class RecordMetadata(NamedTuple):
    """``offset`` is -1 when the broker did not tell it (acks=0, or a duplicate it had forgotten the place of)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class OffsetRange(NamedTuple):
    """Records of one bulk call that stand one behind the other in a partition.

    ``first_offset`` is -1 when the broker did not tell it.
    """

    partition: int
    first_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls here

    @property
    def end_offset(self) -> int:
        """The offset behind the last record; -1 when the broker did not tell any."""
        return self.first_offset + self.count if self.first_offset >= 0 else -1
