"""Every rule of docs/behaviour.md has a test that names it, and what the document lists is there."""

from __future__ import annotations

import re

import pytest

from tests.conventions.rule_table import CODE, DOCUMENT, HEADING, ROOT, rule_tests


def test_no_test_names_a_rule_that_does_not_exist() -> None:
    unknown = {each.rule for each in rule_tests()} - CODE.keys()
    assert not unknown, f"docs/behaviour.md and CODE in tests/conventions/rule_table.py have no {unknown}"


@pytest.mark.parametrize("rule", CODE)
def test_the_rule_is_proven_and_listed(rule: str) -> None:
    names = {each.name for each in rule_tests() if each.rule == rule}
    assert names, f"no test is marked with rule {rule}"
    section = DOCUMENT.read_text().split(HEADING, maxsplit=1)[1]
    row = section.split(f"\n### {rule}\n", maxsplit=1)[1].split("\n### ", maxsplit=1)[0]
    listed = set(re.findall(r"`(test_\w+)`", row))
    again = "print the table again: .demo/venv/bin/python -m tests.conventions.rule_table"
    assert listed, again
    assert listed <= names, f"listed, but gone: {listed - names}; {again}"


@pytest.mark.parametrize("rule", CODE)
def test_the_code_it_points_to_is_there(rule: str) -> None:
    for path in CODE[rule].split(", "):
        assert (ROOT / path).exists() or (ROOT / "sidecar" / path).exists(), path
