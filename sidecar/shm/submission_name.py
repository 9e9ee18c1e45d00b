"""The permanent name of an accepted submission. Two submissions are the same if and only if their names are equal.

The name is made where the submission is first accepted, from unchanging facts of its entry: segment, slot, chain,
ordinal, and its sender. After a crash of the host the submission gets another entry in another segment, and its sender
is gone. That entry carries the name in the fields of the sender (sidecar/shm/restore.py).
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple, Protocol

NAME_BYTES: Final = 16
CARRIES_NAME: Final = 0x80
"""Entry flag: row, stream and seq hold the name. Valid only with generation 0, which no client has."""

_CARRIED: Final = struct.Struct("<IIQ")
_NAMED_BY: Final = struct.Struct("<16sIIQIIIQq")
assert _CARRIED.size == NAME_BYTES


class Named(Protocol):
    """Fields that entries of the journal and of the accept log have in common."""

    @property
    def chain_id(self) -> int: ...
    @property
    def ordinal(self) -> int: ...
    @property
    def client_row(self) -> int: ...
    @property
    def client_generation(self) -> int: ...
    @property
    def stream(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def base_timestamp_ms(self) -> int: ...
    @property
    def flags(self) -> int: ...


class CarriedName(NamedTuple):
    """A name, in the fields of an entry without a sender."""

    client_row: int
    stream: int
    seq: int


def submission_name(instance_id: bytes, slot: int, entry: Named) -> bytes:
    """The 16-byte name. Two submissions have the same name only if they are the same submission.

    ``instance_id`` and ``slot`` are those of the segment or log from which ``entry`` was read.
    """
    if is_restored(entry):
        return _CARRIED.pack(entry.client_row, entry.stream, entry.seq)
    named_by = _NAMED_BY.pack(
        instance_id,
        slot,
        entry.chain_id,
        entry.ordinal,
        entry.client_row,
        entry.client_generation,
        entry.stream,
        entry.seq,
        entry.base_timestamp_ms,
    )
    return hashlib.blake2b(named_by, digest_size=NAME_BYTES).digest()


def carry(name: bytes) -> CarriedName:
    """Entry fields from which submission_name() reads ``name``, together with the flag CARRIES_NAME."""
    return CarriedName(*_CARRIED.unpack(name))


def is_restored(entry: Named) -> bool:
    """Whether the entry was made from an accept log and carries its first name."""
    return entry.client_generation == 0 and bool(entry.flags & CARRIES_NAME)
