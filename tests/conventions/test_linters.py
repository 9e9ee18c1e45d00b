"""Goal: the linters are part of the tests, so that they cannot be forgotten."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",))
"""The hooks before a commit run the same (.pre-commit-config.yaml)."""


TYPED_APART = ("pyspark", "matplotlib")
"""Packages with types of their own that `make quick` does not install: without them mypy judges no file that imports
them."""


def unjudged(shown: str) -> set[str]:
    """Files of mypy's errors that import one of the packages that are not installed."""
    absent = "|".join(each for each in TYPED_APART if find_spec(each) is None)
    return (
        set(re.findall(rf'^(.+?):\d+: error: .* module named "(?:{absent})\b', shown, re.MULTILINE))
        if absent
        else set()
    )


def errors(shown: str) -> list[str]:
    left_out = unjudged(shown)
    found = re.findall(r"^(.+?):\d+: error: .*", shown, re.MULTILINE)
    lines = [line for line in shown.splitlines() if ": error: " in line]
    return [line for file, line in zip(found, lines, strict=True) if file not in left_out]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_clean(command: tuple[str, ...]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if command == ("mypy",) and result.returncode == 1 and not errors(result.stdout):
        return
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
