"""RecordMetadata: where a delivered record stands (Kafka's class of that name)."""

from __future__ import annotations

from typing import NamedTuple


class RecordMetadata(NamedTuple):
    """``offset`` is -1 when the broker did not tell it (acks=0, or a duplicate it had forgotten the place of)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
