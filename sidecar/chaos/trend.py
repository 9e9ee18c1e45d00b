"""Trends of a soak: does a series of samples grow? Sans-IO.

The slope is the median of the slopes between all pairs of points (Theil-Sen). Up to 29 % of the points may lie
anywhere: a restart of the broker, or a sample taken on a busy machine, moves nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

HOUR_S = 3_600.0
JUDGED_S_MIN = 300.0
"""A shorter series says nothing of an hour."""
POINTS_MAX = 400
"""Of a longer series every k-th point is taken: pairs grow with the square."""

Points = Sequence[tuple[float, float]]
"""(seconds, value), in order."""


@dataclass(frozen=True)
class Bound:
    """Growth is more than ``per_hour`` and more than ``step`` in all: a cache may fill, a page may be touched."""

    per_hour: float
    step: float


@dataclass(frozen=True)
class Trend:
    """One series. ``per_hour`` in its unit."""

    what: str
    unit: str
    median: float
    first: float
    last: float
    per_hour: float
    seconds: float
    bound: Bound

    @property
    def is_judged(self) -> bool:
        return self.seconds >= JUDGED_S_MIN

    @property
    def grows(self) -> bool:
        grown = self.per_hour * self.seconds / HOUR_S
        return self.is_judged and self.per_hour > self.bound.per_hour and grown > self.bound.step


def trend_of(what: str, unit: str, points: Points, bound: Bound) -> Trend | None:
    """None for fewer than three points."""
    if len(points) < 3:
        return None
    values = [value for _, value in points]
    part = max(1, len(values) // 5)
    return Trend(
        what,
        unit,
        statistics.median(values),
        statistics.median(values[:part]),
        statistics.median(values[-part:]),
        HOUR_S * slope_of(points),
        points[-1][0] - points[0][0],
        bound,
    )


def slope_of(points: Points) -> float:
    """Units a second; 0 where no two points differ in time."""
    chosen = points[:: -(-len(points) // POINTS_MAX)]
    slopes = [
        (value - before) / (at_s - before_s)
        for index, (at_s, value) in enumerate(chosen)
        for before_s, before in chosen[:index]
        if at_s > before_s
    ]
    return statistics.median(slopes) if slopes else 0.0
