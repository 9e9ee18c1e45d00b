"""RecordMetadata: the position of a delivered record in the log (Kafka's class of that name).

The io thread makes it when a callback or future wants it.
"""

from __future__ import annotations

from typing import NamedTuple


class RecordMetadata(NamedTuple):
    """The position of a delivered record. ``offset`` is -1 when the broker did not give it: with acks=0, or for a
    duplicate whose offset it no longer knew.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class OffsetRange(NamedTuple):
    """Records of one bulk call with consecutive offsets in a partition.

    ``first_offset`` is -1 when the broker did not give it.
    """

    partition: int
    first_offset: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which has no use here

    @property
    def end_offset(self) -> int:
        """The offset after the last record; -1 when the broker gave none."""
        return self.first_offset + self.count if self.first_offset >= 0 else -1
