"""Goal: a healthy worker is never taken for a silent one, whatever the timeout and however the two clocks stand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.common.heartbeat import MISSES_MAX, check_interval_s, housekeeping_s, resting_s
from sidecar.config.daemon_settings import DAEMON_SETTINGS

(TIMEOUT,) = (each for each in DAEMON_SETTINGS if each.name == "daemon.heartbeat_timeout_s")
LATE = 1.4
"""A round takes time itself, and a busy host wakes nobody on the dot."""


def most_misses(round_s: float, look_every_s: float, phase: float) -> int:
    """Looks in a row that see the same beat, of 200 looks that begin ``phase`` of a look after the first beat."""
    most = misses = 0
    seen = -1
    for look in range(200):
        beats = int((phase + look) * look_every_s / round_s)
        misses = misses + 1 if beats == seen else 0
        seen, most = beats, max(most, misses)
    return most


@pytest.mark.parametrize("round_of", [housekeeping_s, resting_s])
@given(timeout_s=st.floats(TIMEOUT.least, TIMEOUT.most), phase=st.floats(0.0, 1.0))
def test_a_healthy_worker_never_seems_silent(
    round_of: Callable[[float], float], timeout_s: float, phase: float
) -> None:
    assert most_misses(LATE * round_of(timeout_s), check_interval_s(timeout_s), phase) < MISSES_MAX - 1


def test_a_round_of_the_default_is_half_a_second() -> None:
    assert isinstance(TIMEOUT.default, float)
    assert (housekeeping_s(TIMEOUT.default), resting_s(TIMEOUT.default)) == (0.5, 1.0)
