"""Above the engine nobody reads another object's underscore names, and no front or twin sets another object's
attributes: the rule of an object is in its own class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conventions.test_layering import ROOT, sources, within

ROOMS = (
    "client_stub.producer",
    "client_stub.async_producer",
    "client_stub.inner_producer",
    "client_stub.logging_handler",
    "client_stub.testing",
    "client_stub.engine",
    "client_stub.aio",
    "client_stub.compat",
    "client_stub.fakes",
    "client_stub.spark",
    "client_stub.records",
)
FRONTS = (
    "client_stub.producer",
    "client_stub.async_producer",
    "client_stub.inner_producer",
    "client_stub.logging_handler",
    "client_stub.testing",
    "client_stub.aio",
    "client_stub.compat",
)
PUBLIC_THERE = {"KafkaError"}
"""confluent-kafka's own names of its error codes begin with an underscore."""
NAMED_TUPLES = {"_asdict", "_replace"}
OWN = {("client_stub/compat/confluent.py", "producer._forget_events")}
"""(file, read) of a class's own module."""
OWN_WRITES = {
    ("client_stub/async_producer.py", "future.delivery"),
    ("client_stub/aio/loop_queue.py", "waiter.since"),
}
"""(file, write) of an object that was made there and nobody else has yet, or of a record of the file's own."""


def reads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of each underscore name that is read of anything but ``self``, ``cls``, or super()."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls", "super()", *PUBLIC_THERE) and node.attr not in NAMED_TUPLES:
                yield node.lineno, f"{owner}.{node.attr}"


def writes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of each attribute that is set, changed or deleted of anything but ``self`` and ``cls``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            text = ast.unparse(node)
            if ast.unparse(node.value) not in ("self", "cls"):
                yield node.lineno, text


def faults(path: Path, text: str) -> list[str]:
    return [
        f"{path}:{line} reads {what}" for line, what in reads(ast.parse(text)) if (str(path), what) not in OWN
    ]


def foreign_writes(path: Path, text: str) -> list[str]:
    return [
        f"{path}:{line} sets {what}"
        for line, what in writes(ast.parse(text))
        if (str(path), what) not in OWN_WRITES
    ]


def test_no_front_twin_sink_or_engine_reads_another_ones_underscore_names() -> None:
    found = [
        fault
        for module, path in sources()
        if any(within(module, room) for room in ROOMS)
        for fault in faults(path.relative_to(ROOT), path.read_text())
    ]
    assert not found, f"give the owner a name without an underscore, or a method that does it: {found}"


def test_no_front_or_twin_sets_another_objects_attributes() -> None:
    found = [
        fault
        for module, path in sources()
        if any(within(module, room) for room in FRONTS)
        for fault in foreign_writes(path.relative_to(ROOT), path.read_text())
    ]
    assert not found, f"give the owner a method that does it, or an argument: {found}"


@pytest.mark.parametrize(
    "text",
    [
        "def f(self): return self._producer._outbox",
        "def f(producer): producer._close(0)",
        "async def f(self):\n    line.wait(self._engine._io)",
        "x = delivery._submission",
    ],
)
def test_the_check_finds_what_it_is_for(text: str) -> None:
    assert len(faults(Path("client_stub/x.py"), text)) == 1


def test_own_private_names_may_be_read() -> None:
    text = "class A:\n    def f(self, other): return self._a + KafkaError._FAIL\n\n    def g(cls): cls._a\n"
    assert not faults(Path("client_stub/x.py"), text)


@pytest.mark.parametrize(
    "text",
    [
        "def f(self): self._engine.outbox.max_block_ms = 0",
        "def f(outbox): outbox.count += 1",
        "def f(outbox):\n    a, outbox.limit = 1, 2",
        "def f(outbox):\n    for outbox.at in (1, 2): pass",
        "def f(outbox):\n    with x as outbox.open: pass",
        "def f(outbox): del outbox.waker",
    ],
)
def test_each_way_to_set_an_attribute_is_found(text: str) -> None:
    assert len(foreign_writes(Path("client_stub/x.py"), text)) == 1


def test_own_attributes_and_entries_may_be_set() -> None:
    text = "class A:\n    def f(self, other):\n        self.a = 1\n        other.table['x'] = 2\n        x = other.b\n"
    assert not foreign_writes(Path("client_stub/x.py"), text)
