"""The process's limit of open files: each client is a connection, and at its worker a watched process."""

from __future__ import annotations

import resource


def raise_limit() -> None:
    """To what the administrator allows; many systems begin with 1,024 for all."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
