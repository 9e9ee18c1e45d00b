"""Errors of answers and links: retried, fatal, or followed by a look at the metadata (rules S3 and M7)."""

from __future__ import annotations

import pytest

from client_stub.contract.wire import LocalCode, Persistence
from sidecar.common.errors import ERROR_ROWS, Code, classify
from sidecar.producer.effects import InitProducerId, LeaderHints, NeedMetadata

from .harness import PRODUCER_ID, TOPIC, Core, answer, payloads_of, plain_core


@pytest.mark.rule("S3")
def test_retries_back_off_exponentially() -> None:
    core = Core()
    request = core.send("a")
    waits = []
    for _ in range(6):
        core.respond(request, answer(0, Code.NOT_ENOUGH_REPLICAS))
        core.poll()
        before = core.now_ms
        (request,) = core.poll(core.sender.next_wakeup_ms - before)
        waits.append(core.now_ms - before)
    assert waits == [100, 200, 400, 800, 1000, 1000]


@pytest.mark.rule("S3")
@pytest.mark.parametrize("code", [Code.INVALID_TOPIC_EXCEPTION, Code.TOPIC_AUTHORIZATION_FAILED, 87, 76])
def test_fatal_errors_fail_the_batch_at_once(code: int) -> None:
    core = Core()
    core.respond(core.send("a"), answer(0, code, error_message="because"))
    core.poll()
    (batch,) = core.decided
    assert (batch.code, batch.text, batch.persistence) == (code, "because", Persistence.NOT_PERSISTED)


@pytest.mark.rule("S3")
@pytest.mark.parametrize("code", [2, 3, 5, 6, 7, 13, 19, 20, 56, 74, 100])
def test_retriable_errors_are_retried(code: int) -> None:
    core = Core()
    core.respond(core.send("a"), answer(0, code))
    assert len(core.poll(200)) == 1
    assert (core.sender.counts.batch_errors, core.sender.counts.record_errors) == (1, 0)


KAFKAS_CODES = [*sorted(ERROR_ROWS.keys() - {0, *LocalCode}), 9_999]
"""All of them, and one that is newer than the table."""


@pytest.mark.rule("S3")
@pytest.mark.rule("S4")
@pytest.mark.parametrize("code", KAFKAS_CODES)
def test_whatever_refuses_the_first_in_flight_the_others_are_delivered_in_order(code: int) -> None:
    """The broker refuses the two behind it as out of order."""
    core = Core()
    requests = [core.send(payload) for payload in "abc"]
    for request, each in zip(requests, (code, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, 45), strict=True):
        core.respond(request, answer(0, each))
    log: list[str] = []
    for _ in range(20):
        for request in core.poll(1_000):
            log += payloads_of(request.batches)
            core.acknowledge(request)
    is_retried = classify(code).retriable or code in (
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.UNKNOWN_PRODUCER_ID,
    )
    is_there = code == Code.DUPLICATE_SEQUENCE_NUMBER
    assert log == (["a", "b", "c"] if is_retried else ["b", "c"])
    assert [batch.code for batch in core.decided] == [0 if is_retried or is_there else code, 0, 0]


@pytest.mark.rule("S3")
@pytest.mark.parametrize("code", KAFKAS_CODES)
def test_without_sequences_every_code_is_the_outcome_of_its_batch_alone(code: int) -> None:
    core = plain_core()
    first, second = core.send("a"), core.send("b")
    core.respond(first, answer(0, code))
    core.acknowledge(second)
    log: list[str] = []
    for _ in range(20):
        for request in core.poll(1_000):
            log += payloads_of(request.batches)
            core.acknowledge(request)
    is_retried = classify(code).retriable
    assert log == (["a"] if is_retried else [])
    assert {tuple(batch.records.payloads): batch.code for batch in core.decided} == {  # type: ignore[attr-defined]
        ("a",): 0 if is_retried else code,
        ("b",): 0,
    }


