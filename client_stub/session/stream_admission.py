"""StreamAdmission: which streams of a client its worker has, and which wait to be admitted. Sans-IO, io thread only.

A worker keeps a bounded number of streams of one client. A topic beyond them replaces a stream at rest, the one that
was unused longest. If none rests, the streams that were admitted longest ago send nothing more until they do, so that
each topic has its turn.
"""

from __future__ import annotations

import random
from math import inf
from typing import Final

from client_stub.session.ack_window import AckWindow

CHECK_MS: Final = 100.0
"""How often the streams that wait are checked while there are any."""
ADMITTED_MS_MIN: Final = 200.0
"""A busy stream stays admitted for at least this time."""
LEAVING_MAX: Final = 25
"""The most streams that come to rest at the same time for those that wait."""
REFUSED_MS_MIN: Final = 100.0
REFUSED_MS_MAX: Final = 5_000.0
"""A topic for which the worker had no row is tried again after the first time, doubling to the second."""


class StreamAdmission:
    """The admission of one client's streams. A window is in one of the three dictionaries from its opening to its
    end.
    """

    def __init__(self) -> None:
        self.limit: float = inf
        """How many streams the worker takes; inf if it does not end streams, and refuses one too many."""
        self.admitted: dict[int, AckWindow] = {}
        """Windows that may send, by number, those that were admitted longest ago first."""
        self.queue: dict[int, AckWindow] = {}
        """Windows that wait to be admitted, longest first."""
        self.refused: dict[int, AckWindow] = {}
        """Windows for whose topic the worker had no row. They join the queue again after a while."""

    @property
    def has_waiting(self) -> bool:
        return bool(self.queue or self.refused)

    def is_waiting(self, window: AckWindow) -> bool:
        return window.number not in self.admitted

    def enqueue(self, window: AckWindow) -> None:
        """Let a window wait at the end of the queue."""
        window.held = True
        window.is_leaving = False
        self.queue[window.number] = window

    def admit_next(self, now_ms: float) -> AckWindow:
        """Admit the first window of the queue."""
        window = self.queue.pop(next(iter(self.queue)))
        window.held = False
        window.admission_ms = now_ms
        self.admitted[window.number] = window
        return window

    def drop(self, window: AckWindow) -> None:
        """Forget a window."""
        for each in (self.admitted, self.queue, self.refused):
            each.pop(window.number, None)

    def refuse(self, window: AckWindow, code: str, now_ms: float) -> None:
        """Let a window wait for whose topic the worker has no row now."""
        self.drop(window)
        pause_ms = min(REFUSED_MS_MIN * 2.0**window.refusals, REFUSED_MS_MAX)
        window.refusal = code
        window.refusals += 1
        window.held = True
        window.is_leaving = False
        window.admission_ms = now_ms + pause_ms * random.uniform(0.8, 1.2)
        self.refused[window.number] = window

    def retry_refused(self, now_ms: float) -> None:
        """Let refused windows join the queue again whose pause is over."""
        for window in [each for each in self.refused.values() if each.admission_ms <= now_ms]:
            del self.refused[window.number]
            self.enqueue(window)

    def waiting(self) -> list[AckWindow]:
        return [*self.queue.values(), *self.refused.values()]

    def resting(self) -> AckWindow | None:
        """The window at rest that is needed least: one that leaves, else the one that was unused longest."""
        resting = [each for each in self.admitted.values() if each.is_at_rest]
        return min(resting, key=lambda each: (not each.is_leaving, each.used_ms), default=None)

    def let_leave(self, now_ms: float) -> list[AckWindow]:
        """Choose the busy windows that are to leave, one for each that waits, and return the new ones.

        One that the worker holds stays: it may be held for long, and would wait again. So does one that went back,
        until the worker has answered what it had sent.
        """
        left = min(len(self.queue), LEAVING_MAX) - sum(each.is_leaving for each in self.admitted.values())
        chosen = []
        for window in self.admitted.values():
            if left <= 0 or now_ms - window.admission_ms < ADMITTED_MS_MIN:
                break
            if not (window.held or window.repeats):
                window.is_leaving = window.held = True
                chosen.append(window)
                left -= 1
        return chosen
