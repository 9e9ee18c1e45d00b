"""Sentences of status about stages that nobody includes, and about their share of the pool. Sans-IO."""

from __future__ import annotations

from typing import Final

from sidecar.common.wording import counted
from sidecar.controller.status.note import Note, Runbook
from sidecar.telemetry.page import duration

WAITS_S: Final = 900.0
"""A sealed stage that is older is shown: its program has most likely ended. The alert has the same number."""
FULL_SHARE: Final = 0.9


def stage_notices(*, sealed: int, oldest_ms: int, staged_bytes: int, staged_bytes_max: int) -> list[Note]:
    """``oldest_ms``: the age of the sealed stage that waits longest."""
    found: list[str] = []
    if oldest_ms >= WAITS_S * 1e3:
        found.append(
            f"{counted(sealed, 'sealed stage')}, the oldest for {duration(oldest_ms / 1e3)}: nobody has included them "
            "in a transaction. `kafka-sidecar txn list` shows whose they are, and `txn drop` drops them."
        )
    if staged_bytes_max and staged_bytes >= FULL_SHARE * staged_bytes_max:
        found.append(
            f"Stages hold {staged_bytes / staged_bytes_max:.0%} of their share of the pool (pool.staged_share): when "
            "it is full, records of stages fail. Include or drop some (`kafka-sidecar txn list`)."
        )
    return [Note(each, Runbook.STAGES_WAIT) for each in found]
