"""Goal: clients are spread evenly, and a client keeps its worker as long as that lives."""

from __future__ import annotations

from sidecar.controller.assignment import Assignment


def client(number: int) -> bytes:
    return number.to_bytes(20, "big")


def test_least_loaded_first() -> None:
    assignment = Assignment()
    found = [assignment.assign(client(n), [0, 1, 2]) for n in range(9)]
    assert sorted(found) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_sticky_over_reconnects() -> None:
    assignment = Assignment()
    first = assignment.assign(client(1), [0, 1])
    for n in range(2, 6):
        assignment.assign(client(n), [0, 1])
    assert assignment.assign(client(1), [0, 1]) == first
    assert assignment.count(0) + assignment.count(1) == 5


def test_moves_only_when_its_worker_is_gone() -> None:
    assignment = Assignment()
    assert assignment.assign(client(1), [0]) == 0
    assignment.worker_left(0)
    assert assignment.assign(client(1), [1]) == 1
    assert assignment.assign(client(1), [0, 1]) == 1, "its worker came back empty; moving again gains nothing"
    assert assignment.count(0) == 0


def test_no_worker_ready() -> None:
    assert Assignment().assign(client(1), []) is None


def test_forgets_the_oldest_beyond_its_bound() -> None:
    assignment = Assignment(remembered_max=3)
    for n in range(10):
        assignment.assign(client(n), [0])
    assert assignment.count(0) == 3
