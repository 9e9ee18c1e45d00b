"""Goal: the rule by which functions with work of their own are counted is one that a reader can apply."""

from __future__ import annotations

import ast

import pytest

from sidecar.bench.own_work import does_own_work, has_own_work
from sidecar.bench.steps import BULK, WAITED_FOR, Step, Walk, by_room


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(self):\n    return self.g(1)", False),
        ('def f(self):\n    """Doc."""\n    self.x = g(1)', False),
        ("def f(self):\n    for x in y: g(x)", True),
        ("def f(self):\n    if x: return 1", True),
        ("def f(self):\n    x = g()\n    return x + 1", True),
        ("@property\ndef f(self):\n    x = g()\n    return x + 1", False),
        ("@functools.cached_property\ndef f(self):\n    x = g()\n    return x + 1", False),
        ("def __init__(self):\n    self.x = 1\n    self.y = 2", False),
    ],
)
def test_a_function_with_more_than_a_delegation_counts(source: str, expected: bool) -> None:
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    assert does_own_work(node) is expected


def test_a_counted_name_is_found_in_its_file() -> None:
    from sidecar.producer.sender import Sender

    code = Sender.poll.__code__
    assert has_own_work(f"sidecar/producer/sender.py:{code.co_firstlineno} Sender.poll")
    assert not has_own_work(
        f"sidecar/producer/sender.py:{code.co_firstlineno} Sender.poll.<locals>.<genexpr>"
    )


def test_functions_are_counted_by_room() -> None:
    from sidecar.producer.sender import Sender

    functions = [
        f"sidecar/producer/sender.py:{each.__code__.co_firstlineno} {each.__qualname__}"
        for each in (Sender.poll, Sender.on_produce_response, Sender.wake)
    ]
    walk = Walk(WAITED_FOR, "worker", tuple(Step(each, 1.0) for each in functions))
    other = Walk(BULK, "worker", (Step("sidecar/net/listener.py:1 nothing", 1.0),))
    assert by_room([walk, walk, other]) == {"sidecar/producer": (2, 1)}
