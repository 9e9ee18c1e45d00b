"""Exit statuses of the command, as those of every command of kafka-sidecar."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 69
"""No daemon."""
TIMED_OUT: Final = 75
INTERRUPTED: Final = 130
"""Ctrl-C, as shells say it."""
