"""promtool, Prometheus' own checker (Debian: the package prometheus)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.tools import needs

PROMTOOL = shutil.which("promtool")
needs_promtool = needs("promtool")


def promtool(words: Sequence[str | Path], text: str = "") -> str:
    """Its output with these words; AssertionError when it finds a fault."""
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *map(str, words)], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
