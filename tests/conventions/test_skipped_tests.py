"""Goal: whoever runs ``make test`` reads at its end which package would bring how many more tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from tests.skipped_tests import lines, reasons_of
from tests.tools import PACKAGES, lacks

TESTS: Final = Path(__file__).resolve().parents[1]
NO_TOOL: Final = frozenset({"long form: run with --long"})
"""Reasons that no package mends."""


def other_reasons(source: str) -> list[str]:
    """Reasons of skips that are written out, but for those of one form. Tools have theirs from tests/tools.py."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and re.search(r"\b(skip|skipif)$", ast.unparse(node.func)):
            given = [each.value for each in node.keywords if each.arg == "reason"] or node.args
            found += [
                each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
    return [each for each in found if not each.startswith("needs ") and each not in NO_TOOL]


@pytest.mark.slow
def test_a_skip_says_what_it_needs() -> None:
    found = {
        str(path.relative_to(TESTS)): reasons
        for path in TESTS.rglob("*.py")
        if path != Path(__file__) and (reasons := other_reasons(path.read_text()))
    }
    assert not found, "say it by needs() of tests/tools.py, or as `needs WHAT (pip: PACKAGE)`"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("@pytest.mark.skipif(which('x') is None, reason='no x here')\ndef test(): ...", 1),
        ("pytest.skip('not here')", 1),
        ("pytest.skip('needs x (Debian: y)')", 0),
        ("pytest.skip(lacks('promtool'))", 0),
    ],
)
def test_the_test_can_fail(source: str, count: int) -> None:
    assert len(other_reasons(source)) == count


def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    assert lacks("promtool", "chromium") == "needs promtool (Debian: prometheus), chromium (Debian: chromium)"
    (tmp_path / "promtool").touch(mode=0o755)
    assert lacks("promtool") == ""
    assert all(PACKAGES.values())


def test_the_last_lines_count_by_reason() -> None:
    skipped = [
        ("test_a.py", 1, f"Skipped: {reason}")
        for reason in ("needs b (Debian: c)", "long form", "needs root")
    ]
    reports = [SimpleNamespace(longrepr=each) for each in [*skipped, skipped[0], "no tuple"]]
    assert lines(reasons_of(reports)) == [
        "SKIPPED 2 tests: needs b (Debian: c)",
        "SKIPPED 1 test: needs root",
    ]
