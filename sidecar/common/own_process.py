"""Set by each process of ours for itself: its limit of open files, its title in ps and top; and its version."""

from __future__ import annotations

import resource
from importlib.metadata import PackageNotFoundError, version


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
