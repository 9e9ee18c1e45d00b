"""Decides by a rule on the source which functions of a walk do their own work.

The count of functions leaves out those that a reader can skip:

- properties, constructors (``__init__``, ``__new__``) and lambdas, comprehensions and generated code;
- delegations: a body of one statement, docstring aside, that is a call, a value, an assignment of one, or a return of
  one.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from sidecar.bench.call_counter import ROOT

Function = ast.FunctionDef | ast.AsyncFunctionDef
_PROPERTIES = frozenset({"property", "cached_property", "setter"})
_CONSTRUCTORS = frozenset({"__init__", "__new__", "__post_init__"})
_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)


def has_own_work(function: str) -> bool:
    """Whether a function does its own work. ``function`` is ``path:line qualified.name``, as the call counter names
    it.
    """
    place, _, name = function.partition(" ")
    path, _, line = place.rpartition(":")
    node = _functions(path).get(int(line))
    if node is None or name.endswith(">"):
        return False  # a lambda, a comprehension, a module, or generated
    return does_own_work(node)


def does_own_work(node: Function) -> bool:
    if node.name in _CONSTRUCTORS or any(_is_property(each) for each in node.decorator_list):
        return False
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return len(body) > 1 or any(isinstance(each, _COMPOUND) for each in body)


def _is_property(decorator: ast.expr) -> bool:
    name = decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
    return name in _PROPERTIES


@cache
def _functions(path: str) -> dict[int, Function]:
    """Line → function; the line is that of a code object: of the first decorator, if there is one."""
    tree = ast.parse((Path(ROOT) / path).read_text())
    return {
        min([node.lineno, *(each.lineno for each in node.decorator_list)]): node
        for node in ast.walk(tree)
        if isinstance(node, Function)
    }
