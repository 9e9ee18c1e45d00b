"""Goal: the steps of crash-safety are run as the worker runs them; each is there and costs something."""

from __future__ import annotations

from sidecar.tools.bench.crash_safety import measure_steps


def test_every_step_is_measured_on_a_real_segment() -> None:
    small, large = measure_steps(1, 16_384)[0], measure_steps(1, 256 << 10)[0]
    for found in (small, large):
        assert list(found) == ["copy", "descriptors", "outcome ring", "words"]
        assert all(cost > 0 for cost in found.values())
