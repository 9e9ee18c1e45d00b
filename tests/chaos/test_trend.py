"""Goal: a leak is seen through noise and restarts, and a flat series with as much noise is not called one."""

from __future__ import annotations

import random

import pytest

from sidecar.tools.chaos.trend import HOUR_S, JUDGED_S_MIN, PARTS, Bound, floors_of, slope_of, trend_of

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


def backlogs(per_hour: float, *, seed: int) -> list[tuple[float, float]]:
    """30 MB, and a backlog every 20 s on a machine that is ever busier: each takes up to 20 MB more than the last."""
    source = random.Random(seed)
    points = []
    for number in range(HALF_AN_HOUR):
        at_s = number * EVERY_S
        height = source.uniform(0.0, 1.0 + 20.0 * number / HALF_AN_HOUR)
        points.append(
            (at_s, 30.0 + per_hour * at_s / HOUR_S + height * (number % 4 != 3 or number % 24 > 20))
        )
    return points


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("per_hour", "grows"), [(0.0, False), (6.0, True)])
def test_backlogs_that_become_larger_are_no_growth_where_all_of_it_comes_back(
    seed: int, per_hour: float, grows: bool
) -> None:
    trend = trend_of("memory", "MB", backlogs(per_hour, seed=seed), BOUND)
    assert trend is not None
    assert trend.last > trend.first + 2.0, "what is shown has grown"
    assert trend.grows is grows


@pytest.mark.parametrize("count", [1, PARTS - 1, PARTS, PARTS + 1, 1_000])
def test_each_part_of_the_time_has_one_floor(count: int) -> None:
    floors = floors_of([(float(number), 3.0 * number) for number in range(count)])
    assert len(floors) == min(count, PARTS)
    assert floors[0] == (0.0, 0.0)
    assert all(value == 3.0 * at_s for at_s, value in floors)


def test_parts_without_a_sample_have_no_floor() -> None:
    """All of them were taken beside a restart."""
    assert floors_of([(0.0, 2.0), (1.0, 1.0), (119.0, 5.0), (120.0, 4.0)]) == [(1.0, 1.0), (120.0, 4.0)]
