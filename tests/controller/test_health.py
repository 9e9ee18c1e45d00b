"""Goal: a judgement of the daemon is a sentence that fits its numbers, with advice."""

from __future__ import annotations

from sidecar.controller.status.health import workers_missing


def test_a_worker_that_died_is_named_with_its_cause() -> None:
    death = "Worker 0 (pid 7) was killed by SIGKILL."
    one, two = workers_missing(1, 2, death), workers_missing(2, 4, death)
    assert (one.state, one.sentence) == ("degraded", f"1 of 2 workers is down. {death}")
    assert two.sentence == f"2 of 4 workers are down. {death}"
    assert "starts automatically" in one.remedy


def test_a_worker_that_starts_is_not_down() -> None:
    starting = workers_missing(1, 2, "")
    assert starting.sentence == "1 of 2 workers is not ready yet."
    assert starting.remedy == "It is starting; the log says when it is ready."
    assert workers_missing(2, 4, "").remedy == "They are starting; the log says when each is ready."
