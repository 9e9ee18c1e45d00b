"""Reading the frames of transactions and stages."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from client_stub.contract.wire import TRANSACTIONAL_ID_BYTES_MAX
from sidecar.worker.streams.refusal import MalformedFrame

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
_PACK_ERRORS: Final = (ValueError, TypeError, OverflowError, msgpack.UnpackException)


def rows_of(payload: Any) -> list[Any]:
    """The array in a message's second frame."""
    try:
        rows = msgpack.unpackb(payload)
    except _PACK_ERRORS as error:
        raise MalformedFrame(f"{type(error).__name__}: {error}") from None
    if type(rows) is not list:
        raise MalformedFrame("a second frame that is no array")
    return rows


def positions_of(payload: Any) -> list[tuple[int, int]]:
    """(stream, last sequence number) of each row of a second frame."""
    positions = []
    for row in rows_of(payload):
        if type(row) is not list or len(row) != 2 or not all(map(is_count, row)):
            raise MalformedFrame(f"{row!r:.40} is no stream and sequence number")
        positions.append((row[0], row[1]))
    return positions


def checked_transactional_id(value: Any) -> str:
    if type(value) is not str or not 0 < len(value.encode()) <= TRANSACTIONAL_ID_BYTES_MAX:
        raise MalformedFrame(f"a transactional id has 1 to {TRANSACTIONAL_ID_BYTES_MAX} bytes")
    return value


def is_count(value: Any) -> bool:
    return is_within(value, 0, INT64_MAX)


def is_within(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
