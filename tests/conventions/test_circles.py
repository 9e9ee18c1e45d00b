"""Goal: no two files need each other. An import that runs, at the top or inside a function, closes no circle."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.conventions.test_layering import ROOT, imports, sources, type_only_lines

TYPED_IN_CIRCLES = {
    # A batch knows its queue, and the queue its batches, whose sequences are renumbered together.
    frozenset({"partition_queue", "partition_sequences", "producer_batch"}),
    # A client has its lane and stages, a lane its stages, and a stage the lane and the client that it belongs to.
    frozenset({"lane", "session", "stage"}),
}
"""Files that name each other's types under TYPE_CHECKING only. Shorten it; a new circle needs a reason here."""


def circles(knows: dict[str, set[str]]) -> set[frozenset[str]]:
    """Groups of modules each of which reaches all of its group."""
    reached: dict[str, set[str]] = {}
    for module, known in knows.items():
        found, ahead = reached.setdefault(module, set()), list(known)
        while ahead:
            each = ahead.pop()
            if each not in found:
                found.add(each)
                ahead += knows.get(each, ())
    return {
        frozenset(other for other in found if module in reached.get(other, ()))
        for module, found in reached.items()
        if module in found
    }


@cache
def imported() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Module → modules of ours it imports when it runs, and with those it imports for their types."""
    paths = dict(sources())
    extensions = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for room in ("sidecar", "client_stub")
        for path in (ROOT / room).rglob("*.pyx")
    }
    modules = {name.removesuffix(".__init__") for name in paths} | extensions
    running: dict[str, set[str]] = {}
    typed: dict[str, set[str]] = {}
    for name, path in paths.items():
        tree = ast.parse(path.read_text())
        type_only = type_only_lines(tree)
        module = name.removesuffix(".__init__")
        running[module], typed[module] = set(), set()
        for line, target in imports(name, tree):
            found = target if target in modules else target.rpartition(".")[0]
            if found in modules and found != module:
                typed[module].add(found)
                if line not in type_only:
                    running[module].add(found)
    return running, typed


@pytest.mark.slow
def test_no_import_that_runs_closes_a_circle() -> None:
    found = [sorted(each) for each in circles(imported()[0])]
    assert not found, f"import for types under TYPE_CHECKING, or move what both need to a third file: {found}"


@pytest.mark.slow
def test_types_close_only_the_circles_that_are_known() -> None:
    found = {frozenset(module.rpartition(".")[2] for module in each) for each in circles(imported()[1])}
    assert found == TYPED_IN_CIRCLES, (
        "a new circle by types: name the reason, or break it; or one that is gone: strike it"
    )


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == {frozenset("abc")}
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == set()
