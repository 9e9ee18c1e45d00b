"""One partition of the fake broker: its batches, and its state of idempotent producers.

Sequence rules are those of Kafka's ProducerStateManager, as measured on Kafka 4.1. A batch is recognised by epoch,
first and last sequence among the last five. Any other sequence that is not the next one is OUT_OF_ORDER (45), and an
older epoch is INVALID_PRODUCER_EPOCH (47). An unknown or forgotten id is taken at any sequence, and a new epoch only
at 0.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import crc32c

from sidecar.tools.testing.record_batches import HEADER, BatchHeader, BatchRecord

BATCHES_REMEMBERED: Final = 5
_SEQUENCE_MASK: Final = 0x7FFF_FFFF
OUT_OF_ORDER_SEQUENCE: Final = 45
INVALID_PRODUCER_EPOCH: Final = 47
TRANSACTIONAL: Final = 0x10
"""Bit of a batch's attributes."""
_TRANSACTIONAL_CONTROL: Final = 0x30
_CRC_FROM: Final = 21


class StoredBatch(NamedTuple):
    """A batch in the log; ``header.base_offset`` is the producer's value, not its offset in the log."""

    base_offset: int
    header: BatchHeader
    records: tuple[BatchRecord, ...]


class StoredRecord(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class Appended(NamedTuple):
    code: int
    base_offset: int = -1


@dataclass
class ProducerEntry:
    """The partition's state of one producer id."""

    epoch: int
    last_timestamp_ms: int = -1
    """The newest timestamp of the last batch's records, by which the id expires."""
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=BATCHES_REMEMBERED))
    """(first sequence, last sequence, base offset)."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][1] if self.batches else -1


class PartitionLog:
    """The log of one partition. Not thread-safe: the broker's lock guards it. It survives leader moves, as a
    replicated log does.
    """

    def __init__(self, *, is_compacted: bool = False) -> None:
        self.batches: list[StoredBatch] = []
        self.kept: list[tuple[int, bytes]] | None = [] if is_compacted else None
        """Offset and bytes of each batch and marker, for those who read it."""
        self.producers: dict[int, ProducerEntry] = {}
        self.start_offset = 0
        self.end_offset = 0
        self.leader = -1
        self.leader_epoch = 0
        self.open: dict[int, int] = {}
        """By producer id: the first offset of its open transaction."""
        self.aborted: list[tuple[int, int, int]] = []
        """(producer id, first offset, offset of the marker) of aborted transactions."""
        self.duplicates = 0
        """The number of batches recognised as sent again."""

    def append(self, header: BatchHeader, records: list[BatchRecord], data: bytes) -> Appended:
        """``data``: the bytes of the batch."""
        if header.producer_id < 0:
            return Appended(0, self._store(header, records, data))
        entry = self.producers.get(header.producer_id)
        if entry is not None and header.epoch < entry.epoch:
            return Appended(INVALID_PRODUCER_EPOCH)
        if entry is not None and header.epoch == entry.epoch:
            for first, last, base_offset in entry.batches:
                if (first, last) == (header.base_sequence, header.last_sequence):
                    self.duplicates += 1
                    return Appended(0, base_offset)
            if header.base_sequence != (entry.last_sequence + 1) & _SEQUENCE_MASK:
                return Appended(OUT_OF_ORDER_SEQUENCE)
        elif entry is not None:
            if header.base_sequence != 0:
                return Appended(OUT_OF_ORDER_SEQUENCE)
            entry = None
        if entry is None:
            entry = self.producers[header.producer_id] = ProducerEntry(header.epoch)
        base_offset = self._store(header, records, data)
        entry.batches.append((header.base_sequence, header.last_sequence, base_offset))
        entry.last_timestamp_ms = header.max_timestamp_ms
        return Appended(0, base_offset)

    def write_marker(self, producer_id: int, epoch: int, is_commit: bool) -> None:
        """End the producer's transaction here. From now on it is the marker's epoch that counts."""
        entry = self.producers.setdefault(producer_id, ProducerEntry(epoch))
        if epoch > entry.epoch:
            entry.epoch = epoch
            entry.batches.clear()
        first = self.open.pop(producer_id, None)
        if self.kept is not None:
            self.kept.append((self.end_offset, marker(self.end_offset, producer_id, epoch, is_commit)))
        if first is not None and not is_commit:
            self.aborted.append((producer_id, first, self.end_offset))
        self.end_offset += 1

    @property
    def last_stable_offset(self) -> int:
        """A reader of committed records sees none from here on."""
        return min(self.open.values(), default=self.end_offset)

    def expire_producers(self, oldest_ms: float) -> None:
        """Forget the ids whose last batch has this timestamp or an older one (``ProducerStateManager``)."""
        for producer_id in [
            pid for pid, each in self.producers.items() if each.last_timestamp_ms <= oldest_ms
        ]:
            del self.producers[producer_id]

    def _store(self, header: BatchHeader, records: list[BatchRecord], data: bytes) -> int:
        base_offset = self.end_offset
        if self.kept is not None:
            self.kept.append((base_offset, at_offset(data, base_offset)))
        self.batches.append(StoredBatch(base_offset, header, tuple(records)))
        if header.attributes & TRANSACTIONAL and header.producer_id >= 0:
            self.open.setdefault(header.producer_id, base_offset)
        self.end_offset += len(records)
        return base_offset

    def records(self, partition: int, *, committed: bool = False) -> list[StoredRecord]:
        """Every record from the start of the log on; with ``committed`` as isolation.level=read_committed shows it."""
        return [
            StoredRecord(partition, batch.base_offset + index, *record)
            for batch in self.batches
            for index, record in enumerate(batch.records)
            if batch.base_offset + index >= self.start_offset
            and not (committed and self._is_hidden(batch, batch.base_offset + index))
        ]

    def _is_hidden(self, batch: StoredBatch, offset: int) -> bool:
        if offset >= self.last_stable_offset:
            return True
        return bool(batch.header.attributes & TRANSACTIONAL) and any(
            producer_id == batch.header.producer_id and first <= offset < last
            for producer_id, first, last in self.aborted
        )


def at_offset(data: bytes, offset: int) -> bytes:
    """The batch with its offset in the log, which its checksum does not cover."""
    return struct.pack(">q", offset) + data[8:]


def marker(offset: int, producer_id: int, epoch: int, is_commit: bool) -> bytes:
    """The batch that ends a transaction."""
    key, value = struct.pack(">hh", 0, int(is_commit)), struct.pack(">hi", 0, 0)
    record = b"\0\0\0" + bytes((len(key) << 1,)) + key + bytes((len(value) << 1,)) + value + b"\0"
    body = bytes((len(record) << 1,)) + record
    length = HEADER.size + len(body) - 12
    batch = bytearray(
        HEADER.pack(offset, length, 0, 2, 0, _TRANSACTIONAL_CONTROL, 0, 0, 0, producer_id, epoch, -1, 1)
        + body
    )
    struct.pack_into(">I", batch, _CRC_FROM - 4, crc32c.crc32c(bytes(batch[_CRC_FROM:])))
    return bytes(batch)
