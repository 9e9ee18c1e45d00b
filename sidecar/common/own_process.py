"""Set by each process of ours for itself: its limit of open files, its title in ps and top; and its version."""

from __future__ import annotations

import ctypes
import os
import resource
from importlib.metadata import PackageNotFoundError, version
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def raise_limit() -> None:
    """To what the administrator allows: each client is a connection, and at its worker a watched process.

    Many systems begin with 1,024 for all.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def own_version() -> str:
    """Of the installation that this process runs from."""
    try:
        return version("kafka-sidecar")
    except PackageNotFoundError:
        return "0+unknown"


def set_title(role: str) -> None:
    """Nothing happens where setproctitle is not installed."""
    try:
        import setproctitle
    except ImportError:
        return
    setproctitle.setproctitle(f"kafka-sidecar: {role}")


def hide_memory() -> None:
    """No core dump of this process, and no other process of this user reads its memory (ptrace, /proc/PID/mem).

    For processes with secrets. Its /proc/PID is root's then, but for what everybody may read. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
