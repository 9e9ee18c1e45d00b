"""The accept log's format on disk. docs/durability.md has the same drawing, and explains why it is sufficient.

::

    file     0       header    magic, version, slot, number, base, whether the base is whole, instance, salt; CRC-32C
             4 KiB   frames    each at a multiple of 4 KiB, written once, synced before the next is written
    frame    0       header    magic, CRC-32C over header and body, file number, head, sizes, counts, flags
             64      entries   {64 bytes, topic, payload as the journal has it}, each padded to 8
                     endings   {ordinal u64, chain u32, zero u32} of entries that have their end

A frame is valid as a whole or not at all. Its CRC covers all its bytes, the file's number and the file's salt. So
neither bytes of the file's earlier use nor bytes from a client can be mistaken for a frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from sidecar.kernel import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK_BYTES: Final = 4096
"""Frames begin at multiples of this, so a block with committed data is never written again."""
LOG_VERSION: Final = 1

_FILE_MAGIC: Final = b"KSACCLOG"
_FILE: Final = struct.Struct("<8sIIQQI16sQI")
"""magic, version, slot, number, base, base is whole, instance id, salt, CRC-32C of the fields before it."""
_FRAME_MAGIC: Final = b"KSFR"
_FRAME: Final = struct.Struct("<4sIQQQIIII")
"""magic, CRC-32C, file number, head, body bytes, entries, endings, flags, zero."""
FRAME_HEADER_BYTES: Final = 64
_BASE_IS_WHOLE: Final = 1
_ENTRY: Final = struct.Struct("<IIQQqQIIIIIHHBBH")
"""bytes with padding, chain, ordinal, seq, base timestamp ms, transaction number, records, stream, payload bytes,
client row, client generation, lane, topic bytes, format, flags, zero."""
ENTRY_HEADER_BYTES: Final = 72
_ENDING: Final = struct.Struct("<QII")
ENDING_BYTES: Final = _ENDING.size
assert _ENTRY.size <= ENTRY_HEADER_BYTES and _FRAME.size <= FRAME_HEADER_BYTES and _FILE.size <= 512


class FileHeader(NamedTuple):
    """Header of a log file. ``base``: number of the file with which this owner's log began. ``base_is_whole``: the
    base is complete.
    """

    slot: int
    number: int
    base: int
    base_is_whole: bool
    instance_id: bytes
    salt: int
    """Random, so that no client can predict a frame's CRC."""

    @property
    def seed(self) -> int:
        return crc32c(struct.pack("<QQ", self.salt, self.number))

    def pack(self) -> bytes:
        data = _FILE.pack(
            _FILE_MAGIC,
            LOG_VERSION,
            self.slot,
            self.number,
            self.base,
            self.base_is_whole,
            self.instance_id,
            self.salt,
            0,
        )[:-4]
        return (data + crc32c(data).to_bytes(4, "little")).ljust(BLOCK_BYTES, b"\0")

    @classmethod
    def read(cls, view: memoryview) -> FileHeader | None:
        """Parse a header. None if it is damaged, or of another version."""
        if len(view) < BLOCK_BYTES:
            return None
        magic, version, slot, number, base, is_whole, instance, salt, crc = _FILE.unpack_from(view)
        if magic != _FILE_MAGIC or version != LOG_VERSION or crc != crc32c(view[: _FILE.size - 4]):
            return None
        return cls(slot, number, base, bool(is_whole), instance, salt)


class LoggedEntry(NamedTuple):
    """One accepted submission in the log."""

    chain_id: int
    ordinal: int
    lane: int
    topic: str
    seq: int
    stream: int
    client_row: int
    client_generation: int
    base_timestamp_ms: int
    txn_number: int
    records: int
    format: int
    flags: int
    payload: Buffer

    def pack(self) -> tuple[bytes, Buffer, bytes]:
        """The entry's buffers in a frame: header with topic, payload, padding."""
        topic = self.topic.encode()
        payload_bytes = len(memoryview(self.payload))
        size = ENTRY_HEADER_BYTES + len(topic) + payload_bytes
        padding = -size % 8
        header = _ENTRY.pack(
            size + padding,
            self.chain_id,
            self.ordinal,
            self.seq,
            self.base_timestamp_ms,
            self.txn_number,
            self.records,
            self.stream,
            payload_bytes,
            self.client_row,
            self.client_generation,
            self.lane,
            len(topic),
            self.format,
            self.flags,
            0,
        )
        return header.ljust(ENTRY_HEADER_BYTES, b"\0") + topic, self.payload, bytes(padding)


