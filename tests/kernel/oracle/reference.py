"""The kernel's twin in pure Python: same API, same bytes, written for readability and as the tests' oracle.

This file has batches, words and atomics. Bytes, chain, records and columns are in the files of these names beside it.
Far too slow for a daemon.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from tests.kernel.oracle.reference_bytes import (
    BATCH_HEADER_BYTES,
    crc32c,
    encode_varint,
    murmur2,
    write_batch_header,
)
from tests.kernel.oracle.reference_chain import (
    ENTRY_HEADER_BYTES,
    ENTRY_INDEX_BYTES,
    PAGE_HEADER_BYTES,
    PAGE_LINKED,
    PAGE_TAKEN,
    RECORD_INDEX_BYTES,
    RECORDS_PER_ENTRY_MAX,
    WORD_DONE,
    WORD_FAILED_MIN,
    WORD_UNPARTITIONED,
    Chain,
    Entry,
    held_bytes,
)
from tests.kernel.oracle.reference_columns import records_from_columns
from tests.kernel.oracle.reference_hook import (
    AT_DONE_WORD,
    AT_FAILED_WORD,
    AT_PAGE_GIVEN,
    AT_PAGE_TAKEN,
    set_store_hook,
    stored,
)
from tests.kernel.oracle.reference_meters import CounterBlock, Histogram, SendMeter
from tests.kernel.oracle.reference_partitioner import PARTITIONERS, StickyPartitioner
from tests.kernel.oracle.reference_records import Record, RecordBlock, index, index_run

WANT_INDEXES: Final = 1
SHAPE_RANGE: Final = 0
SHAPE_BITMAP: Final = 1
SHAPE_LIST: Final = 2
SHAPE_COUNT: Final = 3
_NO_LIMIT: Final = 0x7FFFFFFF
_U64: Final = (1 << 64) - 1
_OUTCOME: Final = struct.Struct("<IBBBBQIiQIIIHHqq")

__all__ = [
    "BATCH_HEADER_BYTES",
    "ENTRY_HEADER_BYTES",
    "ENTRY_INDEX_BYTES",
    "PAGE_HEADER_BYTES",
    "PAGE_LINKED",
    "PAGE_TAKEN",
    "PARTITIONERS",
    "RECORDS_PER_ENTRY_MAX",
    "RECORD_INDEX_BYTES",
    "BatchRecords",
    "Chain",
    "CounterBlock",
    "Entry",
    "Histogram",
    "RecordBlock",
    "SendMeter",
    "StickyPartitioner",
    "compare_and_swap_u64",
    "crc32c",
    "entry_payload",
    "entry_words",
    "fail_records",
    "fail_remaining",
    "fetch_add_u64",
    "give_pages",
    "held_bytes",
    "index",
    "index_run",
    "load_acquire_u64",
    "mark_failed_done",
    "murmur2",
    "records_from_columns",
    "set_store_hook",
    "store_release_u64",
    "take_pages",
    "write_batch_header",
]
"""The kernel's API, listed only here. A test compares it with the extension's names."""


class BatchRecords:
    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = BATCH_HEADER_BYTES
        self.first_timestamp_ms = 0
        self.max_timestamp_ms = 0
        self._chain: Chain | None = None
        self._slices: list[list[Record]] = []
        """Its records, one list per entry."""
        self.since_ms: list[float] = []
        """For each list: when its entry was accepted, in ms."""

    def _encoded(self, record: Record, offset_delta: int) -> bytes:
        delta = record.timestamp_ms - self.first_timestamp_ms
        data = b"\0" + encode_varint(delta) + encode_varint(offset_delta) + record.body
        return encode_varint(len(data)) + data

    def try_append(
        self, block: RecordBlock, start: int, stop: int, limit_bytes: int, since_ms: float = 0.0
    ) -> int:
        if not 0 <= start <= stop <= block.count:
            raise ValueError(f"references {start}:{stop} of a block with {block.count}")
        if self._chain is not None and self._chain is not block.chain:
            raise ValueError(f"a batch of {self._chain!r} takes nothing of {block.chain!r}")
        self._chain = block.chain
        at = start
        while at < stop and self._take(block.records[at], limit_bytes, since_ms):
            at += 1
        return at - start

    def _take(self, record: Record, limit_bytes: int, since_ms: float) -> bool:
        if not self.count:
            self.first_timestamp_ms = self.max_timestamp_ms = record.timestamp_ms
        size = len(self._encoded(record, self.count))
        if self.count and self.size_bytes + size > limit_bytes:
            return False
        self.size_bytes += size
        self.max_timestamp_ms = max(self.max_timestamp_ms, record.timestamp_ms)
        self.count += 1
        last = self._slices[-1][-1] if self._slices else None
        if last is not None and last.entry is record.entry and last.index < record.index:
            self._slices[-1].append(record)
        else:
            self._slices.append([record])
            self.since_ms.append(since_ms)
        return True

    @property
    def slice_count(self) -> int:
        return len(self._slices)

    def _slice(self, i: int) -> list[Record]:
        if not 0 <= i < len(self._slices):
            raise IndexError(f"slice {i} of {len(self._slices)}")
        return self._slices[i]

    def slice_entry(self, slice_index: int) -> Entry:
        entry = self._slice(slice_index)[0].entry
        if not entry.remaining:
            raise ValueError(f"entry {entry.ordinal} of {self._chain!r} has ended")
        return entry

    def slice_records(self, slice_index: int) -> int:
        return len(self._slice(slice_index))

    def slice_share(self, slice_index: int) -> tuple[int, int, int, int]:
        entry, count = self.slice_entry(slice_index), self.slice_records(slice_index)
        share = held_bytes(entry.count, entry.payload_bytes) * count // entry.count
        return entry.client_row, entry.client_generation, count, share

    def slice_indexes(self, slice_index: int) -> list[int]:
        return [record.index for record in self._slice(slice_index)]

    def slice_payload(self, slice_index: int) -> bytes:
        assert self._chain is not None
        payload = entry_payload(self._chain, self.slice_entry(slice_index))
        return b"".join(payload[record.begin : record.end] for record in self._slices[slice_index])

    @property
    def first_cursor(self) -> tuple[int, int]:
        record = self._slice(0)[0]
        return record.entry.ordinal, record.index

    @property
    def last_cursor(self) -> tuple[int, int]:
        record = self._slice(max(len(self._slices) - 1, 0))[-1]
        return record.entry.ordinal, record.index

    def encode_records_into(self, out: Any) -> int:
        if not self.count:
            raise ValueError("an empty batch has no bytes")
        view = memoryview(out).cast("B")
        if len(view) < self.size_bytes - BATCH_HEADER_BYTES:
            raise ValueError(
                f"{self.size_bytes - BATCH_HEADER_BYTES} bytes of records do not fit into {len(view)}"
            )
        records = [record for piece in self._slices for record in piece]
        data = b"".join(self._encoded(record, i) for i, record in enumerate(records))
        assert len(data) == self.size_bytes - BATCH_HEADER_BYTES
        view[: len(data)] = data
        return len(data)

    def encode_into(
        self, out: Any, producer_id: int, epoch: int, base_sequence: int, attributes: int = 0
    ) -> int:
        view = memoryview(out).cast("B")
        if len(view) < self.size_bytes:
            raise ValueError(f"a batch of {self.size_bytes} bytes does not fit into {len(view)}")
        return write_batch_header(
            view,
            self.encode_records_into(view[BATCH_HEADER_BYTES:]),
            producer_id=producer_id,
            epoch=epoch,
            base_sequence=base_sequence,
            attributes=attributes,
            count=self.count,
            first_timestamp_ms=self.first_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
        )

    def split(self) -> tuple[BatchRecords, BatchRecords]:
        if self.count < 2:
            raise ValueError(f"a batch of {self.count} records cannot be split")
        half = self.count - self.count // 2
        return self.select(range(half)), self.select(range(half, self.count))

    def select(self, indexes: Sequence[int]) -> BatchRecords:
        chosen = BatchRecords()
        chosen._chain = self._chain
        records = [
            (record, since_ms)
            for piece, since_ms in zip(self._slices, self.since_ms, strict=True)
            for record in piece
        ]
        last = -1
        for position in indexes:
            if not last < position < self.count:
                raise ValueError(
                    f"record {position} after {last} of {self.count}: ascending positions are needed"
                )
            record, since_ms = records[position]
            chosen._take(record, _NO_LIMIT, since_ms)
            last = position
        return chosen

    def entries(self) -> list[tuple[Entry, int]]:
        return [(self.slice_entry(i), len(piece)) for i, piece in enumerate(self._slices)]

    def live_entries(self) -> list[Entry]:
        return [piece[0].entry for piece in self._slices if piece[0].entry.remaining]

    def shares(self) -> dict[tuple[int, int], tuple[int, int]]:
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for row, generation, count, share in map(self.slice_share, range(self.slice_count)):
            records, size = found.get((row, generation), (0, 0))
            found[row, generation] = (records + count, size + share)
        return found

    def outcomes(
        self,
        slice_index: int,
        *,
        number: int,
        kind: int,
        persistence: int,
        code: int,
        partition: int,
        base_offset: int,
        append_time_ms: int,
        text: bytes = b"",
    ) -> bytes:
        entry = self.slice_entry(slice_index)
        before = sum(len(piece) for piece in self._slices[:slice_index])
        indexes = [record.index for record in self._slices[slice_index]]
        first, span = indexes[0], indexes[-1] - indexes[0] + 1
        shape, data = SHAPE_COUNT, b""
        if entry.flags & WANT_INDEXES:
            bitmap = sum(1 << i - first for i in indexes).to_bytes((span + 7) // 8, "little")
            listed = struct.pack(f"<{len(indexes)}H", *indexes)
            if span == len(indexes):
                shape = SHAPE_RANGE
            elif len(bitmap) <= len(listed):
                shape, data = SHAPE_BITMAP, bitmap
            else:
                shape, data = SHAPE_LIST, listed
        if len(text) > 0xFFFF:
            raise ValueError(f"an outcome's text has at most 65535 bytes, not {len(text)}")
        length = -(-(_OUTCOME.size + len(data) + len(text)) // 8) * 8
        offset = base_offset + before if base_offset >= 0 else base_offset
        what = (number, entry.stream, code, entry.seq, partition, first, len(indexes))
        head = _OUTCOME.pack(
            length, kind, persistence, shape, 0, *what, len(data), len(text), offset, append_time_ms
        )
        return (head + data + text).ljust(length, b"\0")

    def mark_failed(self, code: int) -> None:
        _check_failure_code(code)
        assert self._chain is not None
        for piece in self._slices:
            for record in piece:
                if self._chain.word(record.entry, record.index) != WORD_DONE:
                    self._chain.set_word(record.entry, record.index, code)
                    stored(AT_FAILED_WORD)

    def mark_done(self) -> int:
        finished = 0
        for piece in self._slices:
            assert self._chain is not None
            entry = piece[0].entry
            changed = 0
            for record in piece:
                if entry.remaining and self._chain.word(entry, record.index) != WORD_DONE:
                    self._chain.set_word(entry, record.index, WORD_DONE)
                    stored(AT_DONE_WORD)
                    changed += 1
            finished += self._chain.settle(entry, changed)
        return finished


def _check_failure_code(code: int) -> None:
    if not WORD_FAILED_MIN <= code < WORD_DONE:
        raise ValueError(f"{code!r} is not a failure word (0xFF00 to 0xFFFD)")


def mark_failed_done(chain: Chain, entry: Entry, indexes: Sequence[int]) -> bool:
    if not entry.remaining:
        return False
    settled = 0
    for record in indexes:
        if not 0 <= record < entry.count:
            raise ValueError(f"record {record} of {entry.count}")
        if WORD_FAILED_MIN <= chain.word(entry, record) < WORD_DONE:
            chain.set_word(entry, record, WORD_DONE)
            stored(AT_DONE_WORD)
            settled += 1
    return chain.settle(entry, settled)


def fail_remaining(chain: Chain, entry: Entry, code: int) -> list[int]:
    _check_failure_code(code)
    failed = [i for i in range(entry.count) if chain.word(entry, i) == WORD_UNPARTITIONED]
    for i in failed:
        chain.set_word(entry, i, code)
        stored(AT_FAILED_WORD)
    return failed


def fail_records(chain: Chain, entry: Entry, indexes: Sequence[int], code: int) -> None:
    _check_failure_code(code)
    if not chain.is_live(entry):
        raise ValueError(f"{entry!r} is not a live entry of {chain!r}")
    for record in indexes:
        if not 0 <= record < entry.count:
            raise ValueError(f"record {record} of {entry.count}")
        word = chain.word(entry, record)
        if word < WORD_FAILED_MIN or word == WORD_UNPARTITIONED:
            chain.set_word(entry, record, code)
            stored(AT_FAILED_WORD)


def entry_words(chain: Chain, entry: Entry) -> list[int]:
    return [chain.word(entry, i) for i in range(entry.count)]


def entry_payload(chain: Chain, entry: Entry) -> bytes:
    if not chain.is_live(entry):
        raise ValueError(f"{entry!r} is not a live entry of {chain!r}")
    try:
        return chain.read(entry.payload_at, entry.payload_bytes)
    except KeyError:
        raise ValueError(f"a page of {entry!r} is not linked") from None


def _word(buffer: Any, offset: int) -> memoryview:
    view = memoryview(buffer).cast("B")
    if offset < 0 or offset % 8 or offset + 8 > len(view):
        raise ValueError(f"there is no aligned 8-byte word at {offset} of {len(view)} bytes")
    return view[offset : offset + 8].cast("Q")


def store_release_u64(buffer: Any, offset: int, value: int) -> None:
    _word(buffer, offset)[0] = value


def load_acquire_u64(buffer: Any, offset: int) -> int:
    return _word(buffer, offset)[0]


def compare_and_swap_u64(buffer: Any, offset: int, expected: int, desired: int) -> bool:
    """Not atomic between processes: the twin is used by one process only."""
    word = _word(buffer, offset)
    if word[0] != expected:
        return False
    word[0] = desired
    return True


def fetch_add_u64(buffer: Any, offset: int, amount: int) -> int:
    word = _word(buffer, offset)
    before = word[0]
    word[0] = (before + amount) & _U64
    return before


def take_pages(owners: Any, incarnation: int, want: int, hint: int = 0) -> list[int]:
    words = memoryview(owners).cast("Q")
    hint = hint if hint < len(words) else 0
    order = [*range(hint, len(words)), *range(hint)]
    pages = [page for page in order if not words[page]][:want]
    for page in pages:
        words[page] = incarnation << 32 | PAGE_TAKEN
        stored(AT_PAGE_TAKEN)
    return pages


def give_pages(owners: Any, incarnation: int, pages: Sequence[int]) -> None:
    words = memoryview(owners).cast("Q")
    for page in pages:
        if not 0 <= page < len(words):
            raise ValueError(f"page {page} is not one of {len(words)}")
        if not words[page] & 0xFFFFFFFF or words[page] >> 32 != incarnation:
            raise ValueError(f"page {page} is not owned by incarnation {incarnation}: given back twice?")
        words[page] = 0
        stored(AT_PAGE_GIVEN)
