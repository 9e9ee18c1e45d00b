"""Trends of a soak: does a series of samples grow? Sans-IO.

For each part of the time its least value counts, its floor. A leak raises all floors. A backlog that comes and goes, a
free list and a busy machine raise only single samples, and the next floor is as before. The slope is the median of the
slopes between all pairs of floors (Theil-Sen), so up to 29 % of them may lie anywhere.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

HOUR_S = 3_600.0
JUDGED_S_MIN = 300.0
"""A shorter series says nothing about an hour."""
PARTS = 12
"""The parts of the time, with a floor each: two minutes, or six events, in a soak of half an hour."""

Points = Sequence[tuple[float, float]]
"""(seconds, value), in order."""


@dataclass(frozen=True)
class Bound:
    """The limits of growth: more than ``per_hour``, and a rise of more than ``step``, as a cache may fill and a page
    be touched.
    """

    per_hour: float
    step: float


@dataclass(frozen=True)
class Trend:
    """The trend of one series. ``per_hour`` is in its unit."""

    what: str
    unit: str
    median: float
    first: float
    last: float
    per_hour: float
    rise: float
    """The rise from the first quarter of the floors to the last one."""
    seconds: float
    bound: Bound

    @property
    def is_judged(self) -> bool:
        return self.seconds >= JUDGED_S_MIN

    @property
    def grows(self) -> bool:
        return self.is_judged and self.per_hour > self.bound.per_hour and self.rise > self.bound.step


def trend_of(what: str, unit: str, points: Points, bound: Bound) -> Trend | None:
    """The trend of a series; None for fewer than three points."""
    if len(points) < 3:
        return None
    values = [value for _, value in points]
    part = max(1, len(values) // 5)
    floors = floors_of(points)
    least = [value for _, value in floors]
    quarter = max(1, len(least) // 4)
    return Trend(
        what,
        unit,
        statistics.median(values),
        statistics.median(values[:part]),
        statistics.median(values[-part:]),
        HOUR_S * slope_of(floors),
        statistics.median(least[-quarter:]) - statistics.median(least[:quarter]),
        points[-1][0] - points[0][0],
        bound,
    )


def floors_of(points: Points) -> Points:
    """The lowest point of each part of the time that has points."""
    start_s, seconds = points[0][0], points[-1][0] - points[0][0]
    least: dict[int, tuple[float, float]] = {}
    for at_s, value in points:
        part = min(int((at_s - start_s) / seconds * PARTS), PARTS - 1) if seconds else 0
        if part not in least or value < least[part][1]:
            least[part] = at_s, value
    return list(least.values())


def slope_of(points: Points) -> float:
    """The slope in units per second; 0 when no two points differ in time."""
    slopes = [
        (value - before) / (at_s - before_s)
        for index, (at_s, value) in enumerate(points)
        for before_s, before in points[:index]
        if at_s > before_s
    ]
    return statistics.median(slopes) if slopes else 0.0
