"""Goal: the stub takes threads, locks, polls, sockets and clocks from originals.py only, which no patch reaches.

The fakes may use locks of ``threading``: they have no thread of their own, so green locks are right for them.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPLACED = {
    "threading": {"Thread", "Timer", "Lock", "RLock", "Event", "Condition", "Semaphore", "get_ident"},
    "time": {"sleep", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "clock_gettime"},
    "select": {"select", "poll", "epoll"},
    "socket": {"socket", "create_connection", "getaddrinfo", "socketpair"},
    "_thread": {"start_new_thread", "allocate_lock", "get_ident"},
}
LOCKS = {"Lock", "RLock", "Event", "Condition", "get_ident"}


def replaced(source: str, allowed: frozenset[str] | set[str] = frozenset()) -> list[str]:
    """What ``source`` takes from modules that patches replace, outside of annotations."""
    tree = ast.parse(source)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in REPLACED:
            found += [
                f"{node.module}.{each.name}" for each in node.names if each.name in REPLACED[node.module]
            ]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += [f"{node.value.id}.{node.attr}"] * (node.attr in REPLACED.get(node.value.id, ()))
    types = {
        f"{part.value.id}.{part.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign | ast.arg)
        for part in ast.walk(node.annotation or ast.Pass())
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
    }
    return [each for each in found if each not in types and each.rpartition(".")[2] not in allowed]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "client_stub").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_nothing_is_taken_that_a_patch_replaces(path: Path) -> None:
    # Spark's workers are processes of Spark's, which patches nothing, and a pipeline is a program of its own.
    if path.name != "originals.py" and not {"spark", "pipeline"} & set(path.parts):
        assert replaced(path.read_text(), LOCKS if "fakes" in path.parts else set()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time\ntime.sleep(1)", ["time.sleep"]),
        ("from time import monotonic", ["time.monotonic"]),
        ("from threading import Thread as T", ["threading.Thread"]),
        ("import threading\nlock = threading.Lock()", ["threading.Lock"]),
        ("import select\nselect.poll().poll(select.POLLIN)", ["select.poll"]),
        ("import socket\nsocket.socket(socket.AF_UNIX)", ["socket.socket"]),
        ("import threading\nthread: threading.Thread | None = None", []),
        ("import time\ntime.time_ns()", []),
    ],
)
def test_uses_of_originals_are_counted(source: str, found: list[str]) -> None:
    assert replaced(source) == found
