"""Goal: answers of all workers become one; a silent worker is named; nobody sees topics that are not for him."""

from __future__ import annotations

import asyncio
import os
from typing import Any, cast

import pytest

from sidecar.common.control import Explain, Explained, FailureRow
from sidecar.common.explanation import EVERY_USER, WAITING_ROWS_MAX, ClientAccount, StageAccount, WaitingRow
from sidecar.config.client_rules import Caller, ClientRule, ClientRules
from sidecar.controller.front.explanations import INTERVAL_S, Explanations
from sidecar.controller.status.failure_book import FailureBook

OWNER = Caller(os.geteuid())
STRANGER = Caller(12_345)


class Worker:
    """A worker's place, which answers as the test says."""

    def __init__(self, index: int, rows: int = 1, *, is_silent: bool = False) -> None:
        self.identity = self.channel = self
        self.index = index
        self.rows, self.is_silent = rows, is_silent
        self.explanations: Explanations | None = None
        self.asked_for: list[int] = []

    def send(self, question: Explain) -> None:
        if self.is_silent:
            return
        assert self.explanations is not None
        self.asked_for.append(question.uid)
        rows = tuple(
            WaitingRow(f"t\n{each}", 0, "", "linger", "x", 1, 1, 0, 1, 0.0, 0.0) for each in range(self.rows)
        )
        clients = (ClientAccount("a\nb", 1, True, self.index, 0, 1, 0, 0.0),)
        if question.uid != EVERY_USER:
            clients = ()
        stages = tuple(
            StageAccount("id\n", each, "run\n", "a\nb", True, 5, 100, 1e3 * each, 2e3, "stage-1-x")
            for each in range(self.rows)
        )
        stages += (StageAccount("id", 9, "", "", False, 1, 10, -1.0, -1.0, ""),)
        answer = Explained(
            question.serial, True, rows, self.rows, clients, len(clients), 0, stages, len(stages)
        )
        self.explanations.answered(cast(Any, self), Explained(question.serial - 1))  # to an earlier question
        self.explanations.answered(cast(Any, self), answer)


def ask(
    workers: list[Worker], caller: Caller = OWNER, rules: ClientRules | None = None, times: int = 1
) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        failures = FailureBook()
        failures.add([FailureRow("t?0", 29, "No.", 0, 1, "a")], 0.0, 0.0)
        failures.add([FailureRow("secret", 29, "No.", 0, 1, "a")], 0.0, 0.0)
        explanations = Explanations(
            lambda: cast(Any, workers), lambda: rules or ClientRules({}), failures.last
        )
        for worker in workers:
            worker.explanations = explanations
        answers = await asyncio.gather(*(explanations.answer("", caller) for _ in range(times)))
        (found,) = answers[0]
        return cast(dict[str, Any], found)

    return asyncio.run(run())


def test_workers_answers_become_one_and_names_are_one_line() -> None:
    found = ask([Worker(0, WAITING_ROWS_MAX), Worker(1, 1)])
    assert (len(found["waiting"]), found["waiting_count"]) == (WAITING_ROWS_MAX, WAITING_ROWS_MAX + 1)
    assert found["waiting"][0]["topic"].startswith("t?")
    assert [each["client"] for each in found["clients"]] == ["a?b", "a?b"]
    assert found["clients"][0]["worker"] == 1, "most records first"
    assert found["silent_workers"] == []
    assert len(found["failures"]) == 2


def test_stages_of_all_workers_are_there_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ask([Worker(0, 2), Worker(3, 1)])
    assert found["stage_count"] == 5
    assert [(each["number"], each["worker"]) for each in found["stages"]] == [
        (1, 0),
        (0, 0),
        (0, 3),
        (9, 0),
        (9, 3),
    ]
    sealed, opened = found["stages"][0], found["stages"][-1]
    assert (sealed["transactional_id"], sealed["owner"], sealed["client"]) == ("id?", "run?", "a?b")
    assert (sealed["state"], sealed["age_seconds"], sealed["left_seconds"]) == ("sealed", 1.0, 2.0)
    assert (opened["state"], opened["age_seconds"], opened["left_seconds"]) == ("open", None, None)
    monkeypatch.setattr("sidecar.controller.front.explanations.STAGE_ROWS_MAX", 2)
    found = ask([Worker(0, 2)])
    assert (len(found["stages"]), found["stage_count"]) == (2, 3)


def test_a_worker_that_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.controller.front.explanations.ANSWER_S", 0.05)
    found = ask([Worker(0), Worker(3, is_silent=True)])
    assert found["silent_workers"] == [3] and len(found["waiting"]) == 1
    assert found["is_known"], "the silent one may know it"


def test_a_daemon_without_a_ready_worker_knows_of_nothing_that_is_unknown() -> None:
    """Between a worker's death and its successor `explain` said that no record had ever come."""
    found = ask([])
    assert (found["is_known"], found["workers_asked"]) == (True, 0)


def test_another_user_sees_the_topics_that_he_may_send_to() -> None:
    rules = ClientRules({"web": ClientRule("web", allow=("t?0",))}, denies_unlisted=True)
    workers = [Worker(0, 3)]
    assert len(ask(workers, OWNER, rules)["waiting"]) == 3
    assert ask(workers, STRANGER, rules)["waiting_count"] == 1, "what he may not see is not counted"
    found = ask(workers, STRANGER, rules)
    assert [each["topic"] for each in found["waiting"]] == ["t?0"]
    assert [(each["topic"], each["client"]) for each in found["failures"]] == [("t?0", "")]


def test_another_user_sees_no_client_of_others() -> None:
    """Without any table every topic is everybody's, and yet the clients are not."""
    worker = Worker(0)
    found = ask([worker], OWNER)
    assert [each["client"] for each in found["clients"]] == ["a?b"]
    assert {each["client"] for each in found["failures"]} == {"a"}
    found = ask([worker], STRANGER)
    assert worker.asked_for == [EVERY_USER, STRANGER.uid]
    assert (found["clients"], found["client_count"]) == ([], 0)
    assert {each["client"] for each in found["failures"]} == {""}


def test_steady_questions_are_answered_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("sidecar.controller.front.explanations.asyncio.sleep", pause)
    ask([Worker(0)], times=3)
    assert pauses == [INTERVAL_S] * 3
