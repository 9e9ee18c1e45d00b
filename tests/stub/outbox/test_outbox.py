"""Outbox: an open submission whose topic is held fills up, but its records share one time, and that must be true."""

from __future__ import annotations

import threading
import time

import pytest

from client_stub.contract.wire import LocalCode
from client_stub.engine.flush_wait import FlushWait
from client_stub.errors import SidecarError, error_for
from client_stub.outbox.failures import UNWATCHED_KEPT_MAX
from client_stub.outbox.outbox import STAY_OPEN_MS_MAX, Outbox

BEGAN_NS = 1_700_000_000 * 10**9


@pytest.mark.parametrize(
    ("step_ms", "is_sealed"),
    [
        (0, False),
        (STAY_OPEN_MS_MAX - 1, False),
        (STAY_OPEN_MS_MAX + 1, True),
        (1 - STAY_OPEN_MS_MAX, False),
        (-STAY_OPEN_MS_MAX - 1, True),
        (-3_600_000, True),
    ],
)
def test_a_held_submission_is_closed_once_its_time_is_wrong(
    monkeypatch: pytest.MonkeyPatch, step_ms: float, is_sealed: bool
) -> None:
    """By time passing, and by a wall clock that is set, either way."""
    clock_ns = BEGAN_NS
    monkeypatch.setattr(time, "time_ns", lambda: clock_ns)
    outbox = Outbox(max_block_ms=0, connect_timeout_ms=0, path="nowhere")
    outbox.attached_once = True
    stream = outbox.open_stream("held")
    outbox.roll(stream, 10)
    opened = stream.open
    assert opened is not None
    opened.append((None, b"value"), 10, None, None)
    clock_ns += int(step_ms * 1e6)
    sealed, _ = outbox.gather(lambda topic: False)
    assert list(sealed) == ([opened] if is_sealed else [])


def test_failures_that_nobody_asks_about_are_counted_beyond_their_bound() -> None:
    outbox = Outbox(max_block_ms=0, connect_timeout_ms=0, path="nowhere")
    outbox.attached_once = True
    outbox.buffer_bytes = 1 << 30
    stream = outbox.open_stream("t")
    calls = UNWATCHED_KEPT_MAX + 5
    for _ in range(calls):
        outbox.add_block(stream, b"xx", 2, 1)
    failed = list(outbox.pending)
    for submission in failed:
        submission.fail(error_for(LocalCode.EXPIRED))
    outbox.settle((), failed, is_news=False)
    assert len(outbox.failures._unwatched) == UNWATCHED_KEPT_MAX
    with pytest.raises(SidecarError, match=rf"{2 * calls} records of send_many\(\)"):
        outbox.failures.raise_unobserved()
    outbox.failures.raise_unobserved()
    assert (outbox.failures.newly_failed(), outbox.failures.newly_failed()) == (2 * calls, 0)


def test_an_acceptance_wakes_callers_that_wait_for_capacity_and_none_that_wait_for_an_outcome() -> None:
    outbox = Outbox(max_block_ms=0, connect_timeout_ms=0, path="/nowhere")
    lock = threading.Lock()
    lock.acquire()
    outbox.waiters._locks.append(lock)  # as a caller in result()
    outbox.settle((), (), is_news=False)
    assert lock.locked()
    outbox.waiters.notify()
    assert not lock.locked()

    lock.acquire()
    assert not outbox.waiters.wait_until(lambda: False, 0, for_capacity=True)
    outbox.waiters._locks.append(lock)
    outbox.closed_bytes = outbox.buffer_bytes
    outbox.settle((), (), is_news=False)
    assert lock.locked()
    outbox.closed_bytes = outbox.buffer_bytes // 2
    outbox.settle((), (), is_news=False)
    assert not lock.locked()


def test_a_flush_without_patience_counts_all_that_has_no_outcome() -> None:
    outbox = Outbox(max_block_ms=0, connect_timeout_ms=0, path="/nowhere")
    outbox.attached_once = True
    stream = outbox.open_stream("t")
    outbox.add(stream, (None, b"v"), 20, None, None)
    outbox.add_rows(stream, [(None, b"v")] * 2, 0, None)
    said = []
    for until in ("delivered", "accepted"):
        wait = FlushWait(outbox, until)
        assert not wait.is_over()
        said.append(str(wait.timeout_error(0)).partition(": ")[2].partition(",")[0])
    assert said == ["3 records have no outcome yet", "3 records are not accepted yet"]
