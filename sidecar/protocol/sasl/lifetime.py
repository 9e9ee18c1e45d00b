"""Limits the session lifetime in an answer to SaslAuthenticate, so that kio can read it.

``messages`` calls it for each answer to SaslAuthenticate, on the loop of the link.

It is a signed 64-bit number of milliseconds, but a ``timedelta`` holds only a hundredth of that, so kio refuses larger
values.
"""

from __future__ import annotations

import struct
from typing import Final

from sidecar.protocol.sasl.session import SESSION_MS_MAX

_FLEXIBLE_VERSION: Final = 2
_LIFETIME: Final = struct.Struct(">q")


def with_readable_lifetime(version: int, body: bytes) -> bytes:
    """The body of an answer of this version (1 or later), with its lifetime limited to SESSION_MS_MAX.

    A body that is cut short is returned unchanged; its reader will refuse it.
    """
    try:
        at = _end_of_bytes(version, body, _end_of_bytes(version, body, 2, is_text=True), is_text=False)
        (lifetime_ms,) = _LIFETIME.unpack_from(body, at)
    except (struct.error, IndexError):
        return body
    readable_ms = max(-1, min(lifetime_ms, SESSION_MS_MAX))
    if readable_ms == lifetime_ms:
        return body
    return body[:at] + _LIFETIME.pack(readable_ms) + body[at + _LIFETIME.size :]


def _end_of_bytes(version: int, body: bytes, at: int, *, is_text: bool) -> int:
    """Position after a nullable text, or after bytes."""
    if version < _FLEXIBLE_VERSION:
        (size,) = struct.unpack_from(">h" if is_text else ">i", body, at)
        return at + (2 if is_text else 4) + max(0, int(size))
    size = 0
    for shift in range(0, 35, 7):
        byte = body[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at + max(0, size - 1)
    raise IndexError("a length of more than five bytes")
