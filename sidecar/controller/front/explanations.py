"""Explanations: answers ``kafka-sidecar explain``, a client's question why records wait, from all workers and from what
the controller knows itself. In the controller's loop; ControlEndpoint calls it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from sidecar.common.clock import MonotonicClock
from sidecar.common.control import ControlMessage, Explain, Explained
from sidecar.common.explanation import (
    CLIENT_ROWS_MAX,
    EVERY_USER,
    STAGE_ROWS_MAX,
    WAITING_ROWS_MAX,
    StageAccount,
    WaitingRow,
)
from sidecar.common.wording import masked
from sidecar.config.client_rules import Caller, ClientRules

ANSWER_S: Final = 3.0
"""A worker that has not answered for this time is named as silent."""
INTERVAL_S: Final = 0.25
"""The minimum time between two questions to the workers, so that a caller that asks constantly costs them little."""

MaySee = Callable[[str], bool]


class Channel(Protocol):
    def send(self, message: ControlMessage) -> None: ...


class Identity(Protocol):
    @property
    def index(self) -> int: ...


class Asked(Protocol):
    """The part of a worker that questions need."""

    @property
    def identity(self) -> Identity: ...

    @property
    def channel(self) -> Channel: ...


class Explanations:
    """Asks the workers that are ready now. Belongs to the controller's loop."""

    def __init__(
        self,
        workers: Callable[[], Sequence[Asked]],
        rules: Callable[[], ClientRules],
        failures: Callable[[], list[dict[str, Any]]],
    ) -> None:
        """``rules`` say which topics users may see; ``failures()`` are the last failures (``FailureBook.last``)."""
        self._workers = workers
        self._clock = MonotonicClock()
        self._rules = rules
        self._failures = failures
        self._serial = 0
        self._answers: dict[int, Explained] = {}
        """Worker index → its answer to the open question."""
        self._came = asyncio.Event()
        self._asking = asyncio.Lock()

    def answered(self, worker: Asked, answer: Explained) -> None:
        if answer.serial == self._serial:
            self._answers[worker.identity.index] = answer
            self._came.set()

    async def answer(self, name: str, caller: Caller) -> list[object]:
        """A list with one map: ``waiting``, ``clients``, ``stages`` and their counts, ``unread_batches``, ``failures``
        and ``silent_workers``.

        The daemon's user and root see everything; other users see the topics that they may send to, and their own
        clients.
        """
        is_owner = caller.uid in {0, os.geteuid()}

        def may_see(topic: str) -> bool:
            return is_owner or self._rules().lookup_refusal(topic, caller) is None

        found = await self._ask(Explain(0, name, EVERY_USER if is_owner else caller.uid), may_see)
        own = {each["client"] for each in found["clients"]}
        failures = [
            each if is_owner or each["client"] in own else {**each, "client": ""}
            for each in self._failures()
            if may_see(each["topic"])
        ]
        found["failures"] = [each for each in failures if name in {"", each["topic"], each["client"]}]
        if not (is_owner or found["waiting"] or found["clients"] or found["stages"]):
            found["is_known"] &= may_see(name) or may_see(name.rpartition("-")[0])
        return [found]

    async def _ask(self, question: Explain, may_see: MaySee) -> dict[str, Any]:
        async with self._asking:
            self._serial += 1
            self._answers.clear()
            asked = {each.identity.index: each for each in self._workers()}
            for worker in asked.values():
                worker.channel.send(replace(question, serial=self._serial))
            try:
                async with asyncio.timeout(ANSWER_S):
                    while not self._has_all(asked):
                        self._came.clear()
                        await self._came.wait()
            except TimeoutError:
                pass
            answers = dict(self._answers)
            await asyncio.sleep(INTERVAL_S)
        return self._merged(asked, answers, may_see)

    def _has_all(self, asked: Mapping[int, Asked]) -> bool:
        # A worker that has died meanwhile does not answer, and its successor was not asked.
        alive = {each.identity.index for each in self._workers() if asked.get(each.identity.index) is each}
        return alive <= self._answers.keys()

    def _merged(
        self, asked: Mapping[int, Asked], answers: Mapping[int, Explained], may_see: MaySee
    ) -> dict[str, Any]:
        now_ms = self._clock.now_ms()
        rows = [(index, row) for index, answer in answers.items() for row in answer.rows]
        waiting = [_waiting(index, row, now_ms) for index, row in rows if may_see(row.topic)]
        clients: list[dict[str, Any]] = [
            {
                "client": masked(row.client),
                "worker": index,
                "pid": row.pid,
                "is_attached": row.is_attached,
                "records": row.records,
                "bytes": row.size_bytes,
                "streams": row.streams,
                "held_streams": row.held_streams,
                "silent_seconds": round(row.silent_ms / 1e3, 1),
            }
            for index, answer in answers.items()
            for row in answer.clients
        ]
        stages = [(row.age_ms, index, row) for index, answer in answers.items() for row in answer.stages]
        stages.sort(key=lambda each: -each[0])
        waiting.sort(key=lambda row: -row["since_seconds"])
        clients.sort(key=lambda row: (-row["held_streams"], -row["records"]))
        return {
            "is_answered": True,
            # A worker that has not answered may know it.
            "is_known": not asked
            or len(answers) < len(asked)
            or any(answer.is_known for answer in answers.values()),
            "waiting": waiting[:WAITING_ROWS_MAX],
            # Without the rows that this user may not see.
            "waiting_count": sum(answer.row_count for answer in answers.values()) - len(rows) + len(waiting),
            "clients": clients[:CLIENT_ROWS_MAX],
            "client_count": sum(answer.client_count for answer in answers.values()),
            "stages": [_stage(index, row) for _, index, row in stages[:STAGE_ROWS_MAX]],
            "stage_count": sum(answer.stage_count for answer in answers.values()),
            "unread_batches": sum(answer.unread for answer in answers.values()),
            "silent_workers": sorted(asked.keys() - answers.keys()),
            "workers_asked": len(asked),
        }


def _waiting(worker: int, row: WaitingRow, now_ms: float) -> dict[str, Any]:
    """A row as JSON, without fields that do not apply."""
    shown: dict[str, Any] = {
        "topic": masked(row.topic),
        "partition": row.partition,
        "client": masked(row.client),
        "worker": worker,
        "cause": row.cause,
        "text": masked(row.text),
        "broker": row.broker,
        "records": row.records,
        "submissions": row.submissions,
        "bytes": row.size_bytes,
        "since_seconds": round((now_ms - row.since_ms) / 1e3, 1),
        "last_error": masked(row.last_error),
    }
    shown = {key: value for key, value in shown.items() if value not in (-1, "")}
    if row.deadline_ms:
        shown["left_seconds"] = round((row.deadline_ms - now_ms) / 1e3, 1)
    return shown


def _stage(worker: int, row: StageAccount) -> dict[str, Any]:
    """A stage as JSON."""
    return {
        "transactional_id": masked(row.transactional_id),
        "number": row.number,
        "owner": masked(row.owner),
        "client": masked(row.client),
        "worker": worker,
        "state": "sealed" if row.is_sealed else "open",
        "records": row.records,
        "bytes": row.size_bytes,
        "age_seconds": round(row.age_ms / 1e3, 1) if row.age_ms >= 0 else None,
        "left_seconds": round(row.left_ms / 1e3, 1) if row.is_sealed else None,
        "token": row.token,
    }
