"""Text of strangers in one line: names of clients and topics, and words of brokers."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with each character that is not printable as its escape."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def masked(text: str) -> str:
    """``text`` with a question mark in place of each character that is not printable."""
    return "".join(each if each.isprintable() else "?" for each in text)
