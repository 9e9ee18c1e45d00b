"""How every Python process of ours is started: from the installation, whatever the current folder holds.

``python -m`` puts the current folder before everything else. A daemon that was started in a folder would run a
``json.py`` from there, as root if it runs as root. In a clone of this project it would find the unbuilt sources.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

_SAFE_PATH: Final = "PYTHONSAFEPATH"


def python_command(module: str, *words: str) -> list[str]:
    """The words that start ``module`` of this installation in a process of its own."""
    return [sys.executable, "-P", "-m", module, *words]


def safe_environment() -> Mapping[str, str]:
    """Our environment for a child that starts Pythons itself (Spark's workers): they are as careful."""
    return {**os.environ, _SAFE_PATH: "1"}
