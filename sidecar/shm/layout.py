"""Layout of the segment. Every offset is computed from the one before it.

::

    0        header           4 KiB   magic, version (stamped last), sizes, instance, pool words
    4 KiB    client words     8 B each: {generation u32, slot u8, state u8}
             page owner words 8 B each: {incarnation u32, state u32}; 0 = free, taken, linked
             pages            page_bytes each: 64 B header, then the bytes of one journal chain
             slots            64 x SLOT_STRIDE, allocated when first given to a worker
             clients          clients_max x CLIENT_STRIDE, allocated when first given to a client

    slot     0        header       pid, start time, incarnation, heartbeat, CPU, what is in work
             4 KiB    counters     {sequence u64} and 128 x u64
             8 KiB    chain table  1024 x 320 B: {tail u64, used u32, lane u16, topic bytes u16, topic, held u64}
                      descriptors  4096 x 128 B
                      lanes        256 x 256 B: records of transactional lanes (lane_records.py)
                      stages       1024 x 64 B: records of stages (stage_records.py). Earlier versions wrote where each
                                   sequence stood, here and in the lanes
                      lanes again  256 x 64 B: the second content of each

    client   0        row          client id, secret, name, numbers, streams 200 x 16 B
             4 KiB    outcome ring 252 KiB

All numbers are little-endian. Areas that are not allocated yet may be holes of the file and must not be read: on a
full /dev/shm, that raises SIGBUS. The same drawing with every field is in docs/segment.md.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

MAGIC: Final = b"KSIDECAR"
LAYOUT_VERSION: Final = 2

ALIGN: Final = 4096
SLOT_COUNT: Final = 64

# Header. The version is written last and alone: a file without it was never finished.
HEADER_BYTES: Final = 4096
VERSION_OFFSET: Final = 8
HEADER_FIELDS: Final = struct.Struct("<IIQIIQQ16s16sQqQQQQQQ")
"""page_bytes, zero, page_count, slot_count, clients_max, slot_stride, client_stride, instance, boot, controller
epoch, created wall ms, total bytes, positions of client words, owner words, pages, slots, clients."""
HEADER_FIELDS_OFFSET: Final = 16
BOOT_ID_OFFSET: Final = HEADER_FIELDS_OFFSET + struct.calcsize("<IIQIIQQ16s")
PREPARED_SLOTS_OFFSET: Final = 1024
"""One bit per slot whose area is allocated."""
TICKET_OFFSET: Final = 1032
"""Next ticket of the queue between workers that wait for pages."""
RATE_ROWS_OFFSET: Final = 1040
"""Clocks of rate limits: {hash of the topic u64 (0: free), microseconds u64}."""
RATE_ROWS_MAX: Final = 62
RATE_ROW_BYTES: Final = 16
SLOT_TICKETS_OFFSET: Final = 2048
"""One u64 per slot: the ticket with which it waits; 0 if it does not wait."""
SLOT_BORROWED_OFFSET: Final = SLOT_TICKETS_OFFSET + 8 * SLOT_COUNT
"""One u64 per slot: pages it holds above its floor."""
SLOT_TAKEN_OFFSET: Final = SLOT_BORROWED_OFFSET + 8 * SLOT_COUNT
"""One u64 per slot: pages it holds."""
SLOT_STALLED_OFFSET: Final = SLOT_TAKEN_OFFSET + 8 * SLOT_COUNT
"""One u64 per slot: bytes of the pool held by its stalled topics (share_words.py)."""
SLOT_POOL_TABLES: Final = (
    SLOT_TICKETS_OFFSET,
    SLOT_BORROWED_OFFSET,
    SLOT_TAKEN_OFFSET,
    SLOT_STALLED_OFFSET,
)
assert HEADER_FIELDS_OFFSET + HEADER_FIELDS.size <= PREPARED_SLOTS_OFFSET
assert RATE_ROWS_OFFSET + RATE_ROWS_MAX * RATE_ROW_BYTES <= SLOT_TICKETS_OFFSET
assert SLOT_STALLED_OFFSET + 8 * SLOT_COUNT <= HEADER_BYTES

PAGE_HEADER: Final = struct.Struct("<IIQIIQ")
"""slot, chain, page ordinal, offset of the first entry that begins in the page (NO_ENTRY: none), incarnation, ordinal
of that entry.
"""
PAGE_HEADER_BYTES: Final = 64
NO_ENTRY: Final = 0xFFFFFFFF

# Slot areas.
SLOT_HEADER: Final = struct.Struct("<QQIiQI20xqi")
"""incarnation, heartbeat ns, pid, cpu, process start ticks, state, lane 0 producer id, lane 0 epoch."""
SLOT_HEADER_BYTES: Final = 4096
INCARNATION_OFFSET: Final = 0
HEARTBEAT_OFFSET: Final = 8
PID_OFFSET: Final = 16
START_TIME_OFFSET: Final = 24
STATE_OFFSET: Final = 32
PRODUCER_ID_OFFSET: Final = 56
DEAD_LETTERING_OFFSET: Final = 72
"""u64: dead lettered records that are being marked done and are not counted yet (0: none)."""
SPARED_OFFSET: Final = 80
"""u64: the incarnation that the controller ended, so its work in progress is not to blame (0: none)."""
SLOT_CLOCK_OFFSET: Final = 88
"""i64 ns: lead of the slot's clock over the monotonic one. The slot's clock stops while no worker owns the
slot.
"""
SLOT_CLOCK_STOOD_OFFSET: Final = 96
"""i64 ns: the time at which the slot's clock stood, while a new owner restarts it; else 0."""
CHAIN_NAMES_OFFSET: Final = 128
"""u64: number of changes of names in the chain table. If it has changed, a row has another topic."""
SHARE_WAITS_OFFSET: Final = 136
"""u64: 1 while streams of this worker are held by a share of the pool."""
LANE_FORMAT_OFFSET: Final = 144
"""u64: the form of the lane records, stored after their area was emptied (0: earlier versions may have written there).
"""
STAGE_FORMAT_OFFSET: Final = 152
"""u64: the form of the stage records, as LANE_FORMAT_OFFSET has it for lanes."""
STAGE_NUMBER_OFFSET: Final = 160
"""u64: the number that a stage got last. None is used twice."""
STAGED_BYTES_OFFSET: Final = 168
"""u64: bytes of the pool held by stages (share_words.py)."""
ENDING_ABORTED_OFFSET: Final = 176
"""u64: records of transactions that are being marked done as aborted and are not counted yet (0: none)."""

