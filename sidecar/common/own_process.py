"""Properties that each daemon process sets for itself: its limit of open files, its title in ps and top; and its
version.
"""

from __future__ import annotations

import ctypes
import os
import resource
from importlib.metadata import PackageNotFoundError, version
from typing import Final

_PR_SET_DUMPABLE: Final = 4

KILL_POINTS: Final = "KAFKA_SIDECAR_KILL_POINTS"
"""Environment variable that arms a worker for tests: the folder with the orders of its kill points."""


def raise_limit() -> None:
    """Raise the limit of open files to the hard limit: each client is a connection and, at its worker, a watched
    process.

    Many systems start with 1,024 for all.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def own_version() -> str:
    """Version of the installation that this process runs from."""
    try:
        return version("kafka-sidecar")
    except PackageNotFoundError:
        return "0+unknown"


def set_title(role: str) -> None:
    """Set the process title. Does nothing if setproctitle is not installed."""
    try:
        import setproctitle
    except ImportError:
        return
    setproctitle.setproctitle(f"kafka-sidecar: {role}")


def hide_memory() -> None:
    """Disable core dumps of this process, and reads of its memory by other processes of its user (ptrace,
    /proc/PID/mem).

    For processes with secrets. Most files in its /proc/PID then belong to root. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
