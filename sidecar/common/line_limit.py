"""LineLimit: bounds how often one place of the code writes to the log, whatever makes it do so.

Places that clients or brokers reach as often as they like use SparseLog, with a line a minute for each peer. This is
the net below it: a place that nobody thought of, or a bug in a loop, must not let the log fill the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Final

LINES_AT_ONCE: Final = 100
"""Lines of one place that are written without a pause. All workers of a host may report at once."""
LINES_PER_SECOND: Final = 1
"""And so many go on after that."""


class LineLimit(logging.Filter):
    """A token bucket for each place. It has no clock: the records have their times. Debug lines are not limited."""

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
