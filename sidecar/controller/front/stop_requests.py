"""StopRequests: decides whether a stop request begins the drain, only repeats it, or ends it. Sans-IO."""

from __future__ import annotations

from enum import Enum
from typing import Final

REPEAT_S: Final = 2.0
"""A stop of a whole process group sends the signal twice within milliseconds: to the group, and from a parent."""


class StopStep(Enum):
    DRAIN = "drain"
    REPEAT = "repeat"
    """The same stop, sent more than once. Nothing changes."""
    FORCE = "force"
    """The operator has waited and wants an end now."""


class StopRequests:
    """The stop requests of one daemon. ``now_s`` is from a monotonic clock."""

    def __init__(self) -> None:
        self.began_s: float | None = None
        """When the drain began; None before."""
        self.is_stopping = False
        """Whether the daemon is ending: by a drain, by an error, or because a successor takes over."""

    def ask(self, now_s: float) -> StopStep:
        if self.began_s is None:
            self.began_s = now_s
            self.is_stopping = True
            return StopStep.DRAIN
        return StopStep.REPEAT if now_s - self.began_s < REPEAT_S else StopStep.FORCE
