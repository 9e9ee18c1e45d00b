"""Goal: docs/scenarios.md names tests that exist, and leaves out none of tests/scenarios."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "tests" / "scenarios"


def named() -> set[tuple[Path, str]]:
    found = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs" / "scenarios.md").read_text())
    return {(ROOT / path if "/" in path else SCENARIOS / path, test) for path, test in found}


def test_every_test_that_the_table_names_is_there() -> None:
    missing = [
        f"{path.relative_to(ROOT)}::{test}"
        for path, test in sorted(named())
        if not path.exists() or not re.search(rf"^(async )?def {test}\(", path.read_text(), re.MULTILINE)
    ]
    assert not missing


def test_every_scenario_is_in_the_table() -> None:
    here = {
        (path, test)
        for path in SCENARIOS.glob("test_*.py")
        for test in re.findall(r"^def (test_[a-z]{2}_\d\d_\w+)\(", path.read_text(), re.MULTILINE)
    }
    assert here
    assert not here - named()
