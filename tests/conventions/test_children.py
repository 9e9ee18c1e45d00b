"""Every Python process of ours is started in one way, so that none imports from the current folder."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "sidecar" / "common" / "python_child.py"


def starts_python(path: Path) -> list[int]:
    """Lines with a list or tuple that begins with sys.executable, without ``-I`` behind it: isolated is as safe."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.List | ast.Tuple)
        for first in node.elts[:1]
        if isinstance(first, ast.Attribute) and first.attr == "executable"
        if not any(isinstance(second, ast.Constant) and second.value == "-I" for second in node.elts[1:2])
    ]


def test_python_is_started_by_one_function_alone() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for package in ("sidecar", "client_stub", "pyspark_kafka_sidecar")
        for path in (ROOT / package).rglob("*.py")
        if path != HOME and (lines := starts_python(path))
    }
    assert not found, "use python_command() of sidecar/common/python_child.py"
    assert starts_python(HOME), "the search itself finds what it is for"
