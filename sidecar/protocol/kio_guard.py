"""Hides hypothesis from kio. Import this before the first import of kio in a daemon process.

kio registers strategies with hypothesis if that is installed, which costs 150 ms and 10 MB at each process start.
Daemon processes never use hypothesis. Tests do, so they do not call this.
"""

from __future__ import annotations

import sys


def hide_hypothesis() -> None:
    """Make ``import hypothesis`` fail in this process. Does nothing if it is already imported."""
    if "hypothesis" not in sys.modules:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]
