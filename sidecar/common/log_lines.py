"""A process's log: the formats of its lines (text, JSON, or for the systemd journal) and the bound of their number.

Messages contain names of clients and topics and texts of brokers as they were received. Escaping them here makes sure
that no foreign text ends a line or controls a terminal, in any message.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import Final

from sidecar.common.wording import printable

LINES_AT_ONCE: Final = 100
"""Lines of one statement that are written without a pause. All workers of a host may report at once."""
LINES_PER_SECOND: Final = 1
"""And so many go on after that."""
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


class LineLimit(logging.Filter):
    """A token bucket for each statement that logs. It has no clock: the records have their times. Debug lines are not
    limited.

    Statements that clients or brokers reach as often as they like use SparseLog, with a line a minute for each peer.
    This is the net below it: a statement that nobody thought of, or a bug in a loop, must not let the log fill the
    disk.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[Hashable, tuple[float, float, int]] = {}
        """By logger and text: lines that may be written, as of when, and how many were not written since the last
        one. Texts are constants of the code; where one is not, its line in the code counts.
        """

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the line. The first one after others that were not written says how many."""
        if record.levelno < logging.INFO:
            return True
        place = record.name, record.msg if record.args else record.lineno
        left, at_s, missing = self._places.get(place, (float(LINES_AT_ONCE), record.created, 0))
        # After a step of the wall clock backwards nothing is added until it has caught up with itself.
        left = min(LINES_AT_ONCE, left + max(0.0, record.created - at_s) * LINES_PER_SECOND)
        if left < 1.0:
            self._places[place] = left, record.created, missing + 1
            return False
        self._places[place] = left - 1.0, record.created, 0
        if missing:
            record.msg = f"{record.msg} (and {missing} more such lines that were not written)"
        return True


_LINES: Final = {"text": LogLines, "json": JsonLines, "journald": JournalLines}


def log_to_stderr(level: str, line_format: str, process: str) -> None:
    """Set up the process's log, once. ``process``: the name in its lines, such as ``worker 0``."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LINES[line_format](process))
    handler.addFilter(LineLimit())
    logging.basicConfig(level=level.upper(), handlers=[handler])
