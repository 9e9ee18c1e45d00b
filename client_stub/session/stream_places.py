"""StreamPlaces: which streams of a client have a place at its worker, and which wait for one. Sans-IO, io thread only.

A worker keeps a bounded number of streams of one client. A topic beyond them gets the place of a stream at rest, the
one that was unused longest. If none rests, the streams that have had their places longest send nothing more until they
do, so that each topic has its turn.
"""

from __future__ import annotations

import random
from math import inf
from typing import Final

from client_stub.session.ack_window import AckWindow

LOOK_MS: Final = 100.0
"""How often the streams without a place are looked at while there are any."""
KEPT_MS_MIN: Final = 200.0
"""A busy stream keeps its place for at least this time."""
LEAVING_MAX: Final = 25
"""The most streams that come to rest at the same time for those that wait."""
REFUSED_MS_MIN: Final = 100.0
REFUSED_MS_MAX: Final = 5_000.0
"""A topic for which the worker had no row is tried again after the first time, doubling to the second."""


class StreamPlaces:
    """The places of one client. A window is in one of the three dictionaries from its opening to its end."""

    def __init__(self) -> None:
        self.most: float = inf
        """How many streams the worker takes; inf if it does not end streams, and refuses one too many."""
        self.taken: dict[int, AckWindow] = {}
        """Windows with a place, by number, those that have had it longest first."""
        self.line: dict[int, AckWindow] = {}
        """Windows that wait for a place, longest first."""
        self.refused: dict[int, AckWindow] = {}
        """Windows for whose topic the worker had no row. They join the line again after a while."""

    @property
    def has_waiting(self) -> bool:
        return bool(self.line or self.refused)

    def is_waiting(self, window: AckWindow) -> bool:
        return window.number not in self.taken

    def join(self, window: AckWindow) -> None:
        """Let a window wait at the end of the line."""
        window.held = True
        window.is_leaving = False
        self.line[window.number] = window

    def give(self, now_ms: float) -> AckWindow:
        """Give a free place to the first in the line."""
        window = self.line.pop(next(iter(self.line)))
        window.held = False
        window.place_ms = now_ms
        self.taken[window.number] = window
        return window

    def drop(self, window: AckWindow) -> None:
        """Forget a window."""
        for each in (self.taken, self.line, self.refused):
            each.pop(window.number, None)

    def refuse(self, window: AckWindow, code: str, now_ms: float) -> None:
        """Take the place of a window back for whose topic the worker has no row now."""
        self.drop(window)
        pause_ms = min(REFUSED_MS_MIN * 2.0**window.refusals, REFUSED_MS_MAX)
        window.refusal = code
        window.refusals += 1
        window.held = True
        window.is_leaving = False
        window.place_ms = now_ms + pause_ms * random.uniform(0.8, 1.2)
        self.refused[window.number] = window

    def try_again(self, now_ms: float) -> None:
        """Let refused windows join the line again whose pause is over."""
        for window in [each for each in self.refused.values() if each.place_ms <= now_ms]:
            del self.refused[window.number]
            self.join(window)

    def waiting(self) -> list[AckWindow]:
        return [*self.line.values(), *self.refused.values()]

    def resting(self) -> AckWindow | None:
        """The window at rest whose place is needed least: one that leaves, else the one that was unused longest."""
        resting = [each for each in self.taken.values() if each.is_at_rest]
        return min(resting, key=lambda each: (not each.is_leaving, each.used_ms), default=None)

    def let_leave(self, now_ms: float) -> list[AckWindow]:
        """Choose the busy windows that are to leave their places, one for each that waits, and return the new ones.

        One that the worker holds stays: it may be held for long, and would wait again.
        """
        left = min(len(self.line), LEAVING_MAX) - sum(each.is_leaving for each in self.taken.values())
        chosen = []
        for window in self.taken.values():
            if left <= 0 or now_ms - window.place_ms < KEPT_MS_MIN:
                break
            if not window.held:
                window.is_leaving = window.held = True
                chosen.append(window)
                left -= 1
        return chosen
