"""The twin's reader: RecordBlock and index.

Records are parsed by msgpack itself, so a mistake of the compiled reader cannot be repeated here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from tests.kernel.oracle.reference_bytes import encode_varint
from tests.kernel.oracle.reference_chain import WORD_DONE, WORD_FAILED_MIN, WORD_UNPARTITIONED, Chain, Entry
from tests.kernel.oracle.reference_hook import AT_FAILED_WORD, AT_INDEX_WORD, stored
from tests.kernel.oracle.reference_partitioner import StickyPartitioner

MALFORMED_RECORD: Final = 0xFF00
RECORD_TOO_LARGE: Final = 0xFF01
INVALID_PARTITION: Final = 0xFF02
INVALID_TIMESTAMP: Final = 0xFF03
PARTITIONER_SHIFT: Final = 2
PARTITIONER_MASK: Final = 7
FIXED_PARTITIONS: Final = 0x20
UPPER_BOUND_OVERHEAD: Final = 82
WORK_NUMBER: Final = (1 << 50) - 1


@dataclass(frozen=True, slots=True)
class Record:
    entry: Entry
    index: int
    timestamp_ms: int
    body: bytes
    """Encoded key, value and headers."""
    begin: int
    end: int
    """Range of its msgpack bytes in the entry's payload."""


class RecordBlock:
    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.entry: Entry
        """The entry that was walked last."""
        self.taken = 0
        self.unplaced: list[int] = []
        self.records: list[Record] = []
        self.groups: list[tuple[int, int, int]] = []
        self.failures: list[tuple[int, int]] = []

    @property
    def count(self) -> int:
        return len(self.records)

    def accepted(self, ref: int) -> int:
        if not 0 <= ref < len(self.records):
            raise ValueError(f"reference {ref} of a block with {len(self.records)}")
        return self.records[ref].entry.accepted

    def find(self, start: int, stop: int, ordinal: int, record: int) -> int:
        if not 0 <= start <= stop <= len(self.records):
            raise ValueError(f"references {start}:{stop} of a block with {len(self.records)}")
        wanted = (ordinal, record)
        found = (
            i for i in range(start, stop) if (self.records[i].entry.ordinal, self.records[i].index) >= wanted
        )
        return next(found, stop)