IN_WORK_OFFSET: Final = 256
"""Entries and batches in work: one u64 for the loop, one for each codec thread (sidecar/shm/in_work.py)."""
IN_WORK_WORDS: Final = 4
SUSPECTS_OFFSET: Final = 512
"""Suspects at deaths: rows {what u64, deaths u32 << 32 | incarnation that died last u32}."""
SUSPECTS_MAX: Final = 16
assert IN_WORK_OFFSET + 8 * IN_WORK_WORDS <= SUSPECTS_OFFSET
assert SUSPECTS_OFFSET + 16 * SUSPECTS_MAX <= SLOT_HEADER_BYTES

COUNTERS_OFFSET: Final = SLOT_HEADER_BYTES
COUNTER_ROWS_MAX: Final = 128
COUNTERS_FIRST_OFFSET: Final = COUNTERS_OFFSET + 64
COUNTERS_BYTES: Final = 4096

CHAINS_OFFSET: Final = COUNTERS_OFFSET + COUNTERS_BYTES
CHAINS_MAX: Final = 1024
CHAIN_ROW: Final = struct.Struct("<QIHH")
"""tail, used, lane, topic bytes; the topic follows."""
CHAIN_ROW_BYTES: Final = 320
TOPIC_BYTES_MAX: Final = 249
CHAIN_NUMBER_OFFSET: Final = 304
"""In a row, u64: the number in CHAIN_NAMES_OFFSET when the row's name last changed (0: an older version named it)."""
CHAIN_HELD_OFFSET: Final = 312
"""In a row, u64: bytes of the pool held by the chain, as its worker counts shares."""

