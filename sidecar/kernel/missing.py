"""Error text for a daemon whose compiled kernel is missing or cannot be loaded."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec


def why_not(error: ImportError) -> str:
    """Why the kernel is not there. Python's own message is quoted only if the file exists: for a missing module it
    would guess a circular import.
    """
    found = find_spec("sidecar.kernel._kernel")
    where = f"Python {sys.version_info.major}.{sys.version_info.minor} on {platform.machine()}"
    again = "Install a C compiler and the Python headers, then install kafka-sidecar again."
    if found is None:
        return f"The compiled kernel is missing: there was no wheel for {where}, and no C compiler. {again}"
    return f"The compiled kernel {found.origin} cannot be loaded by {where}: {error}. {again}"
