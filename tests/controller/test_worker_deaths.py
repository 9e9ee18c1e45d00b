"""Each worker's own count of replacements, by cause."""

from __future__ import annotations

from sidecar.controller.workers.worker_deaths import DeathCause, WorkerDeaths


def test_deaths_are_counted_by_worker_and_cause() -> None:
    deaths = WorkerDeaths(2)
    assert (deaths.total, deaths.last) == (0, None)
    assert deaths.of(0) == {
        "restarts": 0,
        "restarts_by_cause": dict.fromkeys(("killed", "silent", "channel", "exited", "not_started"), 0),
        "last_death": "",
        "last_death_ms": None,
    }
    for cause in (DeathCause.KILLED, DeathCause.SILENT, DeathCause.KILLED):
        deaths.note(1, cause, f"It was {cause}.")
    deaths.note(0, DeathCause.NOT_STARTED, "No process.")
    row = deaths.of(1)
    assert (row["restarts"], row["restarts_by_cause"]["killed"]) == (3, 2)
    assert row["last_death"] == "It was killed." and row["last_death_ms"] > 0
    assert deaths.total == 4
    assert deaths.last is not None and deaths.last["cause"] == "not_started"
