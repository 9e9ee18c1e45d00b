"""Checks of a producer's arguments, made before anything is started or queued. The text of each error is one
sentence.

Constructors and calls of producers, in the caller's thread.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any, Final

from client_stub.contract.wire import (
    CLIENT_NAME_BYTES_MAX,
    STAGE_OWNER_BYTES_MAX,
    TOPIC_BYTES_MAX,
    TRANSACTIONAL_ID_BYTES_MAX,
)

SEND_FIELDS: Final = ("topic", "value", "key", "headers", "partition", "timestamp_ms", "on_delivery")
"""The arguments of Producer.send()."""
_PLAIN_NUMBERS: Final = frozenset({float, int})
_WAIT_MAX_S: Final = threading.TIMEOUT_MAX


def check_topic(topic: object) -> None:
    """Raises TypeError or ValueError for a value that can be no topic's name. Kafka decides which other names are
    legal.
    """
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {type(topic).__name__}.")
    if not 0 < len(as_utf8(topic, f"Topic name {topic!a:.60}")) <= TOPIC_BYTES_MAX:
        raise ValueError(f"Topic name {topic!r:.60} is not valid: it must have 1 to {TOPIC_BYTES_MAX} bytes.")


def as_utf8(text: str, what: str) -> bytes:
    """``text`` as UTF-8. Raises ValueError, which names ``what``, for a lone surrogate (half a character)."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{what} has half a character (a lone surrogate), which UTF-8 cannot express."
        ) from None


def check_name(client_name: object) -> None:
    """Raises TypeError or ValueError for a client name that the daemon would refuse."""
    if not isinstance(client_name, str):
        raise TypeError(f"client_name must be str, not {type(client_name).__name__}.")
    if len(as_utf8(client_name, "client_name")) > CLIENT_NAME_BYTES_MAX:
        raise ValueError(f"client_name {client_name!r:.40} has more than {CLIENT_NAME_BYTES_MAX} bytes.")


def script_name() -> str:
    """The default name of a client: that of the running script, even if that name is not valid text."""
    name = os.path.basename(sys.argv[0] if sys.argv else "") or "python"  # noqa: PTH119  pathlib costs half a megabyte
    return shortened(name)


def shortened(name: str) -> str:
    """``name`` cut to the bytes that a client's name may have."""
    return name.encode("utf-8", "replace")[:CLIENT_NAME_BYTES_MAX].decode("utf-8", "ignore")


def check_token(token: object) -> None:
    """Raises TypeError or ValueError for a token that cannot be sent. The error does not repeat the token, which is a
    secret.
    """
    if not isinstance(token, str):
        raise TypeError(f"token must be str, not {type(token).__name__}.")
    as_utf8(token, "token")


def check_transactional_id(transactional_id: object) -> None:
    """Raises TypeError or ValueError for a transactional id that the daemon would refuse."""
    if not isinstance(transactional_id, str):
        raise TypeError(f"transactional_id must be str, not {type(transactional_id).__name__}.")
    if not transactional_id:
        raise ValueError("transactional_id is empty: name the program, and what it works on.")
    if len(as_utf8(transactional_id, "transactional_id")) > TRANSACTIONAL_ID_BYTES_MAX:
        raise ValueError(
            f"transactional_id {transactional_id[:40]!r}... has more than {TRANSACTIONAL_ID_BYTES_MAX} bytes: choose a "
            "shorter one."
        )


def check_stage(number: object, owner: object) -> None:
    """Raises TypeError or ValueError for a stage's number or owner that the daemon would refuse."""
    check_stage_number("number", number)
    if not isinstance(owner, str):
        raise TypeError(f"owner must be str, not {type(owner).__name__}.")
    if len(as_utf8(owner, "owner")) > STAGE_OWNER_BYTES_MAX:
        raise ValueError(f"owner {owner!r:.40} has more than {STAGE_OWNER_BYTES_MAX} bytes.")


