"""The kernel's twin in pure Python: same API, same bytes, written to be read and to be the tests' oracle.

Here are the batch, the words and the atomics; bytes, chain, records and columns are in the files named so beside
it. Far too slow for a daemon.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from sidecar.kernel.reference_bytes import (
    BATCH_HEADER_BYTES,
    crc32c,
    decode_varint,
    encode_varint,
    murmur2,
    write_batch_header,
)
from sidecar.kernel.reference_chain import (
    ENTRY_HEADER_BYTES,
    PAGE_HEADER_BYTES,
    PAGE_LINKED,
    PAGE_TAKEN,
    RECORDS_PER_ENTRY_MAX,
    WORD_DONE,
    WORD_FAILED_MIN,
    WORD_UNPARTITIONED,
    Chain,
    Entry,
)
from sidecar.kernel.reference_columns import records_from_columns
from sidecar.kernel.reference_hook import (
    AT_DONE_WORD,
    AT_FAILED_WORD,
    AT_PAGE_GIVEN,
    AT_PAGE_TAKEN,
    STORE_POINTS,
    set_store_hook,
    stored,
)
from sidecar.kernel.reference_partitioner import PARTITIONERS, StickyPartitioner
from sidecar.kernel.reference_records import Record, RecordBlock, index

HAS_HARDWARE_CRC32C: Final = False
WANT_INDEXES: Final = 1
_NO_LIMIT: Final = 0x7FFFFFFF
_U64: Final = (1 << 64) - 1
_OUTCOME: Final = struct.Struct("<IBBBBQIiQIIIHHqq")

__all__ = [
    "BATCH_HEADER_BYTES",
    "ENTRY_HEADER_BYTES",
    "HAS_HARDWARE_CRC32C",
    "PAGE_HEADER_BYTES",
    "PAGE_LINKED",
    "PAGE_TAKEN",
    "PARTITIONERS",
    "RECORDS_PER_ENTRY_MAX",
    "STORE_POINTS",
    "BatchRecords",
    "Chain",
    "Entry",
    "RecordBlock",
    "StickyPartitioner",
    "crc32c",
    "decode_varint",
    "encode_varint",
    "index",
    "murmur2",
    "records_from_columns",
    "set_store_hook",
    "write_batch_header",
]


class BatchRecords:
    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = BATCH_HEADER_BYTES
        self.first_timestamp_ms = 0
        self.max_timestamp_ms = 0
        self._slices: list[tuple[RecordBlock, int, int]] = []

    def _encoded(self, record: Record, offset_delta: int) -> bytes:
        delta = record.timestamp_ms - self.first_timestamp_ms
        data = b"\0" + encode_varint(delta) + encode_varint(offset_delta) + record.body
        return encode_varint(len(data)) + data

    def try_append(self, block: RecordBlock, start: int, stop: int, limit_bytes: int) -> int:
        if not 0 <= start <= stop <= block.count:
            raise ValueError(f"references {start}:{stop} of a block with {block.count}")
        at = start
        while at < stop:
            record = block.records[at]
            if not self.count:
                self.first_timestamp_ms = self.max_timestamp_ms = record.timestamp_ms
            size = len(self._encoded(record, self.count))
            if self.count and self.size_bytes + size > limit_bytes:
                break
            self.size_bytes += size
            self.max_timestamp_ms = max(self.max_timestamp_ms, record.timestamp_ms)
            self.count += 1
            at += 1
        if at > start:
            if self._slices and self._slices[-1][0] is block and self._slices[-1][2] == start:
                self._slices[-1] = (block, self._slices[-1][1], at)
            else:
                self._slices.append((block, start, at))
        return at - start

    @property
    def slice_count(self) -> int:
        return len(self._slices)

    def _slice(self, i: int) -> tuple[RecordBlock, int, int]:
        if not 0 <= i < len(self._slices):
            raise IndexError(f"slice {i} of {len(self._slices)}")
        return self._slices[i]

    def slice_entry(self, slice_index: int) -> Entry:
        return self._slice(slice_index)[0].entry

    def slice_records(self, slice_index: int) -> int:
        _, start, stop = self._slice(slice_index)
        return stop - start

    def slice_indexes(self, slice_index: int) -> list[int]:
        block, start, stop = self._slice(slice_index)
        return [record.index for record in block.records[start:stop]]

    def slice_payload(self, slice_index: int) -> bytes:
        block, start, stop = self._slice(slice_index)
        payload = entry_payload(block.chain, block.entry)
        return b"".join(payload[record.begin : record.end] for record in block.records[start:stop])

    @property
    def first_cursor(self) -> tuple[int, int]:
        block, start, _ = self._slice(0)
        return block.entry.ordinal, block.records[start].index

    @property
    def last_cursor(self) -> tuple[int, int]:
        block, _, stop = self._slice(max(len(self._slices) - 1, 0))
        return block.entry.ordinal, block.records[stop - 1].index

    def encode_records_into(self, out: Any) -> int:
        if not self.count:
            raise ValueError("an empty batch has no bytes")
        view = memoryview(out).cast("B")
        if len(view) < self.size_bytes - BATCH_HEADER_BYTES:
            raise ValueError(
                f"{self.size_bytes - BATCH_HEADER_BYTES} bytes of records do not fit into {len(view)}"
            )
        records = [record for block, start, stop in self._slices for record in block.records[start:stop]]
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
        places = [(block, ref) for block, start, stop in self._slices for ref in range(start, stop)]
        last = -1
        for position in indexes:
            if not last < position < self.count:
                raise ValueError(
                    f"record {position} after {last} of {self.count}: ascending positions are needed"
                )
            block, ref = places[position]
            chosen.try_append(block, ref, ref + 1, _NO_LIMIT)
            last = position
        return chosen

    def entries(self) -> list[tuple[Entry, int]]:
        return [(block.entry, stop - start) for block, start, stop in self._slices]

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
        block, start, stop = self._slice(slice_index)
        before = sum(end - begin for _, begin, end in self._slices[:slice_index])
        indexes = [record.index for record in block.records[start:stop]]
        first, span = indexes[0], indexes[-1] - indexes[0] + 1
        shape, data = 3, b""
        if block.entry.flags & WANT_INDEXES:
            bitmap = sum(1 << i - first for i in indexes).to_bytes((span + 7) // 8, "little")
            listed = struct.pack(f"<{len(indexes)}H", *indexes)
            if span == len(indexes):
                shape = 0
            elif len(bitmap) <= len(listed):
                shape, data = 1, bitmap
            else:
                shape, data = 2, listed
        if len(text) > 0xFFFF:
            raise ValueError(f"an outcome's text has at most 65535 bytes, not {len(text)}")
        length = -(-(_OUTCOME.size + len(data) + len(text)) // 8) * 8
        entry = block.entry
        offset = base_offset + before if base_offset >= 0 else base_offset
        what = (number, entry.stream, code, entry.seq, partition, first, len(indexes))
        head = _OUTCOME.pack(
            length, kind, persistence, shape, 0, *what, len(data), len(text), offset, append_time_ms
        )
        return (head + data + text).ljust(length, b"\0")

    def mark_failed(self, code: int) -> None:
        _check_failure_code(code)
        for block, start, stop in self._slices:
            for record in block.records[start:stop]:
                if block.chain.word(block.entry, record.index) != WORD_DONE:
                    block.chain.set_word(block.entry, record.index, code)
                    stored(AT_FAILED_WORD)

    def mark_done(self) -> int:
        finished = 0
        for block, start, stop in self._slices:
            changed = 0
            for record in block.records[start:stop]:
                if block.entry.remaining and block.chain.word(block.entry, record.index) != WORD_DONE:
                    block.chain.set_word(block.entry, record.index, WORD_DONE)
                    stored(AT_DONE_WORD)
                    changed += 1
            finished += block.chain.settle(block.entry, changed)
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
    """Not atomic between processes: the twin is for one."""
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
