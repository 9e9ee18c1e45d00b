"""Why a batch is still here: what a broker said is told apart from what happened to its answer."""

from __future__ import annotations

import pytest

from client_stub.contract.wire import LocalCode
from sidecar.common.condition import WaitCause
from sidecar.common.errors import Code
from sidecar.producer.sender import THROTTLE_SHOWN_MS

from .harness import Core, answer

TIMED_OUT = "no answer within request.timeout.ms=30000"


def why(core: Core, link_error: str | None = None) -> tuple[WaitCause, str]:
    (batch,) = core.accumulator.incomplete.oldest_first()
    return core.sender.why_waits(batch, 1, link_error, core.now_ms)


def test_a_broker_refuses_by_its_own_word_alone() -> None:
    core = Core()
    request = core.send("a")
    assert why(core) == (WaitCause.UNANSWERED, "")
    core.respond(request, answer(0, Code.NOT_ENOUGH_REPLICAS))
    assert why(core) == (WaitCause.REFUSED, "NOT_ENOUGH_REPLICAS")
    assert why(core, "It is gone.") == (WaitCause.BROKER, "It is gone.")


def test_a_timer_of_our_own_is_no_word_of_the_broker() -> None:
    core = Core()
    request = core.send("a")
    core.sender.on_disconnect(request.node_id, core.now_ms, reason=TIMED_OUT)
    cause, error = why(core)
    assert cause is WaitCause.LOST
    assert error == f"The connection to broker 1 ended before it answered: {TIMED_OUT}"


def test_requests_to_a_throttling_broker_wait_for_the_quota() -> None:
    """It reads nothing more while it throttles, and the requests behind time out here."""
    core = Core()
    first, second = core.send("a"), core.send("b")
    core.respond(first, answer(0), throttle_ms=42_000)
    assert why(core) == (WaitCause.THROTTLED, "")
    core.poll(31_000)
    core.sender.on_disconnect(second.node_id, core.now_ms, reason=TIMED_OUT)
    assert why(core)[0] is WaitCause.THROTTLED
    core.poll(42_000 - 31_000)
    assert core.sender.throttle_of(1, core.now_ms) == 0
    short = Core()
    short.respond(short.send("a"), answer(0), throttle_ms=10)
    assert short.sender.throttle_of(1, short.now_ms + THROTTLE_SHOWN_MS - 1) == 10
    assert short.sender.throttle_of(1, short.now_ms + THROTTLE_SHOWN_MS) == 0


@pytest.mark.parametrize(
    ("code", "cause"), [(Code.NOT_ENOUGH_REPLICAS, "NOT_ENOUGH_REPLICAS"), (Code.NETWORK_EXCEPTION, "lost")]
)
def test_a_batch_whose_time_is_over_says_for_what_it_waited(code: int, cause: str) -> None:
    core = Core()
    request = core.send("a")
    core.respond(request, answer(0, code))
    core.poll(request.batches[0].lifetime_ms + 1)
    (batch,) = core.decided
    assert (batch.code, batch.cause) == (LocalCode.EXPIRED, cause)
    assert ("sent again after NOT_ENOUGH_REPLICAS" in batch.text) is (code == Code.NOT_ENOUGH_REPLICAS)


def test_a_batch_that_a_quota_kept_back_says_so() -> None:
    """It said that it waits for its leader to take it."""
    core = Core(delivery_timeout_ms=1_500)
    core.respond(core.send("a"), answer(0), throttle_ms=60_000)
    core.append("b")
    core.poll(1_600)
    batch = core.decided[-1]
    assert (batch.code, batch.cause) == (LocalCode.EXPIRED, "throttled")
    assert batch.text.endswith("the batch was not sent, as broker 1 throttles (a quota).")
