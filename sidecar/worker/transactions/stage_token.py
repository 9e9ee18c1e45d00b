"""The token of a sealed stage: what a transaction names to include it. Opaque to everybody else, and printable."""

from __future__ import annotations

import binascii
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from typing import Final, NamedTuple

_TOKEN: Final = struct.Struct("<8sBQI8s")
_PREFIX: Final = b"stage-1-"
"""Tells a token from other texts, and this form from later ones."""


class StageToken(NamedTuple):
    instance: bytes
    """Digest of the segment's instance."""
    slot: int
    number: int
    """The stage's, in the slot."""
    records: int
    transactional_id: bytes
    """Digest of it."""

    def pack(self) -> bytes:
        return _PREFIX + urlsafe_b64encode(_TOKEN.pack(*self)).rstrip(b"=")


def unpack_stage_token(data: bytes) -> StageToken | None:
    """None: it is no token."""
    if not data.startswith(_PREFIX):
        return None
    text = data[len(_PREFIX) :]
    try:
        packed = urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except binascii.Error:
        return None
    return StageToken(*_TOKEN.unpack(packed)) if len(packed) == _TOKEN.size else None


def digest8(data: bytes) -> bytes:
    """Digest of what a token names."""
    return blake2b(data, digest_size=8).digest()


def digest32(text: str) -> int:
    """Digest of an owner or a client's name, as a stage's record has it; 0 for none."""
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little") if text else 0
