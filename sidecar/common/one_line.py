"""OneLine: a log's formatter under which no text of a stranger ends a line, or speaks to a terminal.

Names of clients and topics, and words of brokers, stand in messages as they came. Escaping them here leaves no message
out.
"""

from __future__ import annotations

import logging


class OneLine(logging.Formatter):
    """Escapes what is not printable in messages. Tracebacks are our own and stay as they are."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)


def printable(text: str) -> str:
    """``text`` with each character that is not printable as its escape."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def masked(text: str) -> str:
    """``text`` with a question mark in place of each character that is not printable."""
    return "".join(each if each.isprintable() else "?" for each in text)


def log_to_stderr(level: str, line_format: str) -> None:
    """Set the process's log up, once."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine(line_format))
    logging.basicConfig(level=level.upper(), handlers=[handler])
