"""Names that are defined and never used: code that only its tests run proves nothing of what users run.

``python -m tests.conventions.unused`` lists those of the product, then those of the tools and of the tests themselves.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from tests.conventions.test_layering import ROOT

PACKAGES: Final = ("sidecar", "client_stub", "pyspark_kafka_sidecar")
TOOLS: Final = frozenset({"tools"})
"""Rooms of sidecar/ that drive the product from outside: they are no users of its parts."""
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_UNREAD_IN_CYTHON: Final = re.compile(r'"""[\s\S]*?"""|"(?:[^"\\\n]|\\.)*"|#[^\n]*')
_CYTHON_FUNCTION: Final = re.compile(r"^[ \t]*(?:cdef|cpdef|def)\b[^\n(=]*?\b(\w+)[ \t]*\(", re.MULTILINE)
_CYTHON_CONSTANT: Final = re.compile(r"^[ \t]*(?:cdef +[\w ]+? )?([A-Z][A-Z0-9_]+) *=(?!=)", re.MULTILINE)
_CYTHON_FIELDS: Final = re.compile(r"^[ \t]+cdef +(?:readonly +|public +)?([^\n(=:]+)$", re.MULTILINE)


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
        self._is_in_class = False

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if not _registers(node.decorator_list):
            self.definitions.append(Definition(node.name, self.path, node.lineno, self.scope))
        for field, value in ast.iter_fields(node):
            if field != "body":
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, ast.AST):
                        self.visit(each)
        outer, self.scope = self.scope, (*self.scope, node.name)
        was_in_class, self._is_in_class = self._is_in_class, isinstance(node, ast.ClassDef)
        for statement in node.body:
            self.visit(statement)
        self.scope, self._is_in_class = outer, was_in_class

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _define

    def _refer(self, name: str) -> None:
        self.references.append((name, Reference(self.path, self.scope)))

    def visit_Assign(self, node: ast.Assign) -> None:
        # A list of names is no use of them, but in the modules that users import from.
        if (
            not any(isinstance(each, ast.Name) and each.id == "__all__" for each in node.targets)
            or self.path in API
        ):
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._refer(node.id)
        elif self._is_in_class or (not self.scope and node.id.isupper()):
            self.definitions.append(Definition(node.id, self.path, node.lineno, self.scope))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self._refer(node.attr)
        elif isinstance(node.value, ast.Name) and node.value.id == "self":
            self.stored.append(Definition(node.attr, self.path, node.lineno, self.scope[:-1]))
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        if self.path.startswith("tests/"):
            self._refer(node.arg)  # pytest gives the fixture of that name
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        # Names in strings: annotations, "module:function".
        if isinstance(node.value, str) and " " not in node.value:
            for word in _WORD.findall(node.value):
                self._refer(word)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring uses nothing
            self.generic_visit(node)


API: Final = frozenset(
    {
        "client_stub/__init__.py",
        "client_stub/testing.py",
        "client_stub/compat/confluent.py",
        "pyspark_kafka_sidecar/__init__.py",
    }
)
"""Modules that users import from by the names in ``__all__``."""


def _registers(decorators: Iterable[ast.expr]) -> bool:
    """A decorator of another object (``@config.command()``) keeps the function that it decorates. A fixture is used
    where a test names it.
    """
    return any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and (each.func.attr != "fixture" or any(word.arg == "autouse" for word in each.keywords))
        for each in decorators
    )


def _is_of_tools(path: str) -> bool:
    return not TOOLS.isdisjoint(parts := path.split("/")) and "kill_points" not in parts


def _sources(*folders: str) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".pyx", ".pxi", ".pxd"}:
                yield path.relative_to(ROOT).as_posix(), path.read_text()


def product_files() -> Iterator[tuple[str, str]]:
    """(path, text) of the product's sources, Cython included."""
    return ((path, text) for path, text in _sources(*PACKAGES) if not _is_of_tools(path))


def unused_beside_the_product() -> list[Definition]:
    """Names of the tools and of the tests that nothing at all uses. pytest finds a test by its name."""
    reasons = "tests/conventions/test_unused.py"  # which has them as strings
    found = unused(
        ((path, text) for path, text in _sources(*PACKAGES, "tests", "deploy") if path != reasons),
        lambda path: path.startswith(("tests/", "deploy/")) or _is_of_tools(path),
    )
    return [each for each in found if not each.name.startswith(("test_", "pytest_", "Test", "pytestmark"))]


def unused(
    files: Iterable[tuple[str, str]], is_judged: Callable[[str], bool] = lambda _: True
) -> list[Definition]:
    """Functions, methods, classes, fields and constants in files that ``is_judged`` accepts, which nothing outside of
    their own definition names.

    Attributes of ``self`` too, which are stored and never read: adding to one is not reading it. By name: one used
    name keeps all that are called so. Cython's are used by another line of Cython or by Python.
    """
    definitions: list[Definition] = []
    stored: dict[str, Definition] = {}
    references: defaultdict[str, list[Reference]] = defaultdict(list)
    cython: list[tuple[str, str]] = []
    for path, text in files:
        if path.endswith(".py"):
            walk = _Walk(path)
            walk.visit(ast.parse(text))
            definitions += walk.definitions
            stored = {each.name: each for each in walk.stored} | stored
            for name, reference in walk.references:
                references[name].append(reference)
        else:
            # Of the same length, so that lines keep their numbers.
            plain = _UNREAD_IN_CYTHON.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
            cython.append((path, plain))
    found = _unused_in_cython(cython, references.keys())
    for path, text in cython:
        for name in set(_WORD.findall(text)):
            references[name].append(Reference(path, ()))
    found += [each for each in definitions if not _is_used(each, references)]
    found += [each for name, each in stored.items() if name not in references]
    return [each for each in found if is_judged(each.path) and not _is_dunder(each.name)]


def _unused_in_cython(files: list[tuple[str, str]], in_python: Iterable[str]) -> list[Definition]:
    counts = Counter(name for _, text in files for name in _WORD.findall(text))
    defined = [
        Definition(name, path, text.count("\n", 0, match.start(1)) + 1, ())
        for path, text in files
        for pattern in (_CYTHON_FUNCTION, _CYTHON_CONSTANT, _CYTHON_FIELDS)
        for match in pattern.finditer(text)
        for name in _WORD.findall(match[1])
    ]
    times = Counter(each.name for each in defined)
    named = set(in_python)
    return [each for each in defined if counts[each.name] <= times[each.name] and each.name not in named]


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_used(definition: Definition, references: defaultdict[str, list[Reference]]) -> bool:
    inside = (*definition.scope, definition.name)
    return any(
        reference.path != definition.path or reference.scope[: len(inside)] != inside
        for reference in references[definition.name]
    )


def main() -> int:
    for each in (*unused(product_files()), *unused_beside_the_product()):
        print(each)
    return 0


if __name__ == "__main__":
    sys.exit(main())
