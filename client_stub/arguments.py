"""Arguments of a producer: each is checked before anything starts or is queued, and a wrong one is one sentence."""

from __future__ import annotations

import math
import os
import sys
from typing import SupportsFloat

from client_stub.wire import CLIENT_NAME_BYTES_MAX, TOPIC_BYTES_MAX


def check_topic(topic: object) -> None:
    """Raises TypeError or ValueError for what no topic can be called; which names are legal, Kafka decides."""
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {type(topic).__name__}.")
    if not 0 < len(as_utf8(topic, f"Topic name {topic!a:.60}")) <= TOPIC_BYTES_MAX:
        raise ValueError(f"Topic name {topic!r:.60} is not valid: it must have 1 to {TOPIC_BYTES_MAX} bytes.")


def as_utf8(text: str, what: str) -> bytes:
    """Raises ValueError, which names ``what``, for text with half a character (a lone surrogate)."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{what} has half a character (a lone surrogate), which UTF-8 cannot express."
        ) from None


def check_name(client_name: object) -> None:
    """Raises TypeError or ValueError for what the daemon would not take as a client's name."""
    if not isinstance(client_name, str):
        raise TypeError(f"client_name must be str, not {type(client_name).__name__}.")
    if len(as_utf8(client_name, "client_name")) > CLIENT_NAME_BYTES_MAX:
        raise ValueError(f"client_name {client_name!r:.40} has more than {CLIENT_NAME_BYTES_MAX} bytes.")


def script_name() -> str:
    """The name of a client that has given none: that of the running script, also of one whose name is no text."""
    name = os.path.basename(sys.argv[0] if sys.argv else "") or "python"  # noqa: PTH119  (pathlib costs half a megabyte)
    return shortened(name)


def shortened(name: str) -> str:
    """As much of ``name`` as a client's name may have bytes."""
    return name.encode("utf-8", "replace")[:CLIENT_NAME_BYTES_MAX].decode("utf-8", "ignore")


def check_token(token: object) -> None:
    """Raises TypeError or ValueError, which do not repeat what may be a secret."""
    if not isinstance(token, str):
        raise TypeError(f"token must be str, not {type(token).__name__}.")
    as_utf8(token, "token")


def milliseconds(name: str, value: object, *, may_be_zero: bool = True) -> float:
    """``value`` as a float. Raises TypeError or ValueError for what is no length of time; infinity is one."""
    if not isinstance(value, SupportsFloat) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of milliseconds, not {type(value).__name__}.")
    number = float(value)
    if math.isnan(number):
        raise ValueError(f"{name} must be a number of milliseconds, not nan.")
    if number < 0 or (number == 0 and not may_be_zero):
        raise ValueError(
            f"{name} must {'not be negative' if may_be_zero else 'be more than 0'}, not {value}."
        )
    return number


def check_timeout(timeout: object) -> None:
    """Raises TypeError or ValueError for what is neither None nor a length of time in seconds."""
    if timeout is None:
        return
    if not isinstance(timeout, SupportsFloat) or isinstance(timeout, bool):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}.")
    if math.isnan(timeout):
        raise ValueError("The timeout cannot be nan.")
    if float(timeout) < 0:
        raise ValueError("The timeout cannot be negative.")


def check_callable(name: str, given: object, call: str) -> None:
    """Raises TypeError for what cannot be called; ``call`` shows how it would be."""
    if not callable(given):
        raise TypeError(f"{name} must be callable as {call}, not {type(given).__name__}.")


def check_on_delivery(given: object) -> None:
    if given is not None:
        check_callable("on_delivery", given, "on_delivery(error, metadata)")
