"""StopRequests: which request to stop begins the drain, which only repeats it, and which ends it. Sans-IO."""

from __future__ import annotations

from enum import Enum
from typing import Final

REPEAT_S: Final = 2.0
"""A stop of a whole process group sends the signal twice within milliseconds: by the group, and by a parent."""


class StopStep(Enum):
    DRAIN = "drain"
    REPEAT = "repeat"
    """One stop that was sent more than once. Nothing changes."""
    FORCE = "force"
    """Somebody has waited, and will not wait any longer."""


class StopRequests:
    """``now_s`` is of a clock that does not jump."""

    def __init__(self) -> None:
        self.began_s: float | None = None
        """When the drain began; None while none was asked for."""
        self.is_stopping = False
        """The daemon ends: by a drain, by an error, or because a successor takes over."""

    def ask(self, now_s: float) -> StopStep:
        if self.began_s is None:
            self.began_s = now_s
            self.is_stopping = True
            return StopStep.DRAIN
        return StopStep.REPEAT if now_s - self.began_s < REPEAT_S else StopStep.FORCE
