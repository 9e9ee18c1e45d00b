"""Starts Python child processes from this installation, whatever the current folder holds.

``python -m`` puts the current folder first in the path. So a ``json.py`` there would be executed by a daemon started
in that folder, perhaps as root; and in a clone of this project the unbuilt sources would be imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

_SAFE_PATH: Final = "PYTHONSAFEPATH"


def python_command(module: str, *words: str) -> list[str]:
    """Command line that runs ``module`` of this installation in a new process."""
    return [sys.executable, "-P", "-m", module, *words]


def safe_environment() -> Mapping[str, str]:
    """Environment for a child that starts Python processes itself (Spark's workers), so that they are as careful."""
    return {**os.environ, _SAFE_PATH: "1"}
