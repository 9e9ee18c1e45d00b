"""Goal: a leak is seen through noise and restarts, and a flat series with as much noise is not called one."""

from __future__ import annotations

import random

import pytest

from sidecar.chaos.trend import HOUR_S, JUDGED_S_MIN, POINTS_MAX, Bound, slope_of, trend_of

BOUND = Bound(per_hour=4.0, step=1.0)
EVERY_S = 5.0
HALF_AN_HOUR = 360


def series(
    per_hour: float, *, seed: int, count: int = HALF_AN_HOUR, noise: float = 1.0
) -> list[tuple[float, float]]:
    """40 and growth; a tenth of the points are far above, as beside a restart."""
    source = random.Random(seed)
    return [
        (
            number * EVERY_S,
            40.0
            + per_hour * number * EVERY_S / HOUR_S
            + source.uniform(-noise, noise)
            + (200.0 if source.random() < 0.1 else 0.0),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_a_leak_is_seen(seed: int) -> None:
    trend = trend_of("memory", "MB", series(8.0, seed=seed), BOUND)
    assert trend is not None
    assert trend.grows
    assert trend.per_hour == pytest.approx(8.0, abs=2.0)


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_no_leak(seed: int) -> None:
    trend = trend_of("memory", "MB", series(0.0, seed=seed), BOUND)
    assert trend is not None
    assert not trend.grows
    assert trend.median == pytest.approx(40.0, abs=1.0)


def test_one_more_descriptor_at_each_death_is_a_leak() -> None:
    points = [(number * EVERY_S, float(20 + number // 36)) for number in range(HALF_AN_HOUR)]
    trend = trend_of("fds", "", points, Bound(per_hour=1.0, step=0.5))
    assert trend is not None
    assert trend.grows


def test_one_step_is_none() -> None:
    """A cache that fills once in the middle of the time."""
    points = [(number * EVERY_S, 40.0 if number < 180 else 40.9) for number in range(HALF_AN_HOUR)]
    trend = trend_of("memory", "MB", points, Bound(per_hour=0.5, step=1.0))
    assert trend is not None
    assert not trend.grows


def test_a_short_series_is_not_judged() -> None:
    short = series(1_000.0, seed=1, count=int(JUDGED_S_MIN / EVERY_S))
    long = series(1_000.0, seed=1, count=int(JUDGED_S_MIN / EVERY_S) + 1)
    for points, is_judged in ((short, False), (long, True)):
        trend = trend_of("memory", "MB", points, BOUND)
        assert trend is not None
        assert (trend.is_judged, trend.grows) == (is_judged, is_judged)


def test_too_few_points() -> None:
    assert trend_of("memory", "MB", series(0.0, seed=1, count=2), BOUND) is None
    assert slope_of([(1.0, 5.0), (1.0, 7.0)]) == 0.0


@pytest.mark.parametrize("count", [POINTS_MAX, POINTS_MAX + 1, 5 * POINTS_MAX])
def test_a_long_series_is_thinned(count: int) -> None:
    points = [(float(number), 3.0 * number) for number in range(count)]
    assert slope_of(points) == pytest.approx(3.0)
