"""Which failed process tests `make test` tries again."""

from __future__ import annotations

import pytest

from tests.second_chance import MOST_TESTS, candidates

LATE = "FAILED tests/process/test_x.py::test_one[a: b]: E TimeoutError: not within 20 s"


def test_a_few_tests_that_missed_their_moment_are_tried_again() -> None:
    assert candidates(["FAILED tests/process/test_x.py::test_one: E TimeoutError: not within 20 s"]) == [
        "tests/process/test_x.py::test_one"
    ]


@pytest.mark.parametrize(
    "reason",
    [
        "E AssertionError: the ledger does not balance:",
        "E AssertionError: 3 records lost",
        "E Failed: delivered twice",
    ],
)
def test_no_loss_is_tried_again(reason: str) -> None:
    assert candidates([f"FAILED tests/process/test_x.py::test_one: {reason}", LATE]) == []


def test_more_than_a_few_stand() -> None:
    assert (
        candidates([f"FAILED tests/process/test_x.py::test_{i}: E late" for i in range(MOST_TESTS + 1)]) == []
    )


def test_a_suite_that_did_not_end_stays_failed() -> None:
    assert candidates(["suite process: not ended after 2160 s"]) == []
