"""CallbackLog: the callbacks of one producer that failed, a few lines a minute. Any thread."""

from __future__ import annotations

from typing import Final

from client_stub.system.log import log
from client_stub.system.minute_limit import MINUTE_MS, MinuteLimit
from client_stub.system.originals import monotonic

LINES_MAX: Final = 5
"""At most this many lines a minute. A callback with a bug fails for each record, and a traceback for each would take
most of the io thread's time.
"""


class CallbackLog:
    def __init__(self) -> None:
        self._limit = MinuteLimit(LINES_MAX)

    def failed(self, what: str, goes_on: str = "the others continue") -> None:
        """Log the exception that is being handled, which ``what`` callback has raised."""
        if not self._limit.may_log(monotonic() * 1e3):
            return
        rest = "" if self._limit.left else f" Further ones are not logged for {MINUTE_MS / 1e3:g} s."
        log.exception("%s callback failed; %s.%s", what, goes_on, rest)