def _bytes_field(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


def _is_bytes(value: Any) -> bool:
    return value is None or isinstance(value, bytes)


def _read(unpacker: Any) -> tuple[Any, ...] | None:
    """(key, value, headers, partition, timestamp), or None for anything that is no record."""
    try:
        record = unpacker.unpack()
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        return None
    if not isinstance(record, list) or not 2 <= len(record) <= 5:
        return None
    key, value, headers, partition, timestamp = (*record, None, None, None)[:5]
    if not (_is_bytes(key) and _is_bytes(value) and (headers is None or isinstance(headers, list))):
        return None
    for header in headers or ():
        if not (
            isinstance(header, list)
            and len(header) == 2
            and isinstance(header[0], str)
            and _is_bytes(header[1])
        ):
            return None
    for number in (partition, timestamp):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            return None
    return key, value, headers, partition, timestamp


def _body(key: bytes | None, value: bytes | None, headers: list[Any] | None) -> bytes:
    out = _bytes_field(key) + _bytes_field(value) + encode_varint(len(headers or ()))
    for name, data in headers or ():
        out += _bytes_field(name.encode("utf-8", "surrogateescape")) + _bytes_field(data)
    return out


def _choose(
    partitioner: StickyPartitioner,
    named: int,
    body: bytes,
    key: bytes | None,
    partition: int | None,
    timestamp: int | None,
    max_request_bytes: int,
) -> int:
    if len(body) + UPPER_BOUND_OVERHEAD > max_request_bytes:
        return RECORD_TOO_LARGE
    if timestamp is not None and not 0 <= timestamp < 1 << 63:
        return INVALID_TIMESTAMP
    if partition is None:
        partition = partitioner.next_partition(len(body) + 6, key, named)
    valid = 0 <= partition < min(partitioner.partition_count, WORD_FAILED_MIN)
    return partition if valid else INVALID_PARTITION


def index(
    chain: Chain,
    entry: Entry,
    partitioner: StickyPartitioner,
    max_request_bytes: int,
    retry_code: int = 0,
    in_work: Any = None,
    work_word: int = 0,
) -> RecordBlock:
    if not chain.is_live(entry):
        raise ValueError(f"{entry!r} is not a live entry of {chain!r}")
    ordinals = entry.ordinal.to_bytes(8, sys.byteorder)
    return index_run(chain, ordinals, partitioner, max_request_bytes, retry_code, in_work, work_word)


def index_run(
    chain: Chain,
    ordinals: Any,
    partitioner: StickyPartitioner,
    max_request_bytes: int,
    retry_code: int = 0,
    in_work: Any = None,
    work_word: int = 0,
    records_max: int = 65_535,
) -> RecordBlock:
    block = RecordBlock(chain)
    found: list[tuple[int, Record]] = []
    note = memoryview(in_work).cast("B").cast("Q") if in_work is not None else None
    taken = 0
    for ordinal in memoryview(ordinals).cast("B").cast("Q"):
        if len(found) >= records_max or block.failures:
            break
        taken += 1
        if not chain.is_live_at(ordinal):
            continue
        if note is not None:
            note[0] = work_word | ordinal & WORK_NUMBER
        found += _walk(block, chain.entry(ordinal), partitioner, max_request_bytes, retry_code)
    block.taken = taken
    if note is not None:
        note[0] = 0
    _group(block, found)
    return block


def _group(block: RecordBlock, found: list[tuple[int, Record]]) -> None:
    by_partition: dict[int, list[Record]] = {}
    for partition, record in found:
        by_partition.setdefault(partition, []).append(record)
    for partition, records in by_partition.items():
        block.groups.append((partition, len(block.records), len(block.records) + len(records)))
        block.records += records


def _walk(
    block: RecordBlock,
    entry: Entry,
    partitioner: StickyPartitioner,
    max_request_bytes: int,
    retry_code: int,
) -> list[tuple[int, Record]]:
    """Walk one entry: returns its records with their present or new partitions."""
    chain = block.chain
    block.entry = entry
    block.taken += 1
    unpacker = msgpack.Unpacker(
        raw=False,
        unicode_errors="surrogateescape",
        strict_map_key=False,
        max_buffer_size=0,
        max_array_len=100_000,
    )
    unpacker.feed(chain.read(entry.payload_at, entry.payload_bytes))
    found: list[tuple[int, Record]] = []
    readable = True
    is_unplaced = False
    for i in range(entry.count):
        word = chain.word(entry, i)
        if retry_code == WORD_DONE:
            is_unplaced = is_unplaced or word == WORD_UNPARTITIONED
            word = WORD_DONE if word == WORD_UNPARTITIONED else word
        elif retry_code:
            word = WORD_UNPARTITIONED if word == retry_code else WORD_DONE
        begin = unpacker.tell()
        record = _read(unpacker) if readable else None
        if record is None:
            readable = False
            if word != WORD_DONE:
                failed = word if WORD_FAILED_MIN <= word < WORD_DONE else MALFORMED_RECORD
                chain.set_word(entry, i, failed)
                stored(AT_FAILED_WORD)
                block.failures.append((i, failed))
            continue
        key, value, headers, partition, timestamp = record
        body = _body(key, value, headers)
        if word == WORD_UNPARTITIONED:
            named = entry.flags >> PARTITIONER_SHIFT & PARTITIONER_MASK
            word = _choose(partitioner, named, body, key, partition, timestamp, max_request_bytes)
            if word != INVALID_PARTITION or entry.flags & FIXED_PARTITIONS:
                chain.set_word(entry, i, word)
                stored(AT_INDEX_WORD)
        elif word < WORD_FAILED_MIN and word >= partitioner.partition_count:
            word = INVALID_PARTITION
        if word < WORD_FAILED_MIN:
            stamp = entry.base_timestamp_ms if timestamp is None else timestamp
            found.append((word, Record(entry, i, stamp, body, begin, unpacker.tell())))
        elif word != WORD_DONE:
            if word != INVALID_PARTITION or chain.word(entry, i) != WORD_UNPARTITIONED:
                chain.set_word(entry, i, word)
                stored(AT_FAILED_WORD)
            block.failures.append((i, word))
    if is_unplaced:
        block.unplaced.append(entry.ordinal)
    return found
