"""Error text for a stub whose compiled part is missing or cannot be loaded.

The import of the stub calls it.
"""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

COMPILED: Final = "client_stub.native._native"


def why_not(error: ImportError) -> str:
    """Why the compiled part is not there. Python's own message is quoted only if the file exists: for a missing module
    it would guess a circular import.
    """
    found = find_spec(COMPILED)
    where = f"{platform.python_implementation()} {platform.python_version()} on {sys.platform} {platform.machine()}"
    again = "install kafka-sidecar again with this Python, from a wheel or with a C compiler and the Python headers."
    mine = find_spec(__name__)
    archive = getattr(mine and mine.loader, "archive", None)
    if archive is not None:
        return (
            f"client_stub is in the archive {archive}, and compiled parts cannot be loaded from one: install "
            "kafka-sidecar in the environment. A job of Spark brings one by --archives, and no wheel by --py-files."
        )
    root = Path(__file__).parents[2]
    if found is None and (root / "setup.py").exists():
        return (
            f"client_stub is imported from its source folder {root}, which has no compiled part for {where}: start in "
            f"another folder, or run pip install -e {root}"
        )
    if found is None:
        return f"client_stub has no compiled part for {where}: {again}"
    return f"The compiled part of client_stub, {found.origin}, cannot be loaded by {where} ({error}): {again}"
