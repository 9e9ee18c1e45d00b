"""The judge of the demo must notice loss, doubles, order, and changed values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.tools.demo import flights
from sidecar.tools.demo.connections import ConnectionPeak, count_connections
from sidecar.tools.demo.judge import TASK_SHIFT, Judge, Verdict
from sidecar.tools.demo.requirements import requirements


class Message:
    def __init__(self, key: str, row: int, partition: int = 0, distance: int = 100) -> None:
        self._key = key
        self._value = {"carrier": key, "row": row, "distance": distance, "flight": 7}
        self._partition = partition

    def key(self) -> bytes | None:
        return self._key.encode()

    def value(self) -> bytes | None:
        return json.dumps(self._value).encode()

    def partition(self) -> int | None:
        return self._partition


def expected() -> flights.Counts:
    counts = flights.Counts()
    for _ in range(4):
        counts.add("AA", 100, 7)
    counts.add("UA", 100, 7)
    return counts


def topic() -> list[Message]:
    second = 1 << TASK_SHIFT
    return [
        Message("AA", 0),
        Message("AA", second),  # two tasks interleave as they like
        Message("AA", 2),
        Message("UA", 1, partition=5),
        Message("AA", second + 1),
    ]


def judged(messages: list[Message]) -> Verdict:
    judge = Judge()
    judge.take(messages)
    return judge.verdict(expected())


def test_agreement() -> None:
    verdict = judged(topic())
    assert verdict.problems == []
    assert verdict.tasks == {0, 1}


def _drop(messages: list[Message]) -> list[Message]:
    return messages[:-1]


def _double(messages: list[Message]) -> list[Message]:
    return [*messages, messages[-1]]


def _swap(messages: list[Message]) -> list[Message]:
    return [messages[2], messages[0], *messages[3:], messages[1]]


def _change(messages: list[Message]) -> list[Message]:
    return [Message("AA", 0, distance=101), *messages[1:]]


def _move(messages: list[Message]) -> list[Message]:
    return [*messages[:-1], Message("AA", (1 << TASK_SHIFT) + 1, partition=3)]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_drop, "1 rows are missing"),
        (_double, "1 rows are doubled"),
        (_swap, "came after row"),
        (_change, "key AA: the CSV has"),
        (_move, "is in partitions 0 and 3"),
    ],
)
def test_damage_is_noticed(damage: Callable[[list[Message]], list[Message]], words: str) -> None:
    verdict = judged(damage(topic()))
    assert any(words in problem for problem in verdict.problems), verdict.problems
    assert not verdict.agrees


def test_nonsense_is_a_problem_and_no_exception() -> None:
    message = Message("AA", 0)
    message._value = {"carrier": "AA"}
    assert "not a flight" in judged([*topic(), message]).problems[0]


def test_flights_are_counted_from_the_csv(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    path.write_text("carrier,flight,distance,dep_time\nAA,1,10,\nAA,2,20,5\nUA,3,30,\n")
    counts = flights.count(path)
    assert counts.rows == 3
    assert counts.by_key == {"AA": flights.Totals(2, 30, 3), "UA": flights.Totals(1, 30, 3)}


def test_connections_are_counted() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert count_connections([port]) == 0
        with socket.create_connection(("127.0.0.1", port)), ConnectionPeak([port]) as peak:
            pass
        assert peak.peak == 1


def test_requirements_follow_extras() -> None:
    found = requirements("demo")
    assert any(each.startswith("confluent-kafka") for each in found)
    assert any(each.startswith("pyspark") for each in found)
    assert not any(each.startswith("kafka-sidecar") for each in found)
    less = requirements("demo", without=["spark"])
    assert {*found} > {*less} and not any(each.startswith(("pyspark", "pyarrow")) for each in less)
    with pytest.raises(KeyError):
        requirements("nonsense")
