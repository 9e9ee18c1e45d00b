"""Words for people: counts with their nouns, and text of strangers (names of clients and topics, words of brokers)."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """``1 record``, ``1,200 records``; ``many`` where the plural is not ``one`` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def printable(text: str) -> str:
    """``text`` in one line: each character that is not printable as its escape."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def masked(text: str) -> str:
    """``text`` in one line: a question mark in place of each character that is not printable."""
    return "".join(each if each.isprintable() else "?" for each in text)
