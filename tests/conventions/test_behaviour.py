"""Every rule of docs/behaviour.md has a test that names it, and what the document lists is there."""

from __future__ import annotations

import ast

import pytest

from tests.conventions.rule_table import CODE, DOCUMENT, HEADING, ROOT, rule_tests, rules_of, table


def test_no_test_names_a_rule_that_does_not_exist() -> None:
    unknown = {each.rule for each in rule_tests()} - CODE.keys()
    assert not unknown, f"docs/behaviour.md and CODE in tests/conventions/rule_table.py have no {unknown}"


@pytest.mark.parametrize("rule", CODE)
def test_the_rule_is_proven(rule: str) -> None:
    names = {each.name for each in rule_tests() if each.rule == rule}
    assert names, f"no test is marked with rule {rule}"


def test_the_page_lists_them_all() -> None:
    printed = HEADING + DOCUMENT.read_text().split(HEADING, maxsplit=1)[1]
    assert printed == table(), "print the table again: .demo/venv/bin/python -m tests.conventions.rule_table"


def test_marks_of_classes_and_modules_count() -> None:
    source = """
pytestmark = [pytest.mark.process, pytest.mark.rule("A1")]
@pytest.mark.rule("A2")
class TestX:
    def test_one(self): ...
    @pytest.mark.rule("A3")
    async def test_two(self): ...
    def helper(self): ...
def test_three(): ...
"""
    assert sorted(rules_of(ast.parse(source))) == [
        ("A1", "test_one"),
        ("A1", "test_three"),
        ("A1", "test_two"),
        ("A2", "test_one"),
        ("A2", "test_two"),
        ("A3", "test_two"),
    ]


@pytest.mark.parametrize("rule", CODE)
def test_the_code_it_points_to_is_there(rule: str) -> None:
    for path in CODE[rule].split(", "):
        assert (ROOT / path).exists() or (ROOT / "sidecar" / path).exists(), path
