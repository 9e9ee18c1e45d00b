"""Goal: nothing stands in the code that an older Python of those we promise takes otherwise.

Each row was met on a real interpreter. Debian 12 has Python 3.11.2, and a newer 3.11 does not show its faults.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.other_python import other_python

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sidecar", "client_stub", "pyspark_kafka_sidecar")


def taken_otherwise(source: str) -> list[str]:
    """The line and reason of each such place."""
    return [
        f"{node.lineno}: before Python 3.11.4 all that leaves an except* is wrapped in a group; "
        "take `except ExceptionGroup`"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.TryStar)
    ]


@pytest.mark.slow
def test_no_place_is_taken_otherwise_by_an_older_python() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): places
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if (places := taken_otherwise(path.read_text()))
    }
    assert not found


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("try:\n    f()\nexcept* ValueError as errors:\n    raise KeyError from None\n", 1),
        ("try:\n    f()\nexcept* ValueError:\n    raise\n", 1),
        # Without a raise of its own: what it calls may raise.
        ("def g():\n    try:\n        f()\n    except* (ValueError, OSError):\n        tell()\n", 1),
        ("try:\n    f()\nexcept ExceptionGroup as errors:\n    raise KeyError from None\n", 0),
    ],
)
def test_the_test_can_fail(source: str, count: int) -> None:
    assert len(taken_otherwise(source)) == count


def test_another_release_of_this_python_is_recognised(tmp_path: Path) -> None:
    assert other_python(Path(sys.executable)) is None, "the same"
    assert other_python(tmp_path / "python3.11") is None, "none"
    stranger = tmp_path / "python3"
    stranger.write_text('#!/bin/sh\necho "cpython-310-x86_64-linux-gnu 3.10.0 (main)"\n')
    stranger.chmod(0o755)
    assert other_python(stranger) is None, "compiled modules do not fit it"
