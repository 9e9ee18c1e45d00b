"""Words for people: counts with their nouns, and text of strangers (names of clients and topics, words of brokers)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

PLEASE_REPORT: Final = "This is a bug of kafka-sidecar: please report it."
"""Ends a line of the log about a fault of our own; its traceback follows."""


def counted(count: int, one: str, many: str = "") -> str:
    """``1 record``, ``1,200 records``; ``many`` where the plural is not ``one`` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def moment(at_ms: float) -> str:
    """``2026-11-22 23:04:11+0000``: Unix time as the log writes it."""
    return f"{datetime.fromtimestamp(at_ms / 1e3).astimezone():%Y-%m-%d %H:%M:%S%z}"


def printable(text: str) -> str:
    """``text`` in one line: each character that is not printable as its escape."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def masked(text: str) -> str:
    """``text`` in one line: a question mark in place of each character that is not printable."""
    return "".join(each if each.isprintable() else "?" for each in text)
