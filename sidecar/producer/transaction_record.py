"""TransactionRecord: what the successor of a dead worker must know of a lane's transactions.

Little-endian. It is stored whole before each request that changes it at the coordinator::

      0  u8 state (1 + index in TransactionState)   1 u8 transaction.version   2 u8 the last end was a commit
      3  u8 flags: 1 the coordinator may know of the open transaction, 2 its commit was or is being sent,
         4 it has included stages
      4  i16 epoch   6 u16 code of why it can only be aborted, or is lost   8 i64 producer id
     16  u64 transaction number   24 u64 last ended number   32 u64 aborted up to   40 u64 deadline, wall clock ms
     48  u32 timeout_ms   52 u32 client row   56 u32 row's generation

It has no list of partitions: an adopter adds those of the batches that it finds.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from sidecar.common.model import ProducerIdAndEpoch
from sidecar.producer.transaction_states import TransactionState

_RECORD: Final = struct.Struct("<BBBBhHqQQQQIII")
TRANSACTION_RECORD_BYTES: Final = _RECORD.size
_STATES: Final = tuple(TransactionState)


class TransactionRecord(NamedTuple):
    state: TransactionState
    version: int
    last_committed: bool
    """Whether the last ended transaction was committed."""
    has_produced: bool
    """Whether the coordinator may know of the open transaction."""
    has_asked_commit: bool
    """Whether the coordinator may have been asked to commit it."""
    has_included: bool
    """Whether it has included the stages whose records say so."""
    identity: ProducerIdAndEpoch
    cause_code: int
    """Why it can only be aborted, or its id is lost; 0: neither."""
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

    def pack(self) -> bytes:
        (
            state,
            version,
            last_committed,
            has_produced,
            has_asked_commit,
            has_included,
            (producer_id, epoch),
            cause,
            *numbers,
        ) = self
        flags = has_produced | has_asked_commit << 1 | has_included << 2
        return _RECORD.pack(
            _STATES.index(state) + 1,
            version,
            last_committed,
            flags,
            epoch,
            cause & 0xFFFF,
            producer_id,
            *numbers,
        )


def unpack_transaction_record(data: bytes | memoryview) -> TransactionRecord | None:
    """Read one record. None: another version wrote it."""
    if len(data) != TRANSACTION_RECORD_BYTES:
        return None
    state, version, last_committed, flags, epoch, cause, producer_id, *numbers = _RECORD.unpack(data)
    if not 1 <= state <= len(_STATES):
        return None
    return TransactionRecord(
        _STATES[state - 1],
        version,
        bool(last_committed),
        bool(flags & 1),
        bool(flags & 2),
        bool(flags & 4),
        ProducerIdAndEpoch(producer_id, epoch),
        -1 if cause == 0xFFFF else cause,  # the only negative code; the daemon's own are above 0xFF00
        *numbers,
    )
