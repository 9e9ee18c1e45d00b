"""Lines for the log of an executor, or of the driver: what a Python worker of Spark writes on stderr."""

from __future__ import annotations

import contextlib
import sys


def one_line(error: BaseException) -> str:
    """What the error says, without line breaks: Spark shows the last line of an error only."""
    return " ".join(str(error).split())


def tell(text: str) -> None:
    """On stderr, which is in the executor's log: a Python worker of Spark shows nothing that is logged as
    information.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):  # of a program that has closed its stderr
        sys.stderr.write(f"kafka_sidecar: {text}\n")
        sys.stderr.flush()
