"""Names that the product defines and never uses: code that only its tests run proves nothing of what users run.

``python -m tests.conventions.unused`` lists them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tests.conventions.test_layering import ROOT

PACKAGES: Final = ("sidecar", "client_stub", "pyspark_kafka_sidecar")
TOOLS: Final = frozenset({"testing", "bench", "chaos", "demo"})
"""Rooms of sidecar/ that drive the product from outside: they are no users of its parts."""
_WORD: Final = re.compile(r"[A-Za-z_]\w*")


class Definition(NamedTuple):
    name: str
    path: str
    line: int
    scope: tuple[str, ...]
    """The classes and functions around it."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {'.'.join((*self.scope, self.name))}"


class Reference(NamedTuple):
    path: str
    scope: tuple[str, ...]


class _Walk(ast.NodeVisitor):
    def __init__(self, path: str) -> None:
        self.path = path
        self.scope: tuple[str, ...] = ()
        self.definitions: list[Definition] = []
        self.references: list[tuple[str, Reference]] = []
        self.stored: list[Definition] = []
        """Attributes that a method stores on its object."""

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if not node.decorator_list or not _registers(node.decorator_list):
            self.definitions.append(Definition(node.name, self.path, node.lineno, self.scope))
        for field, value in ast.iter_fields(node):
            if field != "body":
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, ast.AST):
                        self.visit(each)
        outer, self.scope = self.scope, (*self.scope, node.name)
        for statement in node.body:
            self.visit(statement)
        self.scope = outer

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _define

    def _refer(self, name: str) -> None:
        self.references.append((name, Reference(self.path, self.scope)))

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._refer(node.id)
        elif not self.scope and node.id.isupper():
            self.definitions.append(Definition(node.id, self.path, node.lineno, ()))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self._refer(node.attr)
        elif isinstance(node.value, ast.Name) and node.value.id == "self":
            self.stored.append(Definition(node.attr, self.path, node.lineno, self.scope[:-1]))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        # Names in strings: __all__, annotations, "module:function".
        if isinstance(node.value, str) and " " not in node.value:
            for word in _WORD.findall(node.value):
                self._refer(word)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring uses nothing
            self.generic_visit(node)


def _registers(decorators: Iterable[ast.expr]) -> bool:
    """A decorator of another object (``@config.command()``) keeps the function that it decorates."""
    return any(isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) for each in decorators)


def product_files() -> Iterator[tuple[str, str]]:
    """(path, text) of the product's sources, Cython included."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in {".py", ".pyx", ".pxi", ".pxd"} and not TOOLS & set(path.parts):
                yield path.relative_to(ROOT).as_posix(), path.read_text()


def unused(files: Iterable[tuple[str, str]]) -> list[Definition]:
    """Functions, methods, classes and module constants that nothing outside of their own definition names.

    Attributes of ``self`` too, which are stored and never read: adding to one is not reading it. By name: one used
    name keeps all that are called so. A name anywhere in Cython counts as used.
    """
    definitions: list[Definition] = []
    stored: dict[str, Definition] = {}
    references: defaultdict[str, list[Reference]] = defaultdict(list)
    for path, text in files:
        if path.endswith(".py"):
            walk = _Walk(path)
            walk.visit(ast.parse(text))
            definitions += walk.definitions
            stored = {each.name: each for each in walk.stored} | stored
            for name, reference in walk.references:
                references[name].append(reference)
        else:
            for name in set(_WORD.findall(text)):
                references[name].append(Reference(path, ()))
    found = [each for each in definitions if not _is_used(each, references)]
    found += [each for name, each in stored.items() if name not in references]
    return [each for each in found if not _is_dunder(each.name)]


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_used(definition: Definition, references: defaultdict[str, list[Reference]]) -> bool:
    inside = (*definition.scope, definition.name)
    return any(
        reference.path != definition.path or reference.scope[: len(inside)] != inside
        for reference in references[definition.name]
    )


def main() -> int:
    for each in unused(product_files()):
        print(each)
    return 0


if __name__ == "__main__":
    sys.exit(main())
