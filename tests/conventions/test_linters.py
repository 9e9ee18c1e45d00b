"""Goal: the linters are part of the tests, so that they cannot be forgotten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",))
"""The hooks before a commit run the same (.pre-commit-config.yaml)."""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_clean(command: tuple[str, ...]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
