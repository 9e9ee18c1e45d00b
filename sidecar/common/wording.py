"""Wording for users: counts with their nouns, and safe display of foreign text (names of clients and topics, texts of
brokers).

Pure functions, for every process.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

PLEASE_REPORT: Final = "This is a bug of kafka-sidecar: please report it."
"""Ends a log line about a bug; the traceback follows."""


def counted(count: int, one: str, many: str = "") -> str:
    """``1 record``, ``1,200 records``. ``many``: the plural if it is not ``one`` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def moment(at_ms: float) -> str:
    """A Unix time in ms, formatted as in the log: ``2026-11-22 23:04:11+0000``."""
    return f"{datetime.fromtimestamp(at_ms / 1e3).astimezone():%Y-%m-%d %H:%M:%S%z}"


def printable(text: str) -> str:
    """``text`` in one line, with an escape in place of each unprintable character."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def masked(text: str) -> str:
    """``text`` in one line, with a question mark in place of each unprintable character."""
    return "".join(each if each.isprintable() else "?" for each in text)