DESCRIPTORS_OFFSET: Final = CHAINS_OFFSET + CHAINS_MAX * CHAIN_ROW_BYTES
DESCRIPTORS_MAX: Final = 4096
DESCRIPTOR_BYTES: Final = 128

LANES_OFFSET: Final = DESCRIPTORS_OFFSET + DESCRIPTORS_MAX * DESCRIPTOR_BYTES
LANES_MAX: Final = 256
LANE_BYTES: Final = 256

STAGES_OFFSET: Final = LANES_OFFSET + LANES_MAX * LANE_BYTES
STAGES_MAX: Final = 1024
STAGE_BYTES: Final = 64

LANE_CONTENTS_OFFSET: Final = STAGES_OFFSET + STAGES_MAX * STAGE_BYTES
LANE_CONTENT_BYTES: Final = 64

SLOT_STRIDE: Final = LANE_CONTENTS_OFFSET + LANES_MAX * LANE_CONTENT_BYTES

assert SLOT_HEADER.size <= SLOT_HEADER_BYTES
assert COUNTERS_FIRST_OFFSET + 8 * COUNTER_ROWS_MAX <= CHAINS_OFFSET
assert CHAIN_ROW.size + TOPIC_BYTES_MAX <= CHAIN_NUMBER_OFFSET and CHAIN_HELD_OFFSET + 8 <= CHAIN_ROW_BYTES
assert CHAIN_ROW_BYTES % 64 == 0
assert DESCRIPTORS_OFFSET % 64 == 0 and LANES_OFFSET % 64 == 0 and SLOT_STRIDE % ALIGN == 0

# Client areas.
CLIENT_STRIDE: Final = 256 * 1024
CLIENT_ROW_BYTES: Final = 4096
CLIENT_ROW: Final = struct.Struct("<II20sI16sH62s")
"""generation, slot, client id, pid, secret, name bytes, name."""
CLIENT_ID_OFFSET: Final = 8
CLIENT_USER_OFFSET: Final = 120
"""uid + 1 of the client's process as u64; 0: not known (rows of earlier versions)."""
ACKED_NUMBER_OFFSET: Final = 128
RING_WRITTEN_OFFSET: Final = 136
RING_READ_OFFSET: Final = 144
STREAMS_OFFSET: Final = 256
STREAMS_MAX: Final = 200
STREAM_BYTES: Final = 16
RING_OFFSET: Final = CLIENT_ROW_BYTES
RING_BYTES: Final = CLIENT_STRIDE - RING_OFFSET
assert CLIENT_ROW.size <= CLIENT_USER_OFFSET and CLIENT_USER_OFFSET + 8 <= ACKED_NUMBER_OFFSET
assert STREAMS_OFFSET + STREAMS_MAX * STREAM_BYTES <= CLIENT_ROW_BYTES


def _up(position: int) -> int:
    return -(-position // ALIGN) * ALIGN


class Layout(NamedTuple):
    """Positions in one segment's file, in bytes."""

    page_bytes: int
    page_count: int
    clients_max: int
    client_words: int
    owners: int
    pages: int
    slots: int
    clients: int
    total: int

    @classmethod
    def of(cls, *, page_bytes: int, page_count: int, clients_max: int) -> Layout:
        client_words = HEADER_BYTES
        owners = _up(client_words + 8 * clients_max)
        pages = _up(owners + 8 * page_count)
        slots = _up(pages + page_count * page_bytes)
        clients = slots + SLOT_COUNT * SLOT_STRIDE
        total = clients + clients_max * CLIENT_STRIDE
        return cls(page_bytes, page_count, clients_max, client_words, owners, pages, slots, clients, total)

    def slot(self, slot: int) -> int:
        return self.slots + slot * SLOT_STRIDE

    def client(self, row: int) -> int:
        return self.clients + row * CLIENT_STRIDE
