"""The name of an accepted submission, for all time: what is the same record is decided by it and by nothing else.

A submission is named where it was first accepted, by what never changes of its entry: the segment, slot, chain and
ordinal where it stands, and who sent it. A crash of the host gives it another entry in another segment, and nobody
is left who sent it: that entry carries the name, in the fields that said who (sidecar/shm/restore.py).
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple, Protocol

NAME_BYTES: Final = 16
CARRIES_NAME: Final = 0x80
"""Entry flag: row, stream and seq are the name. It counts only with generation 0, which no client has."""

_CARRIED: Final = struct.Struct("<IIQ")
_NAMED_BY: Final = struct.Struct("<16sIIQIIIQq")
assert _CARRIED.size == NAME_BYTES


class Named(Protocol):
    """The fields that an entry of the journal and one of the accept log have in common."""

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
    """A name in the fields of an entry that nobody sent."""

    client_row: int
    stream: int
    seq: int


def submission_name(instance_id: bytes, slot: int, entry: Named) -> bytes:
    """16 bytes: two submissions have the same ones only when they are the same submission.

    ``instance_id`` and ``slot`` are those of the segment, or of the log, that ``entry`` was read from.
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
    """The fields of an entry, with CARRIES_NAME among its flags, from which submission_name() reads ``name``."""
    return CarriedName(*_CARRIED.unpack(name))


def is_restored(entry: Named) -> bool:
    """Whether the entry was made from an accept log and carries its first name."""
    return entry.client_generation == 0 and bool(entry.flags & CARRIES_NAME)
