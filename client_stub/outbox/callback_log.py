"""CallbackLog: the callbacks of one producer that failed, a few lines a minute. Any thread."""

from __future__ import annotations

from typing import Final

from client_stub.system.log import log
from client_stub.system.originals import monotonic

LINES_MAX: Final = 5
INTERVAL_S: Final = 60.0
"""At most LINES_MAX lines are logged in this time. A callback with a bug fails for each record, and a traceback for
each would take most of the io thread's time.
"""


class CallbackLog:
    """Two threads at once may log a line more."""

    def __init__(self) -> None:
        self._lines_left = 0
        self._until = 0.0
        """When the lines are counted from the beginning again (monotonic clock, s)."""

    def failed(self, what: str, goes_on: str = "the others go on") -> None:
        """Log the exception that is being handled, which ``what`` callback has raised."""
        now = monotonic()
        if now >= self._until:
            self._until, self._lines_left = now + INTERVAL_S, LINES_MAX
        if not self._lines_left:
            return
        self._lines_left -= 1
        rest = "" if self._lines_left else f" Further ones are not logged for {INTERVAL_S:g} s."
        log.exception("%s callback failed; %s.%s", what, goes_on, rest)
