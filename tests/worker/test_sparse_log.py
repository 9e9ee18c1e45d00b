"""The same complaint about the same peer is a line a minute; many peers cannot make many lines either."""

from __future__ import annotations

import logging

import pytest

from sidecar.common.clock import ManualClock
from sidecar.common.sparse_log import INTERVAL_MS, KEYS_MAX, SparseLog


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sparse(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> SparseLog:
    caplog.set_level(logging.WARNING)
    return SparseLog(logging.getLogger("sparse"), clock.now_ms)


def test_what_is_missing_is_counted_in_the_next_line(
    sparse: SparseLog, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        sparse.warning("a", "%s is bad", "a")
    clock.advance(INTERVAL_MS - 1)
    sparse.warning("a", "%s is bad", "a")
    clock.advance(1)
    sparse.warning("a", "%s is bad", "a")
    clock.advance(INTERVAL_MS)
    sparse.warning("a", "%s is bad", "a")
    assert [record.getMessage() for record in caplog.records] == [
        "a is bad",
        "a is bad (and 5 more since the last such line)",
        "a is bad",
    ]


def test_so_many_have_lines_of_their_own_and_the_others_share_one(
    sparse: SparseLog, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1_000):
        sparse.warning(number, "%d is bad", number)
    assert len(caplog.records) == KEYS_MAX + 1
    clock.advance(INTERVAL_MS)
    sparse.warning(2_000, "%d is bad", 2_000)
    assert caplog.records[-1].getMessage() == "2000 is bad"
    assert len(sparse._said) == 1, "who is quiet is forgotten"