@pytest.mark.parametrize("code", KAFKAS_CODES)
def test_every_refusal_of_a_producer_id_ends_in_time(code: int) -> None:
    """Records wait through a passing refusal, and through one that is newer than the table; others fail them."""
    core = Core(producer_id=False)
    core.append("a")
    core.poll()
    core.sender.on_producer_id_error(code, core.now_ms)
    core.poll()
    waits = code in (Code.UNKNOWN_SERVER_ERROR, 9_999) or classify(code).retriable
    assert [batch.code for batch in core.decided] == ([] if waits else [code])
    core.append("b")
    core.poll(1000)
    assert core.of(InitProducerId) == [InitProducerId()], "it is asked for again"
    core.sender.on_producer_id(PRODUCER_ID, 0, core.now_ms)
    sent = payloads_of(core.poll()[0].batches)
    assert sent == (["a", "b"] if waits else ["b"])


@pytest.mark.rule("S3")
@pytest.mark.rule("M7")
@pytest.mark.parametrize(("code", "asked"), [(3, True), (5, True), (6, True), (7, False), (19, False)])
def test_errors_that_mean_stale_metadata_ask_for_an_update(code: int, asked: bool) -> None:
    core = Core()
    core.respond(core.send("a"), answer(0, code))
    core.poll()
    assert (NeedMetadata(frozenset({TOPIC})) in core.effects) is asked


def test_a_brokers_hint_at_the_new_leader_is_passed_on() -> None:
    """KIP-951."""
    core = Core()
    core.respond(core.send("a"), answer(0, 6, current_leader_id=2, current_leader_epoch=9))
    core.poll()
    (effect,) = core.of(LeaderHints)
    assert effect.hints == ((TOPIC, 0, 2, 9),)


@pytest.mark.rule("S3")
def test_a_lost_connection_is_retried_as_often_as_retries_allow() -> None:
    """SN-01, non-idempotent: retries 1 absorbs one cut; the second surfaces as NETWORK_EXCEPTION."""
    core = plain_core(retries=1)
    core.send("a")
    core.sender.on_disconnect(1, core.now_ms)
    core.poll()
    assert NeedMetadata(frozenset({TOPIC})) in core.effects
    core.poll(200)
    core.sender.on_disconnect(1, core.now_ms)
    assert core.poll(10_000) == []
    (batch,) = core.decided
    assert (batch.code, batch.persistence) == (Code.NETWORK_EXCEPTION, Persistence.POSSIBLY_PERSISTED)


def test_a_request_of_which_no_byte_left_is_as_if_never_drained() -> None:
    core = Core(retries=0)
    request = core.send("a")
    request.begun = False
    core.sender.on_disconnect(1, core.now_ms)
    (again,) = core.poll()
    batch = again.batches[0]
    assert (batch.attempts, batch.in_doubt, batch.base_sequence) == (0, False, 0)


def test_a_request_without_a_buffer_comes_back() -> None:
    core = Core()
    core.append("a", "b")
    (send,) = [e for e in core.sender.poll(core.snapshot, core.links, core.now_ms) if hasattr(e, "request")]
    core.sender.on_request_not_sent(send.request, core.now_ms)
    assert core.sender.in_flight_count == 0
    (again,) = core.poll()
    assert again.batches == send.request.batches


def test_a_batch_that_cannot_be_encoded_fails_and_the_others_go() -> None:
    core = Core(leaders=(1, 1))
    core.append("a", partition=0)
    core.append("b", partition=1)
    (request,) = core.poll()
    bad = request.batches[0]
    core.sender.on_batch_unsendable(request, bad, "count differs", core.now_ms)
    core.acknowledge(request)
    core.poll()
    outcomes = {batch.partition: (batch.code, batch.persistence) for batch in core.decided}
    assert outcomes == {
        0: (LocalCode.ENCODE_MISMATCH, Persistence.POSSIBLY_PERSISTED),
        1: (0, Persistence.PERSISTED),
    }