def check_stage_number(name: str, number: object) -> None:
    """Raises TypeError or ValueError for anything that is not the number of a stage."""
    if type(number) is not int:
        raise TypeError(f"{name} must be int, not {type(number).__name__}.")
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{name} must be from 0 to 2^64 - 1, not {number}.")


def check_up_to(up_to: object) -> None:
    """Raises TypeError or ValueError for a number up to which stages cannot be dropped."""
    if up_to is not None:
        check_stage_number("up_to", up_to)


def milliseconds(name: str, value: object, *, may_be_zero: bool = True) -> float:
    """``value`` as a float. Raises TypeError or ValueError for anything that is not a length of time in ms; infinity
    is allowed.
    """
    if not _is_number(value):
        raise TypeError(f"{name} must be a number of milliseconds, not {type(value).__name__}.")
    number = _float(value)
    if math.isnan(number):
        raise ValueError(f"{name} must be a number of milliseconds, not nan.")
    if number < 0 or (number == 0 and not may_be_zero):
        raise ValueError(
            f"{name} must {'not be negative' if may_be_zero else 'be more than 0'}, not {value}."
        )
    return number


def checked_wait(timeout: object, name: str = "timeout") -> float | None:
    """``timeout`` as a number of seconds that a lock takes, or None. Less than 0 seconds only looks, as 0 does.

    Raises TypeError or ValueError for anything else. Every wait calls it first: a wrong argument does not depend on
    whether there is anything to wait for.
    """
    if timeout is None or (type(timeout) in _PLAIN_NUMBERS and -_WAIT_MAX_S <= timeout <= _WAIT_MAX_S):  # type: ignore[operator]
        return timeout  # type: ignore[return-value]  # most waits, so this costs one line; nan compares false
    if not _is_number(timeout):
        raise TypeError(f"{name} must be a number of seconds or None, not {type(timeout).__name__}.")
    number = _float(timeout)
    if math.isnan(number):
        raise ValueError(f"The {name} cannot be nan.")
    return max(-1.0, min(number, _WAIT_MAX_S))


def checked_timeout(timeout: object, name: str = "timeout") -> float | None:
    """As ``checked_wait``, but raises ValueError for less than 0 seconds."""
    seconds = checked_wait(timeout, name)
    if seconds is not None and seconds < 0:
        raise ValueError(f"The {name} cannot be negative.")
    return seconds


def _is_number(value: object) -> bool:
    """Whether float() takes it as a number, as typing.SupportsFloat asks, whose isinstance() takes 11 µs."""
    kind = type(value)
    return kind is not bool and hasattr(kind, "__float__")


def _float(value: Any) -> float:
    """``float(value)``; infinity for an int that is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def list_of_rows(records: Iterable[Any]) -> list[Any]:
    """The records of send_many(). Raises TypeError for what holds none."""
    if isinstance(records, list):
        return records
    if not isinstance(records, Iterable) or isinstance(records, str | bytes):
        raise TypeError(
            "records must be an iterable of (key, value[, headers[, partition[, timestamp_ms]]]), not "
            f"{type(records).__name__}."
        )
    return list(records)


def check_callable(name: str, given: object, call: str) -> None:
    """Raises TypeError unless ``given`` is callable; ``call`` is the signature that the error shows."""
    if not callable(given):
        raise TypeError(f"{name} must be callable as {call}, not {type(given).__name__}.")


def check_on_delivery(given: object) -> None:
    if given is not None:
        check_callable("on_delivery", given, "on_delivery(error, metadata)")


def check_until(until: object) -> None:
    """Raises ValueError for a value of flush() that is none."""
    if until not in ("delivered", "accepted"):
        raise ValueError(f"until is {until!r}: it must be 'delivered' or 'accepted'.")


def check_count(name: str, given: object) -> None:
    """Raises TypeError or ValueError unless ``given`` is an int of at least 1."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{name} must be int, not {type(given).__name__}.")
    if given < 1:
        raise ValueError(f"{name} must be at least 1, not {given}.")
