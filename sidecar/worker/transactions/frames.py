"""Reading the frames of transactions and stages."""

from __future__ import annotations

from typing import Any, Final

import msgpack

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


def is_count(value: Any) -> bool:
    return is_within(value, 0, INT64_MAX)


def is_within(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
