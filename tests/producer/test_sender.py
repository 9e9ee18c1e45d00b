"""Sender: rules S1–S3, S5, A6–A8; scenarios AC-07, SN-01, SN-05 to SN-07, SN-10."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client_stub.wire import LocalCode, Persistence
from sidecar.common.errors import Code
from sidecar.common.model import second_of
from sidecar.producer.effects import CloseLink, Completed, Connect, LeaderHints, NeedMetadata, Split
from sidecar.producer.lanes import PLAIN_LANE

from .harness import PRODUCER_ID, TOPIC, Core, answer, payloads_of


def plain(**settings: object) -> Core:
    return Core(lane=PLAIN_LANE, **{"enable_idempotence": False, "acks": 1, **settings})  # type: ignore[arg-type]


# --- completion ---------------------------------------------------------------------------------------------


@pytest.mark.rule("A6")
def test_a_batch_is_done_exactly_once() -> None:
    core = Core()
    request = core.send("a", "b")
    core.respond(request, answer(0, base_offset=40, append_time_ms=5), answer(0, Code.CORRUPT_MESSAGE))
    core.respond(request, answer(0, base_offset=99))
    core.sender.on_disconnect(1, core.now_ms)
    core.poll()
    core.poll()
    (batch,) = core.completed
    assert (batch.code, batch.base_offset, batch.append_time_ms) == (0, 40, 5)
    assert batch.persistence == Persistence.PERSISTED
    with pytest.raises(AssertionError, match="is DONE, which has no FINISH"):
        batch.done(base_offset=1)
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
    assert {(batch.text, *payloads_of([batch])) for batch in core.completed} == {
        ("no key", "a", "c"),
        ("compacted topic", "d"),
    }
    assert {batch.persistence for batch in core.completed} == {Persistence.NOT_PERSISTED}
    assert core.sender.counts.record_errors == 3
    (split,) = core.of(Split)
    assert split.parent is request.batches[0]
    assert payloads_of(rest.batches) == ["b", "e"]
    assert (rest.batches[0].epoch, rest.batches[0].base_sequence) == (1, 0)
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
    (batch,) = core.completed
    assert (batch.code, batch.text) == (Code.INVALID_RECORD, "no key")
    assert core.of(Split) == []
    assert (core.sender.counts.record_errors, core.sender.counts.batch_errors) == (1, 1)


@pytest.mark.rule("A6")
def test_one_request_with_two_fates() -> None:
    """SN-05: p0 REQUEST_TIMED_OUT, p1 fine at 111: p1 is acked at once, p0 retried alone."""
    core = Core(leaders=(1, 1))
    core.append("a", partition=0)
    core.append("b", partition=1)
    (request,) = core.poll()
    core.respond(request, answer(0, Code.REQUEST_TIMED_OUT), answer(1, base_offset=111))
    core.poll()
    assert [(batch.partition, batch.base_offset) for batch in core.completed] == [(1, 111)]
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


# --- splitting ----------------------------------------------------------------------------------------------


@pytest.mark.rule("A7")
def test_a_batch_too_large_for_its_topic_is_split_and_both_halves_are_delivered() -> None:
    """AC-07: sequences, deadline and attempts are kept; order too, though more is queued."""
    core = Core()
    request = core.send("a", "b")
    core.append("c")
    parent = request.batches[0]
    core.respond(request, answer(0, Code.MESSAGE_TOO_LARGE))
    (request,) = core.poll()
    (split,) = core.of(Split)
    assert split == Split(parent, parent.children)
    first, second = split.pieces
    assert [piece.base_sequence for piece in split.pieces] == [0, 1]
    assert [piece.deadline_ms for piece in split.pieces] == [parent.deadline_ms] * 2
    assert request.batches == [first]
    core.acknowledge(request, base_offset=0)
    requests = core.poll()
    assert requests[0].batches == [second]
    core.acknowledge(requests[0], base_offset=1)
    for request in [*requests[1:], *core.poll()]:
        core.acknowledge(request, base_offset=2)
    core.poll()
    assert [batch.base_offset for batch in core.completed] == [0, 1, 2]
    assert payloads_of(core.completed) == ["a", "b", "c"]
    assert core.sender.counts.batches_split == 1
    assert core.sender.is_idle


@pytest.mark.rule("A7")
def test_a_single_record_too_large_fails() -> None:
    core = Core()
    core.respond(core.send("a"), answer(0, Code.MESSAGE_TOO_LARGE))
    core.poll()
    (batch,) = core.completed
    assert batch.code == Code.MESSAGE_TOO_LARGE
    assert batch.text == (
        f"The record for topic {batch.topic} ({batch.size_bytes:,} bytes with its batch, before compression) is "
        "larger than the topic's max.message.bytes."
    ), "Kafka's own words name neither"


@pytest.mark.rule("A7")
def test_a_split_in_the_plain_lane_keeps_the_order() -> None:
    core = plain()
    request = core.send(*"abcd")
    core.append("e")
    core.respond(request, answer(0, Code.MESSAGE_TOO_LARGE))
    sent = [payloads_of(request.batches) for request in [*core.poll(), *core.poll()]]
    assert sent == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.rule("A7")
@pytest.mark.rule("A8")
def test_an_expired_batch_is_not_split() -> None:
    core = Core(delivery_timeout_ms=1500)
    request = core.send("a", "b")
    core.poll(1600)
    core.respond(request, answer(0, Code.MESSAGE_TOO_LARGE))
    assert core.poll() == []
    assert core.of(Split) == []
    assert [batch.code for batch in core.completed] == [LocalCode.EXPIRED]


@pytest.mark.rule("A8")
def test_halves_expire_with_their_parents_deadline() -> None:
    core = Core(delivery_timeout_ms=1500)
    core.clock.advance(0)
    request = core.send("a", "b")
    core.clock.advance(1000)
    core.append("c")
    core.respond(request, answer(0, Code.MESSAGE_TOO_LARGE))
    core.links.down.add(1)
    core.poll()
    assert core.sender.next_wakeup_ms == request.batches[0].deadline_ms
    core.poll(500)
    assert payloads_of(core.completed) == ["a", "b"]
    core.poll(1000)
    assert payloads_of(core.completed) == ["a", "b", "c"]


@pytest.mark.rule("A7")
def test_halves_of_a_batch_that_may_be_there_whole_are_not_renumbered() -> None:
    """The broker knows batches by base and count: it would take a half under a new number as something
    new."""
    core = Core()
    core.send("a", "b")
    core.sender.on_disconnect(1, core.now_ms)
    (request,) = core.poll(200)
    core.respond(request, answer(0, Code.MESSAGE_TOO_LARGE))
    (request,) = core.poll()
    core.respond(request, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    (request,) = core.poll(200)
    core.respond(request, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    core.poll()
    assert payloads_of(core.completed) == ["a", "b"]
    assert {batch.persistence for batch in core.completed} == {Persistence.POSSIBLY_PERSISTED}
    assert core.sender.is_idle


# --- time ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("A8")
class TestDeliveryTimeout:
    """SN-06: 1500 ms counted from append, wherever the batch is; one completion."""

    def expire(self, core: Core) -> tuple[int, int, str]:
        core.clock.advance(1499 - (core.now_ms - 10_000))
        core.poll()
        assert core.completed == [], "not before its time"
        core.poll(1)
        (batch,) = core.completed
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

    def test_in_flight_and_unanswered(self) -> None:
        """SN-07: told apart as possibly persisted."""
        core = Core(delivery_timeout_ms=1500)
        request = core.send(*range(10))
        code, persistence, text = self.expire(core)
        assert (code, persistence) == (LocalCode.EXPIRED, Persistence.POSSIBLY_PERSISTED)
        assert "sent to broker 1 and not answered" in text
        core.acknowledge(request)
        core.poll()
        assert len(core.completed) == 1, "the late success changes nothing"

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
        assert payloads_of(core.completed) == ["a", "b"]

    def test_an_error_after_the_deadline_is_not_retried(self) -> None:
        core = Core(delivery_timeout_ms=1500)
        request = core.send("a")
        core.clock.advance(2000)
        core.respond(request, answer(0, Code.NOT_LEADER_OR_FOLLOWER))
        assert core.poll() == []
        assert core.poll(10_000) == []
        assert [batch.code for batch in core.completed] == [LocalCode.EXPIRED]


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
    assert core.completed == [], "an answer of the closed link counts for nothing"
    core.acknowledge(again)
    core.poll()
    assert len(core.completed) == 1


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
    core = plain(acks=0)
    request = core.send("a")
    assert request.acks == 0
    core.poll()
    (batch,) = core.completed
    assert (batch.code, batch.base_offset, batch.persistence) == (0, -1, Persistence.POSSIBLY_PERSISTED)
    assert core.sender.in_flight_count == 0


@pytest.mark.rule("S5")
@pytest.mark.parametrize(("acks", "idempotent", "lane", "asked"), [(-1, True, 0, -1), (1, False, 1, 1)])
def test_acks_of_the_request(acks: int, idempotent: bool, lane: int, asked: int) -> None:
    core = Core(acks=acks, enable_idempotence=idempotent, lane=lane)
    assert core.send("a").acks == asked


# --- errors -------------------------------------------------------------------------------------------------


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
    (batch,) = core.completed
    assert (batch.code, batch.text, batch.persistence) == (code, "because", Persistence.NOT_PERSISTED)


@pytest.mark.rule("S3")
@pytest.mark.parametrize("code", [2, 3, 5, 6, 7, 13, 19, 20, 56, 74, 100])
def test_retriable_errors_are_retried(code: int) -> None:
    core = Core()
    core.respond(core.send("a"), answer(0, code))
    assert len(core.poll(200)) == 1
    assert (core.sender.counts.batch_errors, core.sender.counts.record_errors) == (1, 0)


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
    core = plain(retries=1)
    core.send("a")
    core.sender.on_disconnect(1, core.now_ms)
    core.poll()
    assert NeedMetadata(frozenset({TOPIC})) in core.effects
    core.poll(200)
    core.sender.on_disconnect(1, core.now_ms)
    assert core.poll(10_000) == []
    (batch,) = core.completed
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
    fates = {batch.partition: (batch.code, batch.persistence) for batch in core.completed}
    assert fates == {
        0: (LocalCode.ENCODE_MISMATCH, Persistence.POSSIBLY_PERSISTED),
        1: (0, Persistence.PERSISTED),
    }


# --- links --------------------------------------------------------------------------------------------------


def test_connect_is_asked_for_only_where_something_is_ready() -> None:
    core = Core(leaders=(1, 2))
    core.links.down |= {1, 2}
    core.append("a", partition=1)
    core.poll()
    assert core.of(Connect) == [Connect(2)]


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
def test_an_exception_in_a_poll_loses_nothing() -> None:
    core = Core(leaders=(1, 2))
    core.acknowledge(core.send("told", partition=0))
    core.append("sent", partition=0)
    core.append("kept", partition=1)
    real = core.links.is_ready

    def broken(node_id: int) -> bool:
        if node_id == 2:
            raise RuntimeError("a bug")
        return real(node_id)

    core.links.is_ready = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a bug"):
        core.poll()
    core.links.is_ready = real  # type: ignore[method-assign]
    requests = core.poll()
    assert payloads_of(core.completed) == ["told"]
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
    assert sorted(payloads_of(core.completed)) == ["a", "b"], "the other is ended by its deadline"
    assert core.sender.is_idle
    assert len(core.poll() or [core.send("c", partition=0)]) == 1


# --- the end ------------------------------------------------------------------------------------------------


@pytest.mark.rule("S2")
def test_graceful_close_delivers_everything_without_linger() -> None:
    core = Core(linger_ms=60_000)
    core.append("a")
    assert core.poll() == []
    core.sender.begin_close(core.now_ms)
    core.append("accepted meanwhile", partition=0)
    (request,) = core.poll()
    assert not core.sender.is_idle
    core.acknowledge(request)
    assert not core.sender.is_idle, "what is decided must still be told"
    core.poll()
    assert core.sender.is_idle


@pytest.mark.rule("A9")
@pytest.mark.rule("S2")
def test_forced_close_fails_everything_with_a_clear_error() -> None:
    core = Core(leaders=(1, 2))
    core.send("in flight", partition=0)
    core.links.down.add(2)
    core.append("queued", partition=1)
    core.poll()
    core.sender.force_close(core.now_ms)
    core.poll()
    told = {payloads_of([batch])[0]: batch for batch in core.completed}
    assert told["in flight"].persistence == Persistence.POSSIBLY_PERSISTED
    assert told["queued"].persistence == Persistence.NOT_PERSISTED
    assert {batch.code for batch in core.completed} == {LocalCode.ABORTED}
    assert "was closed before 1 record(s)" in told["queued"].text


@pytest.mark.rule("S2")
def test_a_late_answer_after_a_forced_close_changes_nothing() -> None:
    core = Core()
    request = core.send("a")
    core.sender.force_close(core.now_ms)
    core.acknowledge(request)
    core.poll()
    assert [batch.code for batch in core.completed] == [LocalCode.ABORTED]
    assert core.sender.is_idle


@pytest.mark.rule("U5")
def test_a_deleted_topics_waiting_batches_fail() -> None:
    core = Core(leaders=(-1, 1))
    core.append("a", partition=0)
    sent = core.send("b", partition=1)
    core.sender.fail_partitions(
        TOPIC, None, LocalCode.TOPIC_DELETED, "Topic orders was deleted.", core.now_ms
    )
    core.poll()
    assert payloads_of(core.completed) == ["a"]
    core.respond(sent, answer(1, 3))
    core.poll(400)
    assert payloads_of(core.completed) == ["a", "b"], "what was on the wire is not sent again"
    assert {each.code for each in core.completed} == {LocalCode.TOPIC_DELETED}
    # A leader may say so after it has appended, too.
    assert [each.persistence for each in core.completed] == [
        Persistence.NOT_PERSISTED,
        Persistence.POSSIBLY_PERSISTED,
    ]


@pytest.mark.parametrize("code", [Code.MESSAGE_TOO_LARGE, Code.INVALID_RECORD])
@pytest.mark.rule("U5")
def test_no_part_of_a_batch_that_was_refused_is_sent_after_its_topic_was_deleted(code: Code) -> None:
    core = Core()
    request = core.send("a", "b", "c")
    core.sender.fail_partitions(
        TOPIC, None, LocalCode.TOPIC_DELETED, "Topic orders was deleted.", core.now_ms
    )
    errors = ((1, "no key"),) if code == Code.INVALID_RECORD else ()
    core.respond(request, answer(0, code, record_errors=errors))
    assert core.poll() == [] and core.poll(400) == []
    codes = {name: each.code for each in core.completed for name in payloads_of([each])}
    bad = {"b": Code.INVALID_RECORD} if errors else {}
    assert codes == dict.fromkeys("abc", LocalCode.TOPIC_DELETED) | bad
    assert {each.persistence for each in core.completed} == {Persistence.NOT_PERSISTED}


def test_what_was_on_the_wire_when_its_topic_went_may_still_be_delivered_or_be_in_doubt() -> None:
    core = Core(leaders=(1, 1, 1))
    delivered, lost = core.send("a", partition=0), core.send("b", partition=1)
    core.sender.fail_partitions(
        TOPIC, [0, 1], LocalCode.TOPIC_DELETED, "Topic orders was deleted.", core.now_ms
    )
    core.acknowledge(delivered)
    core.sender.on_disconnect(1, core.now_ms)
    core.poll()
    (good, bad) = core.completed
    assert (good.code, good.persistence) == (0, Persistence.PERSISTED)
    assert list(lost.batches) == [bad]
    assert (bad.code, bad.persistence) == (LocalCode.TOPIC_DELETED, Persistence.POSSIBLY_PERSISTED)


def test_completed_batches_of_a_partition_come_in_order() -> None:
    core = Core()
    requests = [core.send(n) for n in range(5)]
    for request in requests:
        core.acknowledge(request)
    core.poll()
    assert core.of(Completed) == [Completed(tuple(core.completed))]
    assert payloads_of(core.completed) == [0, 1, 2, 3, 4]
