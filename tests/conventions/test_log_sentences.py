"""Goal: each line of the log is a sentence: it begins with a capital letter and ends as one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = {"bench", "chaos", "cli", "demo", "doctor", "testing"}
ROOMS = (
    "client_stub",
    *sorted(f"sidecar/{path.name}" for path in (ROOT / "sidecar").iterdir() if path.is_dir()),
)
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
PASSED_ON = {"sidecar/common/sparse_log.py", "client_stub/log.py"}
"""They log the texts of others."""
SENTENCE = re.compile(r"%s|[A-Z%].*(?:[.!]|%s)|pool\.path = .*\.", re.DOTALL)
"""A value at the end may bring the end of the sentence; the name of a setting has no capital."""


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each message; a value in an f-string is ``%s``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
        ):
            continue
        logger = ast.unparse(node.func.value)
        if "log" not in logger:
            continue
        # A SparseLog's message stands behind its key, and log()'s behind its level.
        place = ("_log" in logger) + (node.func.attr == "log")
        if len(node.args) <= place:
            continue
        message = node.args[place]
        if isinstance(message, ast.Constant) and isinstance(message.value, str):
            yield node.lineno, message.value
        elif isinstance(message, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "%s" for part in message.values]
            yield node.lineno, "".join(map(str, parts))
        else:
            yield node.lineno, f"not a text where it is logged: {ast.unparse(message)}"


@pytest.mark.parametrize("room", [room for room in ROOMS if Path(room).name not in TOOLS])
def test_lines_of_the_log_are_sentences(room: str) -> None:
    fragments = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / room).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in PASSED_ON
        for line, text in messages(path)
        if not SENTENCE.fullmatch(text)
    ]
    assert not fragments, "\n".join(fragments)


def test_a_fragment_is_found(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text(
        'log.info("worker %d ends", 1)\nself._sparse_log.warning("key", f"Ends {why}")\nlog.info("Ends.")\n'
        'log.debug("ends")\nlog.log(10, "ends")\nlog.info(TEXT)\nlog.info("Ends " + "so.")\n'
    )
    assert [bool(SENTENCE.fullmatch(text)) for _, text in messages(code)] == [False, True, True, *[False] * 4]