class Frame(NamedTuple):
    head: int
    """Number of the oldest file that is still needed."""
    base_is_whole: bool
    entries: list[LoggedEntry]
    endings: list[tuple[int, int]]
    """(chain, ordinal)."""
    end: int
    """Position of the next frame."""


def packed_bytes(topic: str, payload_bytes: int) -> int:
    """Size of an entry in a frame, in bytes."""
    size = ENTRY_HEADER_BYTES + len(topic.encode()) + payload_bytes
    return size + -size % 8


def up_to_block(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def pack_frame(
    file: FileHeader,
    head: int,
    entries: Sequence[tuple[bytes, Buffer, bytes]],
    endings: Sequence[tuple[int, int]],
    *,
    base_is_whole: bool = False,
) -> list[Buffer]:
    """Buffers of one frame, padded to whole blocks. ``entries``: from LoggedEntry.pack()."""
    body: list[Buffer] = [buffer for entry in entries for buffer in entry if memoryview(buffer)]
    body += [_ENDING.pack(ordinal, chain_id, 0) for chain_id, ordinal in endings]
    size = sum(memoryview(each).nbytes for each in body)
    flags = _BASE_IS_WHOLE if base_is_whole else 0

    def header(crc: int) -> bytes:
        packed = _FRAME.pack(_FRAME_MAGIC, crc, file.number, head, size, len(entries), len(endings), flags, 0)
        return packed.ljust(FRAME_HEADER_BYTES, b"\0")

    crc = crc32c(header(0), file.seed)
    for each in body:
        crc = crc32c(each, crc)
    whole = FRAME_HEADER_BYTES + size
    return [header(crc), *body, bytes(up_to_block(whole) - whole)]


def read_frame(view: memoryview, at: int, file: FileHeader) -> Frame | None:
    """The frame at ``at``; None if there is no complete frame of this file."""
    if at + FRAME_HEADER_BYTES > len(view):
        return None
    magic, crc, of_number, head, size, entries, endings, flags, _ = _FRAME.unpack_from(view, at)
    end = at + FRAME_HEADER_BYTES + size
    if magic != _FRAME_MAGIC or of_number != file.number or end > len(view):
        return None
    head_bytes = bytearray(view[at : at + FRAME_HEADER_BYTES])
    head_bytes[4:8] = bytes(4)
    found = crc32c(head_bytes, file.seed)
    if crc32c(view[at + FRAME_HEADER_BYTES : end], found) != crc:
        return None
    body = view[at + FRAME_HEADER_BYTES : end]
    position = 0
    read: list[LoggedEntry] = []
    for _ in range(entries):
        entry, position = _read_entry(body, position)
        read.append(entry)
    ended = [
        (chain_id, ordinal)
        for ordinal, chain_id, _ in _ENDING.iter_unpack(body[position : position + endings * ENDING_BYTES])
    ]
    return Frame(head, bool(flags & _BASE_IS_WHOLE), read, ended, up_to_block(end))


def read_frames(view: memoryview, file: FileHeader) -> Iterator[Frame | str]:
    """Yield the frames of a file in order, and a sentence in place of each one that is missing or damaged.

    A frame is written only after the one before it was synced, so a complete frame proves that all earlier ones were
    written.
    """
    at = BLOCK_BYTES
    while at + FRAME_HEADER_BYTES <= len(view):
        frame = read_frame(view, at, file)
        if frame is not None:
            yield frame
            at = frame.end
            continue
        later = next(
            (
                position
                for position in range(at + BLOCK_BYTES, len(view), BLOCK_BYTES)
                if read_frame(view, position, file) is not None
            ),
            None,
        )
        if later is None:
            return
        yield f"{later - at} bytes at position {at} of file {file.number} cannot be read"
        at = later


def _read_entry(body: memoryview, at: int) -> tuple[LoggedEntry, int]:
    (
        size,
        chain_id,
        ordinal,
        seq,
        base_timestamp_ms,
        txn_number,
        count,
        stream,
        payload_bytes,
        client_row,
        client_generation,
        lane,
        topic_bytes,
        format_,
        flags,
        _,
    ) = _ENTRY.unpack_from(body, at)
    topic_at = at + ENTRY_HEADER_BYTES
    payload_at = topic_at + topic_bytes
    entry = LoggedEntry(
        chain_id=chain_id,
        ordinal=ordinal,
        lane=lane,
        topic=bytes(body[topic_at:payload_at]).decode(),
        seq=seq,
        stream=stream,
        client_row=client_row,
        client_generation=client_generation,
        base_timestamp_ms=base_timestamp_ms,
        txn_number=txn_number,
        records=count,
        format=format_,
        flags=flags,
        payload=body[payload_at : payload_at + payload_bytes],
    )
    return entry, at + size
