"""Goal: a wall clock that steps and a controller that did not run are said once, and time that flows is not."""

from __future__ import annotations

import logging

import pytest

from sidecar.common.wording import moment
from sidecar.controller.status.clock_watch import SHOWN_MS, STALL_MS_MIN, STEP_MS_MIN, ClockWatch

WALL_MS = 1_700_000_000_000.0
LOOK_MS = 1_000.0


def test_clocks_that_continue_together_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    watch = ClockWatch(0.0, WALL_MS)
    for second in range(1, 100):
        watch.tick(second * LOOK_MS, WALL_MS + second * LOOK_MS * 1.001, LOOK_MS)
    watch.tick(99 * LOOK_MS + STALL_MS_MIN, WALL_MS + 99 * LOOK_MS + STALL_MS_MIN, LOOK_MS)
    assert (watch.steps, watch.stalled_ms, watch.notices()) == (0, 0.0, [])
    assert not caplog.records


@pytest.mark.parametrize(
    ("step_ms", "words"), [(STEP_MS_MIN, "forward by 2 s"), (-3_600_000.0, "back by 3,600 s")]
)
def test_a_step_is_said_once(step_ms: float, words: str, caplog: pytest.LogCaptureFixture) -> None:
    watch = ClockWatch(0.0, WALL_MS)
    for second in range(1, 10):
        watch.tick(second * LOOK_MS, WALL_MS + second * LOOK_MS + step_ms, LOOK_MS)
    assert watch.steps == 1
    (line,) = caplog.records
    assert (line.levelno, words in line.getMessage()) == (logging.WARNING, True)
    (notice,) = watch.notices()
    assert notice == f"{moment(WALL_MS + LOOK_MS + step_ms)}: {line.getMessage()}", (
        "the log has a time of its own"
    )


def test_a_stall_is_no_step_and_is_shown_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    watch = ClockWatch(0.0, WALL_MS)
    now_ms = LOOK_MS + 7_000.0
    watch.tick(now_ms, WALL_MS + now_ms, LOOK_MS)
    assert (watch.steps, watch.stalled_ms) == (0, 7_000.0)
    (line,) = caplog.records
    assert "did not run for 7 s" in line.getMessage()
    while now_ms < SHOWN_MS + 7_000.0:
        now_ms += LOOK_MS
        watch.tick(now_ms, WALL_MS + now_ms, LOOK_MS)
    assert len(watch.notices()) == 1
    watch.tick(now_ms + LOOK_MS, WALL_MS + now_ms + LOOK_MS, LOOK_MS)
    assert watch.notices() == []
