"""Goal: the history's check finds each thing that must not happen, and nothing in a history where all is well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.tools.testing.history import History


def history_of(*numbers: int) -> History:
    """One caller sent these numbers to one key; nothing else happened."""
    history = History()
    for number in numbers:
        history.sent("caller", b"key", b"v%d" % number)
    return history


def test_a_good_history() -> None:
    history = history_of(0, 1, 2, 3)
    history.delivered(b"v0", 0, 0)
    history.read("a", 0, 0, b"v0")
    history.read("b", 0, 0, b"v0")
    history.failed(b"v1", possibly_persisted=False)
    history.failed(b"v2", possibly_persisted=True)
    history.read("a", 0, 1, b"v2")
    history.delivered(b"v3", 0, -1)
    assert (history.unseen, history.untold) == (1, 0)
    history.check()
    history.read("b", 0, 2, b"v3")
    assert history.unseen == 0
    history.check(is_over=True)
    assert history.counts == {
        "sent": 4,
        "delivered": 2,
        "failed": 2,
        "possibly persisted": 1,
        "read": 3,
    }
    assert (history.highest_read(0), history.highest_read(1)) == (2, -1)


def test_unfinished_values_are_no_problem_until_the_end() -> None:
    history = history_of(0, 1)
    history.delivered(b"v0", 0, 7)
    assert history.problems() == []
    assert history.problems(is_over=True) == [
        "1 values never got an outcome: v1",
        "1 values were acked and were never read: v0",
    ]


def test_lost_is_what_lies_below_the_highest_offset_read() -> None:
    history = history_of(0, 1)
    history.delivered(b"v0", 0, 0)
    history.delivered(b"v1", 0, 1)
    history.read("a", 0, 1, b"v1")
    (problem,) = history.problems()
    assert problem.startswith("1 values were acked, others behind them were read")


def test_each_violation() -> None:
    def failed_and_read(history: History) -> None:
        history.failed(b"v0", possibly_persisted=False)
        history.read("a", 0, 0, b"v0")

    def twice(history: History) -> None:
        history.read("a", 0, 0, b"v0")
        history.read("a", 0, 1, b"v0")

    def two_at_one_place(history: History) -> None:
        history.read("a", 0, 0, b"v0")
        history.read("b", 0, 0, b"v1")

    def told_twice(history: History) -> None:
        history.delivered(b"v0", 0, 0)
        history.failed(b"v0", possibly_persisted=True)

    def elsewhere(history: History) -> None:
        history.delivered(b"v0", 0, 3)
        history.read("a", 0, 4, b"v0")

    def inverted(history: History) -> None:
        history.read("a", 0, 0, b"v1")
        history.read("a", 0, 1, b"v0")

    def unknown(history: History) -> None:
        history.read("a", 0, 0, b"v9")

    def sent_again(history: History) -> None:
        history.sent("caller", b"key", b"v0")

    for make, words in (
        (failed_and_read, "failed for certain and were read: v0"),
        (twice, "read at more than one place: v0"),
        (two_at_one_place, "offset 0 of partition 0 had v0, v1"),
        (told_twice, "got more than one outcome: v0"),
        (elsewhere, "lie elsewhere than their outcomes say: v0"),
        (
            inverted,
            "order of caller for key b'key' broken at offset 1 of partition 0: b'v0' came after b'v1'",
        ),
        (unknown, "were read and never sent: v9"),
        (sent_again, "were sent twice by the test itself: v0"),
    ):
        history = history_of(0, 1)
        make(history)
        (problem,) = history.problems()
        assert words in problem
        with pytest.raises(AssertionError, match="the history is not consistent"):
            history.check()


def test_order_is_per_caller_key_and_partition() -> None:
    history = History()
    for caller, key, value in (
        ("a", b"1", b"a1"),
        ("a", b"2", b"a2"),
        ("b", b"1", b"b1"),
        ("a", b"1", b"a3"),
    ):
        history.sent(caller, key, value)
    for offset, value in enumerate((b"b1", b"a2", b"a1")):
        history.read("r", 0, offset, value)
    history.read("r", 1, 0, b"a3")
    history.check()


def test_a_dump_has_every_record_and_fault(tmp_path: Path) -> None:
    history = history_of(0)
    history.delivered(b"v0", 1, 2)
    history.read("a", 1, 2, b"v0")
    history.happened("broker 1 is killed")
    history.dump(tmp_path / "history.jsonl")
    record, fault = (json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines())
    assert (record["value"], record["delivered"], record["read"]) == ("v0", [1, 2], [[1, 2]])
    assert fault["nemesis"] == "broker 1 is killed"
