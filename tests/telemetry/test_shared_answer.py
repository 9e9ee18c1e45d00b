"""Goal: however many ask, answers are made for a part of the time only; whoever asks alone gets one of this moment."""

from __future__ import annotations

import pytest

from sidecar.telemetry.shared_answer import (
    RENDER_BURST_S,
    RENDER_SHARE,
    SHARED_S,
    RenderBudget,
    SharedAnswer,
)

COST_S = 0.01


class Harness:
    """Answers that cost time, by a clock that stands still otherwise."""

    def __init__(self, kinds: int = 1) -> None:
        self.now_s = 100.0
        self.made = 0
        budget = RenderBudget()
        self.cpu_s = 0.0
        self.passes_s = 0.0
        """Time that goes by besides while an answer is made: others have the CPU."""
        self.answers = [
            SharedAnswer(self._make, budget, now_s=lambda: self.now_s, cpu_s=lambda: self.cpu_s)
            for _ in range(kinds)
        ]

    def _make(self) -> int:
        self.made += 1
        self.now_s += COST_S + self.passes_s
        self.cpu_s += COST_S
        return self.made

    def ask(self, *, is_crowded: bool = False, kind: int = 0) -> int:
        return self.answers[kind].get(is_crowded=is_crowded)


def test_a_lone_question_gets_a_fresh_answer() -> None:
    harness = Harness()
    for number in range(1, 1_000):
        assert harness.ask() == number
        harness.now_s += COST_S / RENDER_SHARE


def test_a_busy_machine_makes_no_answer_old() -> None:
    harness = Harness()
    harness.passes_s = 10 * COST_S / RENDER_SHARE
    for number in range(1, 1_000):
        assert harness.ask() == number


def test_those_who_ask_at_once_get_the_same_for_a_second() -> None:
    harness = Harness()
    assert [harness.ask(is_crowded=True) for _ in range(100)] == [1] * 100
    harness.now_s += SHARED_S - 1e-6
    assert harness.ask(is_crowded=True) == 1
    harness.now_s += 2e-6
    assert harness.ask(is_crowded=True) == 2
    assert harness.ask() == 3, "and who is alone, another"


@pytest.mark.parametrize("kinds", [1, 4])
def test_endless_questions_take_a_part_of_the_time(kinds: int) -> None:
    """A request takes a millisecond. All kinds of answers have one budget."""
    harness = Harness(kinds)
    began_s, asked = harness.now_s, 0
    while harness.now_s - began_s < 100.0:
        asked += 1
        harness.now_s += 0.001
        harness.ask(kind=asked % kinds)
    rendered_s = harness.made * COST_S
    assert rendered_s <= RENDER_BURST_S + 100.0 * RENDER_SHARE + COST_S
    assert rendered_s >= 100.0 * RENDER_SHARE * 0.9
    harness.now_s += RENDER_BURST_S / RENDER_SHARE
    made = harness.made
    assert harness.ask() == made + 1


def test_the_first_of_a_kind_is_made_whatever_it_costs() -> None:
    harness = Harness(2)
    for _ in range(200):
        harness.ask(kind=0)
    made = harness.made
    assert harness.ask(kind=0) == made < harness.ask(kind=1)
