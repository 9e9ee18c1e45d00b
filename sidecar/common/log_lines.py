"""Formats of a process's log lines: text, JSON, or for the systemd journal.

Messages contain names of clients and topics and texts of brokers as they were received. Escaping them here makes sure
that no foreign text ends a line or controls a terminal, in any message.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Final

from sidecar.common.line_limit import LineLimit
from sidecar.common.wording import printable

_PRIORITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""syslog priorities, as in sd-daemon(3); 7 (debug) below them."""


def priority(level: int) -> int:
    return next((number for least, number in _PRIORITIES if level >= least), 7)


class LogLines(logging.Formatter):
    """Text lines: time with its zone, level, process. Tracebacks are not escaped, because they are the daemon's own."""

    def __init__(self, process: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {process}: %(message)s")
        self.process = process

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        at = datetime.fromtimestamp(record.created).astimezone()
        return f"{at:%Y-%m-%d %H:%M:%S}.{int(record.msecs):03}{at:%z}"


class JournalLines(LogLines):
    """Lines that begin with their priority, such as ``<4>``. The journal adds the time."""

    def __init__(self, process: str) -> None:
        super().__init__(process)
        self._style._fmt = f"{process}: %(message)s"

    def format(self, record: logging.LogRecord) -> str:
        head = f"<{priority(record.levelno)}>"
        return "\n".join(head + line for line in super().format(record).splitlines())


class JsonLines(LogLines):
    """One JSON object per line: time (RFC 3339), level, process, pid, logger, message, and the traceback, if any."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "process": self.process,
            "pid": os.getpid(),
            "logger": record.name,
            "message": printable(record.getMessage()),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


_LINES: Final = {"text": LogLines, "json": JsonLines, "journald": JournalLines}


def log_to_stderr(level: str, line_format: str, process: str) -> None:
    """Set up the process's log, once. ``process``: the name in its lines, such as ``worker 0``."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LINES[line_format](process))
    handler.addFilter(LineLimit())
    logging.basicConfig(level=level.upper(), handlers=[handler])
