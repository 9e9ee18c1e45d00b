"""Goal: the example of docs/testing.md does what the page says, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.process
def test_the_example_runs(tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(blocks()[0])
    run = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr


def test_every_block_is_python_and_every_action_is_there() -> None:
    for block in blocks():
        compile(block, str(PAGE), "exec")
    from sidecar.tools.testing.fault_rules import Rule

    table = PAGE.read_text().split("| action |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)\(", table)) - {"rule"}
    assert named <= set(dir(Rule))
    assert {"delay", "hold", "cut", "refuse", "answer_with", "drop_answer", "cut_answer"} <= named
