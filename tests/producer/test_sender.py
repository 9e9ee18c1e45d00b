"""Sender: rules S1–S3, S5, A6–A8; scenarios AC-07, SN-01, SN-05 to SN-07, SN-10."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client_stub.contract.wire import LocalCode, Persistence
from sidecar.common.errors import Code
from sidecar.common.model import second_of
from sidecar.producer.effects import CloseLink, Connect, Decided, InitProducerId, NeedMetadata, Split
from sidecar.producer.lanes import PLAIN_LANE

from .harness import PRODUCER_ID, TOPIC, Core, FakeLinks, answer, payloads_of, plain_core

# --- completion ---------------------------------------------------------------------------------------------


@pytest.mark.rule("A6")
def test_a_batch_is_decided_exactly_once() -> None:
    core = Core()
    request = core.send("a", "b")
    core.respond(request, answer(0, base_offset=40, append_time_ms=5), answer(0, Code.CORRUPT_MESSAGE))
    core.respond(request, answer(0, base_offset=99))
    core.sender.on_disconnect(1, core.now_ms)
    core.poll()
    core.poll()
    (batch,) = core.decided
    assert (batch.code, batch.base_offset, batch.append_time_ms) == (0, 40, 5)
    assert batch.persistence == Persistence.PERSISTED
    with pytest.raises(AssertionError, match="is DECIDED, which has no DECIDE"):
        batch.decide(base_offset=1)
    assert batch.base_offset == 40
    assert core.sender.counts.late_answers == 1


@pytest.mark.rule("A6")
@pytest.mark.parametrize("code", [Code.INVALID_RECORD, Code.INVALID_TIMESTAMP])
def test_records_the_broker_rejects_fail_alone_and_the_rest_is_sent_again(code: Code) -> None:
    """Record errors for 0, 2 and 3 of 5; 3 without a text of its own."""
    core = Core()
    request = core.send(*"abcde")
    follower = core.send("f")
    errors = ((0, "no key"), (2, "no key"), (3, None))
    core.respond(request, answer(0, code, record_errors=errors, error_message="compacted topic"))
    core.respond(follower, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    (rest,) = core.poll(400)
    assert {(batch.text, *payloads_of([batch])) for batch in core.decided} == {
        ("no key", "a", "c"),
        ("compacted topic", "d"),
    }
    assert {batch.persistence for batch in core.decided} == {Persistence.NOT_PERSISTED}
    assert core.sender.counts.record_errors == 3
    (split,) = core.of(Split)
    assert split.parent is request.batches[0]
    assert payloads_of(rest.batches) == ["b", "e"]
    assert (rest.batches[0].epoch, rest.batches[0].base_sequence) == (0, 0), (
        "a refusal of what it holds takes no epoch"
    )
    core.acknowledge(rest)
    (last,) = core.poll()
    assert payloads_of(last.batches) == ["f"], "order is kept"
    core.acknowledge(last)
    core.poll()
    assert core.sender.is_idle


@pytest.mark.rule("A6")
def test_a_single_invalid_record_fails_with_the_brokers_text() -> None:
    core = Core()
    core.respond(core.send("a"), answer(0, Code.INVALID_RECORD, record_errors=((0, "no key"),)))
    core.poll()
    (batch,) = core.decided
    assert (batch.code, batch.text) == (Code.INVALID_RECORD, "no key")
    assert core.of(Split) == []
    assert (core.sender.counts.record_errors, core.sender.counts.batch_errors) == (1, 1)


@pytest.mark.rule("A6")
def test_one_request_with_two_outcomes() -> None:
    """SN-05: p0 REQUEST_TIMED_OUT, p1 fine at 111: p1 is acked at once, p0 retried alone."""
    core = Core(leaders=(1, 1))
    core.append("a", partition=0)
    core.append("b", partition=1)
    (request,) = core.poll()
    core.respond(request, answer(0, Code.REQUEST_TIMED_OUT), answer(1, base_offset=111))
    core.poll()
    assert [(batch.partition, batch.base_offset) for batch in core.decided] == [(1, 111)]
    (request,) = core.poll(200)
    assert payloads_of(request.batches) == ["a"]


def test_a_partition_left_out_of_an_answer_is_in_doubt_and_sent_again() -> None:
    core = Core(leaders=(1, 1))
    core.append("a", partition=0)
    core.append("b", partition=1)
    (request,) = core.poll()
    core.respond(request, answer(1))
    (request,) = core.poll(200)
    assert payloads_of(request.batches) == ["a"]
    assert request.batches[0].in_doubt


# --- time ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("A8")
class TestDeliveryTimeout:
    """SN-06: 1500 ms counted from append, wherever the batch is; one completion."""

    def expire(self, core: Core) -> tuple[int, int, str]:
        core.clock.advance(1499 - (core.now_ms - 10_000))
        core.poll()
        assert core.decided == [], "not before its time"
        core.poll(1)
        (batch,) = core.decided
        assert "1500 ms" in batch.text
        return batch.code, batch.persistence, batch.text

    def test_never_sent(self) -> None:
        core = Core(delivery_timeout_ms=1500)
        core.links.down.add(1)
        core.append("a")
        code, persistence, text = self.expire(core)
        assert (code, persistence) == (LocalCode.EXPIRED, Persistence.NOT_PERSISTED)
        assert "not sent" in text
        core.links.down.clear()
        assert core.poll() == []

    def test_the_brokers_cause_is_named(self) -> None:
        """A broker that cannot be reached by TLS, say; a connection that was made since forgets the cause."""
        for is_found in (False, True):
            core = Core(delivery_timeout_ms=1500)
            core.links.down.add(1)
            core.append("a")
            core.sender.on_disconnect(second_of(1), core.now_ms, reason="Its certificate has expired.")
            if is_found:
                core.sender.lost_links.found(1)
            assert self.expire(core)[2].endswith("Its certificate has expired.") is not is_found

    def test_without_a_producer_id_the_cause_is_named(self) -> None:
        why = "Broker 1 does not offer InitProducerId."
        for comes in (False, True):
            core = Core(producer_id=False, delivery_timeout_ms=1500)
            core.links.down.add(1)
            core.append("a")
            core.poll()
            core.sender.on_producer_id_error(Code.NETWORK_EXCEPTION, core.now_ms, why)
            if comes:
                core.sender.on_producer_id(7, 0, core.now_ms)
            text = self.expire(core)[2]
            assert text.endswith(f"the batch was not sent, waiting for a producer id. {why}") is not comes

    def test_in_flight_and_unanswered(self) -> None:
        """SN-07: told apart as possibly persisted."""
        core = Core(delivery_timeout_ms=1500)
        request = core.send(*range(10))
        code, persistence, text = self.expire(core)
        assert (code, persistence) == (LocalCode.EXPIRED, Persistence.POSSIBLY_PERSISTED)
        assert "sent to broker 1 and not answered" in text
        core.acknowledge(request)
        core.poll()
        assert len(core.decided) == 1, "the late success changes nothing"

    def test_in_backoff(self) -> None:
        core = Core(delivery_timeout_ms=1500, retry_backoff_ms=10_000, retry_backoff_max_ms=10_000)
        core.respond(core.send("a"), answer(0, Code.NOT_ENOUGH_REPLICAS))
        code, persistence, text = self.expire(core)
        assert (code, persistence) == (LocalCode.EXPIRED, Persistence.NOT_PERSISTED)
        assert "NOT_ENOUGH_REPLICAS" in text
        assert core.poll(20_000) == []

    def test_several_partitions(self) -> None:
        core = Core(delivery_timeout_ms=1500, leaders=(1, 2))
        core.send("a", partition=0)
        core.send("b", partition=1)
        core.poll(1500)
        assert payloads_of(core.decided) == ["a", "b"]

    def test_an_error_after_the_deadline_is_not_retried(self) -> None:
        core = Core(delivery_timeout_ms=1500)
        request = core.send("a")
        core.clock.advance(2000)
        core.respond(request, answer(0, Code.NOT_LEADER_OR_FOLLOWER))
        assert core.poll() == []
        assert core.poll(10_000) == []
        assert [batch.code for batch in core.decided] == [LocalCode.EXPIRED]


@pytest.mark.rule("A8")
def test_the_wakeup_is_the_oldest_batchs_deadline_when_nothing_else_is_due() -> None:
    core = Core(delivery_timeout_ms=1500)
    core.links.down.add(1)
    core.append("a")
    core.poll()
    assert core.sender.next_wakeup_ms == core.now_ms + 1500


@pytest.mark.rule("S5")
def test_a_request_that_is_not_answered_in_time_closes_the_link_and_is_sent_again() -> None:
    core = Core(request_timeout_ms=3000, leaders=(1, 2))
    request = core.send("a")
    core.poll()
    assert core.sender.next_wakeup_ms == core.now_ms + 3000
    assert core.poll(3000) == []
    (close,) = core.of(CloseLink)
    assert close.node_id == 1
    assert "request.timeout.ms=3000" in close.reason
    (again,) = core.poll(200)
    assert again.batches == request.batches
    assert again.batches[0].base_sequence == 0
    core.acknowledge(request)
    core.poll()
    assert core.decided == [], "an answer of the closed link counts for nothing"
    core.acknowledge(again)
    core.poll()
    assert len(core.decided) == 1


@pytest.mark.rule("S5")
def test_each_connection_has_a_deadline_of_its_own() -> None:
    """The second broker's request is looked at in time, although the first one's timed out before it."""
    core = Core(leaders=(1, 2), request_timeout_ms=30_000.0)
    core.send("a", partition=0)
    core.clock.advance(10_000)
    core.send("b", partition=1)
    core.poll(20_000)
    assert [each.node_id for each in core.of(CloseLink)] == [1]
    core.poll()
    assert core.sender.next_wakeup_ms <= core.now_ms + 10_000
    core.poll(10_000)
    assert [each.node_id for each in core.of(CloseLink)] == [2]


@pytest.mark.rule("S5")
def test_a_throttle_mutes_that_broker_only() -> None:
    core = Core(leaders=(1, 2))
    core.respond(core.send("a"), answer(0), throttle_ms=400)
    core.append("b", partition=0)
    core.append("c", partition=1)
    (request,) = core.poll()
    assert request.node_id == 2
    assert core.sender.next_wakeup_ms <= core.now_ms + 400
    assert core.poll(399) == []
    assert payloads_of(core.poll(1)[0].batches) == ["b"]
    assert core.sender.counts.throttle_ms == 400


@pytest.mark.rule("S5")
def test_acks_zero_is_done_when_the_bytes_are_taken() -> None:
    """SN-10: offset −1, no wait for an answer; nothing is known about the log."""
    core = plain_core(acks=0)
    request = core.send("a")
    assert request.acks == 0
    core.poll()
    (batch,) = core.decided
    assert (batch.code, batch.base_offset, batch.persistence) == (0, -1, Persistence.POSSIBLY_PERSISTED)
    assert core.sender.in_flight_count == 0


@pytest.mark.rule("S5")
@pytest.mark.parametrize(("acks", "idempotent", "lane", "asked"), [(-1, True, 0, -1), (1, False, 1, 1)])
def test_acks_of_the_request(acks: int, idempotent: bool, lane: int, asked: int) -> None:
    core = Core(acks=acks, enable_idempotence=idempotent, lane=lane)
    assert core.send("a").acks == asked


# --- links --------------------------------------------------------------------------------------------------


def test_connect_is_asked_for_only_where_something_is_ready() -> None:
    core = Core(leaders=(1, 2))
    core.links.down |= {1, 2}
    core.append("a", partition=1)
    core.poll()
    assert core.of(Connect) == [Connect(2)]


@pytest.mark.rule("M7")
def test_a_connection_lost_after_acks_0_makes_metadata_stale() -> None:
    """A broker that no longer leads a partition refuses acks=0 only by closing the connection."""
    core = plain_core(acks=0)
    core.send("a")
    core.poll()
    core.sender.on_disconnect(1, core.now_ms, reason="closed by it")
    core.poll()
    assert core.of(NeedMetadata) == [NeedMetadata(frozenset({TOPIC}))]
    core.sender.on_disconnect(1, core.now_ms, reason="connection refused")
    core.poll()
    assert core.of(NeedMetadata) == [], "nothing was sent by this connection"
    core.send("b")
    core.poll()
    core.sender.on_disconnect(1, core.now_ms)
    core.poll()
    assert core.of(NeedMetadata) == [], "it was closed here, because it was idle"


def test_a_connection_lost_after_acks_0_wants_no_metadata_of_forgotten_topics() -> None:
    core = plain_core(acks=0)
    core.send("a")
    core.poll()
    core.accumulator.forget_topic(TOPIC, core.lane)
    core.sender.on_disconnect(1, core.now_ms, reason="cut")
    core.poll()
    assert core.of(NeedMetadata) == []
    assert not core.accumulator.unanswered_topics


@pytest.mark.rule("M7")
def test_a_broker_that_cannot_be_reached_makes_metadata_stale() -> None:
    """Nothing is in flight on it, but what waits for it may have another leader by now."""
    core = Core(leaders=(1, 2))
    core.links.down.add(2)
    core.append("a", partition=1)
    core.poll()
    core.sender.on_disconnect(1, core.now_ms)
    core.poll()
    assert core.of(NeedMetadata) == [], "nobody waits for broker 1"
    core.sender.on_disconnect(2, core.now_ms, reason="connection refused")
    core.poll()
    assert core.of(NeedMetadata) == [NeedMetadata(frozenset({TOPIC}))]
    core.poll()
    assert core.of(NeedMetadata) == []


@pytest.mark.rule("S5")
def test_two_lanes_share_a_broker_in_requests_of_their_own() -> None:
    core = Core(leaders=(1, 1))
    core.append("idempotent", partition=0)
    core.lane = PLAIN_LANE
    core.append("plain", partition=0)
    queue = core.accumulator.queue(TOPIC, PLAIN_LANE, 0)
    queue.settings = replace(queue.settings, acks=1)
    requests = core.poll()
    assert {(request.acks, *payloads_of(request.batches)) for request in requests} == {
        (-1, "idempotent"),
        (1, "plain"),
    }
    assert {batch.producer_id for request in requests for batch in request.batches} == {-1, PRODUCER_ID}


@pytest.mark.rule("S4")
def test_requests_prepared_but_not_sent_count_as_in_flight_and_are_at_most_two() -> None:
    core = Core(leaders=(1,) * 6, batch_size=100, max_request_size=150)
    for partition in range(6):
        core.append("a", partition=partition)
    effects = core.sender.poll(core.snapshot, core.links, core.now_ms)
    assert len(effects) == 2
    assert core.sender.in_flight_count == 2
    assert core.sender.poll(core.snapshot, core.links, core.now_ms) == []
    core.sender.on_request_sent(effects[0].request, core.now_ms)  # type: ignore[union-attr]
    assert len(core.sender.poll(core.snapshot, core.links, core.now_ms)) == 1


@pytest.mark.rule("S4")
def test_no_more_than_max_in_flight_requests_per_connection() -> None:
    core = Core(
        leaders=(1,) * 8, batch_size=100, max_request_size=150, max_in_flight_requests_per_connection=3
    )
    for partition in range(8):
        core.append("a", partition=partition)
    requests = [*core.poll(), *core.poll(), *core.poll()]
    assert len(requests) == 3
    core.acknowledge(requests[0])
    assert len(core.poll()) == 1


def test_no_room_for_a_request_leaves_the_batch_where_it_is() -> None:
    core = Core(max_request_size=70_000, request_buffers_bytes=140_000)
    taken = [core.buffers.take(70_000), core.buffers.take(70_000)]
    core.append("a")
    assert core.poll() == []
    assert taken[0] is not None
    core.buffers.give(taken[0])
    assert len(core.poll()) == 1


@pytest.mark.rule("S1")
def test_nothing_is_polled_for_while_a_producer_id_is_asked_for() -> None:
    core = Core(producer_id=False)
    core.append("a")
    assert core.poll() == [] and core.of(InitProducerId)
    assert core.sender.next_wakeup_ms == core.now_ms + core.config.delivery_timeout_ms


@pytest.mark.rule("S1")
def test_an_exception_in_a_poll_loses_nothing() -> None:
    core = Core(leaders=(1, 2))
    core.acknowledge(core.send("told", partition=0))
    core.append("sent", partition=0)
    core.append("kept", partition=1)

    class Broken(FakeLinks):
        def __contains__(self, node_id: object) -> bool:
            if node_id == 2:
                raise RuntimeError("a bug")
            return super().__contains__(node_id)

    links, core.links = core.links, Broken()
    with pytest.raises(RuntimeError, match="a bug"):
        core.poll()
    core.links = links
    requests = core.poll()
    assert payloads_of(core.decided) == ["told"]
    assert sorted(payloads_of(batch for request in requests for batch in request.batches)) == ["kept", "sent"]


@pytest.mark.rule("S1")
def test_an_exception_over_one_answer_leaves_no_other_batch_on_the_wire() -> None:
    core = Core(leaders=(1, 1), delivery_timeout_ms=1500)
    core.append("a", partition=0)
    core.append("b", partition=1)
    (request,) = core.poll()
    with pytest.raises(TypeError):
        core.respond(request, answer(0, 87, record_errors=7), answer(1))
    (again,) = core.poll(200)
    assert payloads_of(again.batches) == ["b"]
    core.acknowledge(again)
    core.poll(1500)
    assert sorted(payloads_of(core.decided)) == ["a", "b"], "the other is ended by its deadline"
    assert core.sender.is_idle
    assert len(core.poll() or [core.send("c", partition=0)]) == 1


def test_completed_batches_of_a_partition_come_in_order() -> None:
    core = Core()
    requests = [core.send(n) for n in range(5)]
    for request in requests:
        core.acknowledge(request)
    core.poll()
    assert core.of(Decided) == [Decided(tuple(core.decided))]
    assert payloads_of(core.decided) == [0, 1, 2, 3, 4]
