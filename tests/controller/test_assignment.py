"""Goal: clients are spread evenly, and a client keeps its worker as long as that lives."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.controller.rundir.segment_store import SegmentStore
from sidecar.controller.workers.assignment import (
    RECENT_MS,
    REMEMBERED_MS,
    ROWS_WANTED,
    Assignment,
    WorkerChoice,
    index_of_id,
)
from sidecar.shm.lane_records import LaneRecords
from sidecar.shm.layout import CHAINS_MAX
from sidecar.shm.segment import Segment

EMPTY = dict.fromkeys(range(8), CHAINS_MAX)
"""All rows of each worker are free."""


def client(number: int) -> bytes:
    return number.to_bytes(20, "big")


def test_a_worker_without_rows_for_topics_gets_no_client_while_another_has_some() -> None:
    """Of 1,146 topics 132 were refused at one worker, while the other one had a single topic."""
    assignment = Assignment()
    loads = {0: 3, 1: 4}
    assert assignment.assign(client(1), loads, {0: ROWS_WANTED, 1: CHAINS_MAX}, 0.0) == 0
    assert assignment.assign(client(2), loads, {0: ROWS_WANTED - 1, 1: CHAINS_MAX}, 0.0) == 1
    assert assignment.assign(client(3), {0: 3, 1: 90}, {0: 9, 1: 10}, 0.0) == 1, "the one with most of them"
    assert assignment.assign(client(1), loads, {0: 0, 1: CHAINS_MAX}, 1.0) == 0, "a client stays"


def test_a_burst_is_spread_although_nobody_has_attached_yet() -> None:
    assignment = Assignment()
    idle = {0: 0, 1: 0, 2: 0}
    found = Counter(assignment.assign(client(n), idle, EMPTY, 0.0) for n in range(9))
    assert found == {0: 3, 1: 3, 2: 3}


def test_a_flood_of_hellos_costs_the_same_for_each() -> None:
    """Anybody in the group may say HELLO under ever new ids; the loop that answers them serves the others too."""
    assignment = Assignment()
    parts_s: list[float] = []
    for part in range(8):
        began_s = time.thread_time()
        for number in range(part * 5_000, (part + 1) * 5_000):
            assignment.assign(client(number), {0: 0, 1: 0}, EMPTY, 0.0)
        parts_s.append(time.thread_time() - began_s)
    assert min(parts_s[4:]) < 4 * max(parts_s[:2]), "six times as much where each looks at all before it"


def test_the_least_loaded_gets_the_next() -> None:
    assignment = Assignment()
    assert assignment.assign(client(1), {0: 5, 1: 3, 2: 4}, EMPTY, 0.0) == 1
    # That one is still on its way: 3 + 1 is not less than 4 of worker 2, and the lower index wins.
    assert assignment.assign(client(2), {0: 5, 1: 3, 2: 4}, EMPTY, 1.0) == 1
    assert assignment.assign(client(3), {0: 5, 1: 3, 2: 4}, EMPTY, 2.0) == 2
    # Much later both have ended again: loads alone tell.
    assert assignment.assign(client(4), {0: 5, 1: 3, 2: 4}, EMPTY, 3.0 + RECENT_MS) == 1


def test_sticky_over_reconnects() -> None:
    assignment = Assignment()
    first = assignment.assign(client(1), {0: 0, 1: 0}, EMPTY, 0.0)
    assert assignment.assign(client(1), {0: 90, 1: 0}, EMPTY, 9_000.0) == first


def test_moves_only_when_its_worker_is_gone() -> None:
    assignment = Assignment()
    assert assignment.assign(client(1), {0: 0}, EMPTY, 0.0) == 0
    assignment.worker_left(0)
    assert assignment.assign(client(1), {1: 7}, EMPTY, 1.0) == 1
    # Its worker came back empty; moving again gains nothing.
    assert assignment.assign(client(1), {0: 0, 1: 7}, EMPTY, 2.0) == 1


def test_no_worker_ready() -> None:
    assert Assignment().assign(client(1), {}, {}, 0.0) is None


def test_forgets_the_oldest_beyond_its_bound() -> None:
    assignment = Assignment(remembered_max=2)
    for n in range(3):
        assignment.assign(client(n), {0: 0}, EMPTY, 0.0)
    assert assignment.assign(client(2), {0: 9, 1: 0}, EMPTY, 0.0) == 0, "remembered"
    assert assignment.assign(client(0), {0: 9, 1: 0}, EMPTY, 0.0) == 1, "forgotten"


@pytest.mark.parametrize(("away_ms", "found"), [(REMEMBERED_MS - 1, 0), (REMEMBERED_MS, 1)])
def test_a_client_without_a_row_is_forgotten_when_it_has_not_asked_for_a_while(
    away_ms: float, found: int
) -> None:
    """Else a host on which a client begins every second would fill the table to its bound."""
    assignment = Assignment()
    assert assignment.assign(client(1), {0: 0}, EMPTY, 0.0) == 0
    assignment.assign(client(2), {0: 0}, EMPTY, away_ms)
    assert assignment.assign(client(1), {0: 90, 1: 0}, EMPTY, away_ms) == found


def test_a_client_that_keeps_asking_keeps_its_worker_however_long() -> None:
    assignment = Assignment()
    first = assignment.assign(client(1), {0: 0, 1: 0}, EMPTY, 0.0)
    for number in range(1, 20):
        now_ms = number * (REMEMBERED_MS - 1)
        assignment.assign(client(1 + number), {0: 0, 1: 0}, EMPTY, now_ms)
        assert assignment.assign(client(1), {0: 90, 1: 90}, EMPTY, now_ms) == first


class Choice:
    """Three workers on slots 4, 5 and 6, and the choice between those that are ready."""

    def __init__(self, folder: Path) -> None:
        path = folder / "segment"
        self.segment = Segment.create(
            path, page_bytes=4_096, buffer_memory_bytes=1 << 20, clients_max=16, instance_id=b"choice"
        )
        for slot in (4, 5, 6):
            self.segment.prepare_slot(slot)
        self.ready = [0, 1, 2]
        supervisor: Any = SimpleNamespace(for_new_clients=3, is_for_new_clients=lambda worker: True)
        self._supervisor = supervisor
        self._choice = WorkerChoice(supervisor, SegmentStore(self.segment, path, -1))

    def __call__(self, number: int, transactional_id: str | None) -> int | None:
        self._supervisor.ready = [
            SimpleNamespace(identity=SimpleNamespace(index=index, slot=4 + index)) for index in self.ready
        ]
        identity = self._choice.worker_of(client(number), transactional_id)
        return None if identity is None else identity.index


def test_all_clients_of_a_transactional_id_get_one_worker(tmp_path: Path) -> None:
    choice = Choice(tmp_path)
    for name in ("orders", "billing", "ü"):
        assert {choice(number, name) for number in range(9)} == {index_of_id(name, 3)}
    assert {index_of_id(f"id-{number}", 3) for number in range(30)} == {0, 1, 2}
    assert {choice(number, None) for number in range(9)} == {0, 1, 2}, "others are spread"


def test_the_worker_that_has_its_lane_goes_before_its_hash(tmp_path: Path) -> None:
    choice = Choice(tmp_path)
    other = (index_of_id("orders", 3) + 1) % 3
    LaneRecords(choice.segment, 4 + other).open(9, "orders", b"")
    assert choice(1, "orders") == other
    choice.ready.remove(other)
    assert choice(1, "orders") is None, "its successor will have the lane"


def test_a_new_transactional_id_waits_for_its_worker(tmp_path: Path) -> None:
    choice = Choice(tmp_path)
    choice.ready.remove(index_of_id("orders", 3))
    assert choice(1, "orders") is None
    assert choice(1, None) is not None
