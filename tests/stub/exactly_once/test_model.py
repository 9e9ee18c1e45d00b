"""Goal: no order of steps, deaths, timeouts and lost answers loses or doubles a row, or shows half of a batch."""

from __future__ import annotations

import pytest

from tests.stub.exactly_once.model import Model, Rule, Search, search


def check_whole(found: Search) -> None:
    assert found.fault is None, "\n".join((found.fault, *found.way))
    # A model that can do nothing has no fault either.
    assert found.states > 50_000
    assert found.finished > 1_000


def test_every_order_of_steps_with_one_timeout_and_one_lost_answer_keeps_each_batch_whole() -> None:
    check_whole(search(Model(faults=1)))


@pytest.mark.slow
def test_every_order_of_steps_with_two_timeouts_and_two_lost_answers_keeps_each_batch_whole() -> None:
    check_whole(search(Model(faults=2)))


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        (Rule.CLAIM_BEFORE_READ, "batch 0 is doubled"),
        (Rule.CLAIM_UNLESS_LAST, "batch 0 is doubled"),
        (Rule.DROP_REPLAY, "batch 0 is doubled"),
        (Rule.RECORD_NOT_BEFORE, "batch 0 is lost"),
        (Rule.RECORD_NOT_AFTER, "batch 0 is doubled"),
        (Rule.ONLY_CHOSEN, "batch 0 is doubled"),
        (Rule.LOST_IS_NO_COMMIT, "batch 0 is lost"),
        (Rule.LOST_IS_NO_REFUSAL, "batch 0 is doubled"),
    ],
)
def test_each_rule_is_needed(rule: Rule, fault: str) -> None:
    found = search(Model(rule))
    assert found.fault == fault
    assert 0 < len(found.way) <= 20


def test_each_rule_has_its_counter_example() -> None:
    (marker,) = test_each_rule_is_needed.pytestmark  # type: ignore[attr-defined]
    assert {rule for rule, _ in marker.args[1]} == set(Rule)
