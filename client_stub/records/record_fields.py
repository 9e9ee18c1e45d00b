"""Checks of a record's fields.

All ways to send but the compiled one call it, in the caller's thread.

Types are checked before anything is packed, as a failed pack could leave half a record in the buffer.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, Final

from client_stub.records.arguments import as_utf8
from client_stub.records.packer import FULL_OVERHEAD_BYTES, HEADER_OVERHEAD_BYTES, Headers

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1


def checked_bytes(value: object, what: str) -> bytes | None:
    """``value`` as bytes. Raises TypeError, which says what to do instead."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    hint = ""
    if isinstance(value, str):
        hint = "; encode it first, for example with .encode()"
    elif what in {"key", "value"}:
        hint = f"; encode it first, for example with json.dumps({what}).encode()"
    raise TypeError(f"{what} must be bytes or None, not {type(value).__name__}{hint}.")


def header_pairs(headers: Any) -> Iterable[Any] | None:
    """The pairs of headers in any form; None for what holds none."""
    kind = type(headers)
    if kind is list or kind is tuple:  # first, as an ABC's isinstance() costs each record 0.4 µs
        return headers  # type: ignore[no-any-return]
    if kind is dict or isinstance(headers, Mapping):
        return headers.items()  # type: ignore[no-any-return]
    return headers if isinstance(headers, Iterable) and not isinstance(headers, str | bytes) else None


def checked_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    pairs = header_pairs(headers)
    if pairs is None:
        raise TypeError(f"headers must be (name, value) pairs or a mapping, not {type(headers).__name__}.")
    checked: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"headers must be (name, value) pairs, not {pair!r:.80}.")
        name, value = pair
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}.")
        as_utf8(name, f"The name of header {name!a:.60}")  # otherwise packing would fail half-way
        checked.append((name, checked_bytes(value, f"the value of header {name!r}")))
    return checked


def checked_partition(partition: object) -> int:
    number = _integer("partition", partition)
    if not 0 <= number <= INT_MAX:
        raise ValueError(
            f"Invalid partition: {number}. Partition number should always be non-negative or None"
            f"{f', and at most {INT_MAX}' if number > 0 else ''}."
        )
    return number


def checked_timestamp(timestamp_ms: object) -> int:
    number = _integer("timestamp_ms", timestamp_ms)
    if not 0 <= number <= LONG_MAX:
        raise ValueError(
            f"Invalid timestamp: {number}. Timestamp should always be non-negative or None"
            f"{f', and at most {LONG_MAX}' if number > 0 else ''}."
        )
    return number


def _integer(name: str, given: Any) -> int:
    """Any integer as an int, also one of numpy, which is none of Python's."""
    if type(given) is int:
        return given
    try:
        if isinstance(given, bool):
            raise TypeError
        return int(operator.index(given))  # index() leaves a subclass of int as it is
    except TypeError:
        raise TypeError(f"{name} must be int or None, not {type(given).__name__}.") from None


def full_record(
    key: object, value: object, headers: Headers | None, partition: object, timestamp_ms: object
) -> tuple[tuple[Any, ...], int]:
    """A checked record of five fields and the upper bound of its packed size. Raises TypeError or ValueError."""
    # The checks are called for what they do not pass at once.
    if key is not None and not isinstance(key, bytes):
        key = checked_bytes(key, "key")
    if value is not None and not isinstance(value, bytes):
        value = checked_bytes(value, "value")
    size = FULL_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    checked = None
    if headers is not None:
        checked = checked_headers(headers)
        for name, content in checked:
            size += HEADER_OVERHEAD_BYTES + 3 * len(name) + len(content or b"")
    if partition is not None and not (type(partition) is int and 0 <= partition <= INT_MAX):
        partition = checked_partition(partition)
    if timestamp_ms is not None and not (type(timestamp_ms) is int and 0 <= timestamp_ms <= LONG_MAX):
        timestamp_ms = checked_timestamp(timestamp_ms)
    if checked is None and partition is None and timestamp_ms is None:
        return (key, value), size
    return (key, value, checked, partition, timestamp_ms), size


def checked_row(number: int, row: Any) -> tuple[tuple[Any, ...], int]:
    """Record ``number`` of send_many(), as ``full_record`` returns it. Raises TypeError or ValueError, which name the
    record.
    """
    if not isinstance(row, tuple | list) or not 2 <= len(row) <= 5:
        raise TypeError(
            f"record {number} must be (key, value[, headers[, partition[, timestamp_ms]]]), not {row!r:.60}."
        )
    try:
        return full_record(row[0], row[1], *(list(row[2:]) + [None] * (5 - len(row))))
    except (TypeError, ValueError) as error:
        raise type(error)(f"record {number}: {error}") from None
