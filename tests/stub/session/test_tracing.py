"""Goal: a trace has each record's moments once and in order, whatever happens, and harms none of them."""

from __future__ import annotations

import logging
from collections import defaultdict
from functools import partial
from typing import Any

import pytest

from client_stub.contract.wire import Kind, LocalCode, Outcome, OutcomeKind, Shape, pack_outcome
from client_stub.errors import DaemonLost, DeliveryFailed, error_for
from client_stub.outbox import callback_log
from client_stub.session.session import Session
from client_stub.session.tracing import TracedSession, Tracer
from tests.stub.session.test_session import Harness, Run

Moments = list[tuple[str, dict[str, Any]]]
CANCELLED = error_for(LocalCode.CANCELLED, "closed")


def traced(moments: Moments) -> partial[TracedSession]:
    return partial(TracedSession, Tracer(lambda moment, info: moments.append((moment, info))))


def names(moments: Moments) -> list[str]:
    return [name for name, _ in moments]


def test_the_moments_of_a_submission() -> None:
    moments: Moments = []
    harness = Harness(traced(moments))
    assert names(moments) == ["connection.opening", "connection.attached"]
    assert moments[1][1] == {"worker_epoch": 1}
    moments.clear()
    harness.run.add()
    harness.drain()
    harness.run.tell([Kind.ACCEPTED, 1 << 20, [[1, 1]]])
    outcome = Outcome(OutcomeKind.DELIVERED, 2, Shape.RANGE, 1, 1, 0, 1, 3, 0, 1, 70, -1, b"", "")
    harness.run.tell([Kind.OUTCOMES, 1, 1], pack_outcome(outcome))
    topic, payload, _ = harness.run.made[0]
    of_it = {"submission": 1, "topic": topic, "count": 1}
    assert moments == [
        ("records.queued", of_it | {"bytes": len(payload)}),
        ("records.sent", of_it | {"bytes": len(payload), "stream": 1, "seq": 1, "attempt": 1}),
        ("records.accepted", of_it | {"seq": 1}),
        ("records.acknowledged", of_it | {"left": 0, "partition": 3, "base_offset": 70}),
    ]


def test_a_repeated_outcome_is_no_moment() -> None:
    moments: Moments = []
    harness = Harness(traced(moments))
    harness.run.add()
    harness.drain()
    outcome = Outcome(OutcomeKind.DELIVERED, 2, Shape.RANGE, 1, 1, 0, 1, 3, 0, 1, 70, -1, b"", "")
    for _ in range(2):
        harness.run.tell([Kind.OUTCOMES, 1, 1], pack_outcome(outcome))
    assert names(moments).count("records.acknowledged") == 1
    harness.run.tell([Kind.ACCEPTED, 1 << 20, [[1, 1]]])
    assert "records.accepted" not in names(moments), "it was over by then"


def test_a_failure_by_the_broker_and_one_of_this_process_have_their_error() -> None:
    moments: Moments = []
    harness = Harness(traced(moments))
    harness.run.add()
    harness.drain()
    outcome = Outcome(OutcomeKind.FAILED, 0, Shape.RANGE, 1, 1, 10, 1, 3, 0, 1, -1, -1, b"", "too large")
    harness.run.tell([Kind.OUTCOMES, 1, 1], pack_outcome(outcome))
    harness.run.add()
    harness.session.cancel(lambda sent: CANCELLED)
    failed = [info for name, info in moments if name == "records.failed"]
    assert [info["submission"] for info in failed] == [1, 2] and [info["left"] for info in failed] == [0, 0]
    assert isinstance(failed[0]["error"], DeliveryFailed) and "too large" in str(failed[0]["error"])
    assert failed[1]["error"] is CANCELLED
    assert names(moments)[-1] == "connection.closed"


def test_a_lost_connection_says_why_and_its_records_are_sent_again() -> None:
    moments: Moments = []
    harness = Harness(traced(moments))
    harness.run.add()
    harness.drain()
    moments.clear()
    harness.run.cut(forget=False)
    harness.run.pass_time(1.0)
    harness.drain()
    assert names(moments) == ["connection.lost", "connection.opening", "connection.attached", "records.sent"]
    assert moments[0][1] == {"reason": "the daemon closed it"}
    assert moments[3][1]["attempt"] == 2


def test_a_refusal_that_lasts_says_why() -> None:
    moments: Moments = []
    harness = Harness(traced(moments))
    harness.run.tell([Kind.REFUSED, "MALFORMED_FRAME", "it is no frame", None])
    assert moments[-1] == ("connection.refused", {"reason": "it is no frame"})


@pytest.mark.parametrize("forgets", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(40))
def test_each_record_has_its_moments_once_and_in_order(seed: int, forgets: float) -> None:
    moments: Moments = []
    run = Run(seed, make_session=traced(moments))
    for _ in range(120):
        run.step(forgets)
    run.finish()
    by_submission: defaultdict[int, list[str]] = defaultdict(list)
    for name, info in moments:
        if "submission" in info:
            by_submission[info["submission"]].append(name.removeprefix("records."))
    assert len(by_submission) == len(run.made)
    for number, (_, _, told) in enumerate(run.made, start=1):
        found = by_submission[number]
        assert found[0] == "queued" and found.count("queued") == 1
        (error,) = told
        assert found[-1] == ("acknowledged" if error is None else "failed")
        assert found.count("acknowledged") + found.count("failed") == 1 and found.count("accepted") <= 1
        if error is None:
            assert "sent" in found
        else:
            assert isinstance(error, DaemonLost)
    assert not run.session.streams._traced, "nothing of a decided record is kept"  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [ValueError("a bug"), SystemExit(3)])
def test_errors_of_a_trace_callable_are_logged_a_few_times_and_harm_no_record(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(moment: str, info: dict[str, Any]) -> None:
        raise error

    run = Run(7, make_session=partial(TracedSession, Tracer(fails)))
    with caplog.at_level(logging.ERROR):
        for _ in range(60):
            run.step(0.0)
        run.finish()
    run.check_all_is_delivered_in_order()
    logged = [each.getMessage() for each in caplog.records if "trace callback failed" in each.getMessage()]
    assert len(logged) == callback_log.LINES_MAX
    assert logged[0] == "A trace callback failed; the producer continues."


def test_a_session_without_a_trace_has_nothing_of_it() -> None:
    session = Harness().session
    assert type(session) is Session and not hasattr(session.streams, "tracer")
