"""Goal: a text, a form or a table, and a function of more than a line, has one owner. Numbers may agree by chance."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import pytest

from tests.conventions.unused import product_files

TWINS: Final = ("client_stub/compat/",)
"""They repeat what they are compared with (tests/kernel/test_one_value.py)."""
APART: Final = {
    "_LENGTH": "the length before each message of Kafka, read by the connection and written with the messages",
}
"""Things that stand in two places, and why."""
BODY_CHARACTERS: Final = 80


def repeated(files: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Name of a constant, or the body of a function → the files that have it with the same value."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for path, text in files:
        if not path.endswith(".py") or path.startswith(TWINS):
            continue
        tree = ast.parse(text)
        for node in tree.body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    pass
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    pass
                case _:
                    continue
            if name.isupper() and not _is_number(value) and not isinstance(value, ast.Attribute):
                found[name, ast.unparse(value)].append(path)
        for each in ast.walk(tree):
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                body = "\n".join(
                    ast.unparse(line) for line in each.body[ast.get_docstring(each) is not None :]
                )
                if len(body) > BODY_CHARACTERS:
                    found[each.name, body].append(path)
    return {name: paths for (name, _), paths in found.items() if len(paths) > 1}


def _is_number(value: ast.expr) -> bool:
    """Also by arithmetic, or as ``int(Enum.MEMBER)``."""
    names = {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
    constants = [each.value for each in ast.walk(value) if isinstance(each, ast.Constant)]
    return isinstance(value, ast.Constant | ast.BinOp | ast.UnaryOp | ast.Call) and (
        "int" in names or (not names and all(isinstance(each, int | float) for each in constants))
    )


@pytest.mark.slow
def test_nothing_is_said_twice() -> None:
    found = repeated(product_files())
    twice = {name: paths for name, paths in found.items() if name not in APART}
    assert not twice, f"let one import it from the other, or move it to what both may know: {twice}"
    assert found.keys() >= APART.keys(), f"said once by now: {APART.keys() - found.keys()}"


def test_the_test_can_fail() -> None:
    body = f"def f(a):\n    {'a + ' * BODY_CHARACTERS}a"
    files = [
        ("a.py", f"X = 'tcp://'\nY = 1 << 4\nZ = Struct('<Q')\n{body}"),
        ("b.py", f"X: Final = 'tcp://'\nY = 1 << 4\n{body}"),
    ]
    assert repeated(files) == {"X": ["a.py", "b.py"], "f": ["a.py", "b.py"]}
