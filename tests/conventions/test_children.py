"""Every Python process of ours is started in one way, so that none imports from the current folder."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "sidecar" / "common" / "python_child.py"
NAMED_ONLY = {
    "sidecar/tools/bench/spark_session.py": "the variable by which Spark starts its workers",
    "client_stub/pipeline/session.py": "the variable by which Spark starts its workers",
    "client_stub/pipeline/protobuf_schema.py": "the stub knows no room of the daemon; it starts protoc with -P",
    "client_stub/spark/worker_check.py": "the text of an error",
    "pyspark_kafka_sidecar/__init__.py": "the text of an error",
    "client_stub/spark/autostart.py": "the stub knows no room of the daemon; it starts one with -P, from /",
}


def names_python(source: str) -> list[int]:
    """Lines with sys.executable, but where ``-I`` stands behind it: an isolated process is as safe."""
    tree = ast.parse(source)
    isolated = {
        id(first)
        for node in ast.walk(tree)
        if isinstance(node, ast.List | ast.Tuple)
        for first, second in zip(node.elts, node.elts[1:], strict=False)
        if isinstance(second, ast.Constant) and second.value == "-I"
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr == "executable")
        or (isinstance(node, ast.ImportFrom) and any(each.name == "executable" for each in node.names))
        if id(node) not in isolated
    ]


@pytest.mark.slow
def test_python_is_started_by_one_function_alone() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for package in ("sidecar", "client_stub", "pyspark_kafka_sidecar")
        for path in (ROOT / package).rglob("*.py")
        if path != HOME and (lines := names_python(path.read_text()))
    }
    assert found.keys() == NAMED_ONLY.keys(), (
        f"use python_command() of sidecar/common/python_child.py, or say here why not: {found}"
    )
    assert names_python(HOME.read_text()), "the search itself finds what it is for"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("run([sys.executable, 'x'])", [1]),
        ("run([*before, sys.executable, 'x'])", [1]),
        ("os.execv(sys.executable, words)", [1]),
        ("from sys import executable", [1]),
        ("run([sys.executable, '-I', '-c', 'x'])", []),
    ],
)
def test_the_test_can_fail(source: str, lines: list[int]) -> None:
    assert names_python(source) == lines
