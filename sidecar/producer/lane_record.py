"""The record of a transactional lane in the segment: what the successor of a dead worker must know of it.

Little-endian, 256 bytes. It is stored whole before each request that changes it at the coordinator::

      0  u8 state (index in TransactionState, 0 = no lane)   1 u8 transaction.version   2 u8 result of the last end
      3  u8 length of the id   4 u16 lane   6 i16 epoch    8 i64 producer id
     16  u64 transaction number   24 u64 last ended number   32 u64 aborted up to
     40  u64 deadline, wall clock ms   48 u32 timeout_ms   52 u32 client row   56 u32 row's generation
     60  36 zero bytes   96 transactional id (UTF-8), then zeros
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from sidecar.common.model import ProducerIdAndEpoch
from sidecar.producer.transaction_states import TransactionState

_RECORD: Final = struct.Struct("<BBBBHhqQQQQIII36x160s")
LANE_RECORD_BYTES: Final = _RECORD.size
NAME_BYTES: Final = 160
assert LANE_RECORD_BYTES == 256

_STATES: Final = tuple(TransactionState)


class LaneRecord(NamedTuple):
    state: TransactionState
    version: int
    last_committed: bool
    """Whether the last ended transaction was committed."""
    lane: int
    identity: ProducerIdAndEpoch
    number: int
    """Of the open or last transaction; counts from 1 for each client."""
    last_ended: int
    aborted_up_to: int
    """Records of these transactions are never sent again."""
    deadline_ms: int
    """When the coordinator aborts the open transaction by itself, wall clock."""
    timeout_ms: int
    client_row: int
    client_generation: int
    transactional_id: str

    def pack(self) -> bytes:
        name = self.transactional_id.encode()
        return _RECORD.pack(
            _STATES.index(self.state) + 1,
            self.version,
            self.last_committed,
            len(name),
            self.lane,
            self.identity.epoch,
            self.identity.producer_id,
            self.number,
            self.last_ended,
            self.aborted_up_to,
            self.deadline_ms,
            self.timeout_ms,
            self.client_row,
            self.client_generation,
            name,
        )


def unpack_lane_record(data: bytes | memoryview) -> LaneRecord | None:
    """Read one record; None where there is no lane, or a byte that no version writes."""
    state, version, last, length, lane, epoch, producer_id, *numbers, name = _RECORD.unpack(data)
    if not 1 <= state <= len(_STATES) or length > NAME_BYTES:
        return None
    number, ended, aborted, deadline_ms, timeout_ms, row, generation = numbers
    return LaneRecord(
        _STATES[state - 1],
        version,
        bool(last),
        lane,
        ProducerIdAndEpoch(producer_id, epoch),
        number,
        ended,
        aborted,
        deadline_ms,
        timeout_ms,
        row,
        generation,
        name[:length].decode(errors="replace"),
    )
