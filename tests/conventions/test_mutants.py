"""Goal: the list of planted faults does not rot: each can be planted in the code as it is (``make mutants``)."""

from __future__ import annotations

import pytest

from tests.conventions.rule_table import CODE, ROOT
from tests.mutants.planted import BEHAVIOUR, Mutant, drawn, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: f"{mutant.rule}-{mutant.file}")
def test_the_fault_can_be_planted(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    assert mutant.planted(source) != source


def test_a_fault_without_its_one_place_is_refused() -> None:
    mutant = Mutant("A1", "a fault", "some/file.py", "old", "new")
    assert mutant.planted("an old line") == "an new line"
    for source in ("a line", "old, old"):
        with pytest.raises(ValueError, match="correct `old`"):
            mutant.planted(source)


def test_each_rule_has_one() -> None:
    assert {each.rule for each in mutants()} == CODE.keys()
    assert drawn(BEHAVIOUR.read_text()).keys() >= CODE.keys()
    assert len({each.fault for each in mutants()}) == len(mutants())
