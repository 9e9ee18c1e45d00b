"""Goal: an explanation is short however much waits, and says how much it leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.cli.explain import FAILURES_SHOWN, describe, last_report
from sidecar.common.explanation import CLIENT_ROWS_MAX, WAITING_ROWS_MAX


def client(number: int, records: int = 1) -> dict[str, Any]:
    return {
        "client": f"c{number}",
        "worker": 0,
        "pid": 7,
        "is_attached": True,
        "records": records,
        "streams": 5_000,
        "held_streams": 0,
        "silent_seconds": 0.0,
    }


def answer(**fields: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {
        **{"is_answered": True, "is_known": True, "waiting": [], "waiting_count": 0, "clients": []},
        **{"client_count": 0, "unread_batches": 0, "failures": [], "silent_workers": []},
    }
    return {**empty, **fields}


def wait(number: int) -> dict[str, Any]:
    return {"topic": f"t{number}", "cause": "linger", "text": "linger.ms is not over", "since_seconds": 1.0}


def failure(number: int) -> dict[str, Any]:
    words = {"error": "E", "text": "No.", "client": "c", "last_ms": 0}
    return {"topic": f"t{number}", "records": 1, **words}


def test_silence_is_not_taken_for_nothing() -> None:
    assert describe(answer(), "") == ["Nothing waits."]
    assert describe(answer(workers_asked=0), "") == []
    assert describe(answer(silent_workers=[0]), "") == ["worker 0 did not answer in time"]


@pytest.mark.parametrize("name", ["", "c1", "orders"])
def test_rows_left_out_are_counted(name: str) -> None:
    found = answer(
        waiting=[wait(each) for each in range(WAITING_ROWS_MAX)],
        waiting_count=5_000,
        clients=[client(each) for each in range(CLIENT_ROWS_MAX)],
        client_count=1_021,
        unread_batches=12_000,
        failures=[failure(each) for each in range(FAILURES_SHOWN + 2)],
    )
    lines = describe(found, name)
    assert len(lines) == WAITING_ROWS_MAX + CLIENT_ROWS_MAX + FAILURES_SHOWN + 4
    assert [line for line in lines if line.startswith("and ")] == [
        "and 4,950 more that have waited less",
        "and 12,000 batches that were not examined",
        "and 1,001 more clients",
        "and 2 more kinds of failure: --json has them",
    ]


def test_nothing_is_said_of_what_is_all_there_and_of_clients_that_are_idle() -> None:
    whole = answer(waiting=[wait(1)], waiting_count=1, clients=[client(1)], client_count=1)
    assert len(describe(whole, "c1")) == 2
    idle = answer(clients=[client(1), client(2, records=0)], client_count=4_000)
    assert describe(idle, "") == [
        "Nothing waits.",
        "client c1  pid 7, worker 0: 1 record without an outcome, 5,000 topics",
    ]


def test_a_last_report_is_bounded_too() -> None:
    holds = [
        {"topic": f"t{each}", "client": "c", "reason": "pool", "since_seconds": 1.0}
        for each in range(WAITING_ROWS_MAX + 1)
    ]
    found = last_report({"segment": "/nowhere", "holds": holds}, "c")
    assert (len(found["waiting"]), found["waiting_count"]) == (WAITING_ROWS_MAX, WAITING_ROWS_MAX + 1)
    assert describe(found, "c")[-1] == "and 1 more that have waited less"
