"""Goal: a unit test that passes on a quiet machine passes on a busy one.

It compares no time that has passed with a number of seconds, and it waits either so short that it expects to wait in
vain, or long enough (``PATIENCE_S`` of tests/patience.py where there is no other reason). Suites that start processes
measure: they are not looked at.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
CLOCKS: Final = frozenset({"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"})
WAITS: Final = frozenset(
    {
        "wait",
        "wait_for",
        "timeout",
        "join",
        "settimeout",
        "result",
        "exception",
        "flush",
        "communicate",
        "select",
    }
    | {"create_connection", "urlopen", "until", "eventually"}
)
IN_VAIN_S: Final = 1
"""A wait that is meant to end without what it waits for is no longer."""
LONG_S: Final = 10
SUITES: Final = frozenset({"process", "kafka", "spark"})
FOLDERS: Final = frozenset({"process", "scenarios", "cluster", "integration", "spark", "deploy"})


def marks_of(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    """The names of pytest's marks on it."""
    marked: list[ast.AST] = (
        [
            each
            for each in node.body
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark"
        ]
        if isinstance(node, ast.Module)
        else list(node.decorator_list)
    )
    return {each.attr for mark in marked for each in ast.walk(mark) if isinstance(each, ast.Attribute)}


def units(scope: ast.Module | ast.ClassDef) -> Iterator[ast.AST]:
    """Statements that the unit suite runs."""
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            if not marks_of(node) & SUITES:
                yield from units(node)
        elif not (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and marks_of(node) & SUITES):
            yield node


def reads_a_clock(node: ast.AST, elapsed: set[str]) -> bool:
    """True if the value is a time that has passed: a clock less something, or a name of that."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id in elapsed:
            return True
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub):
            for call in ast.walk(each.left):
                if isinstance(call, ast.Call) and called(call) in CLOCKS:
                    return True
    return False


def called(call: ast.Call) -> str:
    """The last word of what is called."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def is_number(node: ast.AST) -> bool:
    return not any(isinstance(each, ast.Name | ast.Attribute | ast.Call) for each in ast.walk(node))


def judged_times(scope: ast.AST) -> Iterator[int]:
    """Lines with an assertion that a time that has passed is shorter than a number."""
    elapsed: set[str] = set()
    for node in ast.walk(scope):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and reads_a_clock(node.value, set())
        ):
            elapsed.add(node.targets[0].id)
    for node in ast.walk(scope):
        if not isinstance(node, ast.Assert):
            continue
        for compare in ast.walk(node.test):
            if isinstance(compare, ast.Compare):
                sides = [compare.left, *compare.comparators]
                for less, more, operator in zip(sides, sides[1:], compare.ops, strict=False):
                    if isinstance(operator, ast.Gt | ast.GtE):
                        less, more = more, less  # noqa: PLW2901
                    if isinstance(operator, ast.Eq | ast.NotEq | ast.In | ast.Is):
                        continue
                    if is_number(more) and reads_a_clock(less, elapsed):
                        yield node.lineno


def short_waits(scope: ast.AST) -> Iterator[int]:
    """Lines with a wait of some seconds: too long to be in vain, too short for a busy machine."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and called(node) in WAITS:
            for given in [
                *node.args,
                *(each.value for each in node.keywords if "timeout" in (each.arg or "")),
            ]:
                if (
                    isinstance(given, ast.Constant)
                    and isinstance(given.value, int | float)
                    and not isinstance(given.value, bool)
                    and IN_VAIN_S < given.value < LONG_S
                ):
                    yield node.lineno


def found(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    if marks_of(tree) & SUITES:
        return []
    return [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for each in units(tree)
        for what, lines in (
            ("asserts a time of the wall", judged_times(each)),
            ("a wait that a busy machine may miss", short_waits(each)),
        )
        for line in lines
    ]


@pytest.mark.slow
def test_no_unit_test_depends_on_a_quiet_machine() -> None:
    paths = sorted((ROOT / "tests").rglob("*.py"))
    looked_at = [each for each in paths if each.relative_to(ROOT / "tests").parts[0] not in FOLDERS]
    assert [line for each in looked_at for line in found(each)] == []


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        ("assert time.monotonic() - began_s < 5", 1),
        ("assert 5.0 >= time.perf_counter() - began_s", 1),
        ("took_s = time.monotonic() - began_s; assert took_s < 2, 'slow'", 1),
        ("assert 0.1 < time.time() - began_s < 5", 1),
        ("assert 0.1 < time.time() - began_s", 0),
        ("assert time.monotonic() - began_s < 100 * first_s", 0),
        ("assert token.expires_s - time.time() < 3_600", 0),
        ("process.communicate(timeout=5)", 1),
        ("await asyncio.wait_for(reader.read(), 5)", 1),
        ("async with asyncio.timeout(2.5): await x", 1),
        ("thread.join(3); peer.settimeout(5)", 2),
        ("flushed.wait(0.1)", 0),
        ("producer.flush(PATIENCE_S)", 0),
        ("delivery.result(10)", 0),
    ],
)
def test_the_test_can_fail(lines: str, count: int) -> None:
    body = ast.parse(f"async def test():\n    {lines}")
    assert len([*judged_times(body), *short_waits(body)]) == count


def test_only_units_are_looked_at() -> None:
    source = """
def test_unit(): peer.settimeout(5)
@pytest.mark.process
def test_process(): peer.settimeout(5)
@pytest.mark.kafka
class TestAll:
    def test_one(self): peer.settimeout(5)
"""
    assert [line for each in units(ast.parse(source)) for line in short_waits(each)] == [2]
