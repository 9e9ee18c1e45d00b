"""Health: the one judgement that /healthz, `status` and systemd's status line share."""

from __future__ import annotations

from typing import NamedTuple


class Health(NamedTuple):
    """``state``: running, degraded, starting, unreachable or draining; ``sentence`` why, empty when all is
    well."""

    state: str
    sentence: str

    @property
    def is_healthy(self) -> bool:
        return self.state == "running"

    @property
    def takes_records(self) -> bool:
        """One worker down costs throughput, not the service."""
        return self.state in {"running", "degraded"}
