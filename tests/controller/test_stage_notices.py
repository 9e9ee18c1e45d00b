"""Goal: status names stages that nobody includes, and a share that is nearly full, each at its bound and not before."""

from __future__ import annotations

import pytest

from sidecar.controller.status.note import Runbook
from sidecar.controller.status.stage_notices import stage_notices


def notices(**given: int) -> list[str]:
    return list(
        stage_notices(**{"sealed": 0, "oldest_ms": 0, "staged_bytes": 0, "staged_bytes_max": 100, **given})
    )


def test_no_stage_is_no_sentence() -> None:
    assert notices() == []
    assert notices(staged_bytes_max=0) == [], "a worker that has not counted yet"


@pytest.mark.parametrize(("oldest_ms", "count"), [(899_999, 0), (900_000, 1)])
def test_old_sealed_stage_is_named(oldest_ms: int, count: int) -> None:
    found = notices(sealed=2, oldest_ms=oldest_ms)
    assert len(found) == count
    assert all("2 sealed stages, the oldest for 15 min" in each and "txn drop" in each for each in found)


@pytest.mark.parametrize(("staged_bytes", "count"), [(89, 0), (90, 1), (100, 1)])
def test_nearly_full_share_is_named(staged_bytes: int, count: int) -> None:
    found = notices(staged_bytes=staged_bytes)
    assert len(found) == count
    assert all(f"Stages hold {staged_bytes}% of their share" in each for each in found)


def test_they_have_the_alerts_runbook() -> None:
    (note,) = stage_notices(sealed=1, oldest_ms=10**6, staged_bytes=0, staged_bytes_max=1)
    assert note.runbook is Runbook.STAGES_WAIT
