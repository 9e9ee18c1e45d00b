"""The same complaint about the same peer is a line a minute; many peers cannot make many lines either."""

from __future__ import annotations

import logging

import pytest

from sidecar.common.log_lines import LINES_AT_ONCE, LineLimit, log_to_stderr
from sidecar.common.sparse_log import INTERVAL_MS, KEYS_MAX, SparseLog
from tests.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sparse(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> SparseLog:
    caplog.set_level(logging.WARNING)
    return SparseLog(logging.getLogger("sparse"), clock.now_ms)


def test_dropped_lines_are_counted_in_the_next_line(
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


def line_record(
    created: float, text: str = "worker %d is odd", args: tuple[object, ...] = (1,)
) -> logging.LogRecord:
    record = logging.LogRecord("sidecar.x", logging.ERROR, __file__, 1, text, args, None)
    record.created = created
    return record


def test_no_place_of_the_code_fills_the_log() -> None:
    """A hundred lines, then one a second, however often it is reached; other places go on."""
    limit = LineLimit()
    written = sum(limit.filter(line_record(1_000.0 + number / 1_000)) for number in range(10_000))
    assert written == LINES_AT_ONCE + 9, "10 s, and the last second has not ended"
    assert limit.filter(line_record(1_010.0, "another text %d"))
    late = line_record(1_011.0)
    assert limit.filter(late)
    assert late.getMessage() == "worker 1 is odd (and 999 more such lines that were not written)"
    assert limit.filter(line_record(1_011.0))
    assert not limit.filter(line_record(900.0)), "a clock that was set back gives nothing"
    alone = line_record(2_000.0, "no place in it: 100 %", ())
    assert all(limit.filter(line_record(2_000.0, f"{number}", ())) for number in range(LINES_AT_ONCE))
    assert not limit.filter(alone), "texts that are built count by their place"
    alone.levelno = logging.DEBUG
    assert limit.filter(alone)


def test_the_log_of_a_process_has_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[logging.Handler] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **more: handlers.extend(more["handlers"]))
    log_to_stderr("info", "text", "worker 0")
    assert any(isinstance(each, LineLimit) for handler in handlers for each in handler.filters)
