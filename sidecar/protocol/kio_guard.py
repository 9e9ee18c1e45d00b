"""Import this before the first import of kio in a daemon process.

kio registers strategies with hypothesis when that is installed, which costs 150 ms and 10 MB at each start
of a process. Daemon processes never use hypothesis, so they say that it is not there. Tests do use it:
they do not call this.
"""

from __future__ import annotations

import sys


def hide_hypothesis() -> None:
    """Make ``import hypothesis`` fail in this process. Does nothing when it is imported already."""
    if "hypothesis" not in sys.modules:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]
