"""A topic that is deleted and created again while batches are under way. The new log takes any first sequence: the
batches of a partition must get there in their order, also those that the old log refused for a gap."""

from __future__ import annotations

from uuid import UUID

import pytest

from client_stub.contract.wire import Persistence
from sidecar.common.errors import Code
from sidecar.producer.in_flight import ProduceRequest

from .harness import TOPIC, Core, answer, payloads_of, snapshot_of

pytestmark = [pytest.mark.rule("S4")]
OLD, NEW = UUID(int=1), UUID(int=2)


class Topic:
    """A core with three batches under way in one partition: "a" and "b" are refused, the answer to "c" is open."""

    def __init__(self) -> None:
        self.core = core = Core()
        self.hear_of(OLD)
        core.poll()
        core.acknowledge(core.send("known"))
        first, second, self.third = (core.send(payload) for payload in "abc")
        self.refuse(first, Code.NOT_ENOUGH_REPLICAS)
        self.refuse(second, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def hear_of(self, topic_id: UUID | None) -> None:
        leaders = {TOPIC: [1]} if topic_id is not None else {}
        self.core.snapshot = snapshot_of(leaders, version=self.core.snapshot.version + 1, topic_id=topic_id)

    def refuse(self, request: ProduceRequest, code: int) -> None:
        self.core.respond(request, answer(0, code))

    def lose_answer(self) -> None:
        self.refuse(self.third, Code.REQUEST_TIMED_OUT)

    def next(self, payload: str) -> ProduceRequest:
        """The one request that goes next."""
        (request,) = self.core.poll(400)
        assert payloads_of(request.batches) == [payload]
        return request

    def give_up_first(self) -> None:
        """Batches behind "a" get other numbers once nothing of it is in doubt."""
        self.refuse(self.next("a"), Code.TOPIC_AUTHORIZATION_FAILED)

    def deliver_rest(self) -> list[tuple[str, int]]:
        """Payload and epoch of each batch in the order in which it is sent."""
        sent = []
        while requests := self.core.poll(400):
            for request in requests:
                sent += [(*payloads_of([batch]), batch.epoch) for batch in request.batches]
                self.core.acknowledge(request)
        return sent


@pytest.mark.parametrize("lost", ["by its answer", "with its connection"])
@pytest.mark.parametrize("heard", ["before", "after", "once it was gone"])
def test_a_recreated_topic_gets_refused_batches_before_the_one_in_doubt(heard: str, lost: str) -> None:
    """Sent first, "c" would be taken by the new log, and "b" would be late for good. Found by the simulation."""
    topic = Topic()
    if heard == "once it was gone":
        topic.hear_of(None)
        topic.core.poll()
    if heard == "before":
        topic.hear_of(NEW)
        topic.core.poll()
    if lost == "by its answer":
        topic.lose_answer()
    else:
        topic.core.sender.on_disconnect(1, topic.core.now_ms)
    if heard != "before":
        topic.hear_of(NEW)
    topic.give_up_first()
    assert topic.deliver_rest() == [("b", 0), ("c", 0)]
    assert [(*payloads_of([batch]), batch.code) for batch in topic.core.decided] == [
        ("known", Code.NONE),
        ("a", Code.TOPIC_AUTHORIZATION_FAILED),
        ("b", Code.NONE),
        ("c", Code.NONE),
    ]
    assert topic.core.send("next").batches[0].epoch == 1, "what follows starts over"


def test_a_topic_recreated_while_a_renumbering_waits_for_the_doubt() -> None:
    topic = Topic()
    topic.lose_answer()
    topic.give_up_first()
    topic.hear_of(NEW)
    assert topic.deliver_rest() == [("b", 0), ("c", 0)]


def test_without_a_new_topic_only_the_batch_in_doubt_is_sent_as_it_is() -> None:
    """The log that refused "b" for a gap would do so again."""
    topic = Topic()
    topic.lose_answer()
    topic.give_up_first()
    topic.refuse(topic.next("c"), Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert topic.deliver_rest() == [("b", 1), ("c", 1)]


def test_a_gap_in_the_new_log_too_is_asked_about_once() -> None:
    """The id that was heard of was not new, or the gap is between the two: each log refuses "b" once."""
    topic = Topic()
    topic.lose_answer()
    topic.hear_of(NEW)
    topic.give_up_first()
    topic.refuse(topic.next("b"), Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    topic.refuse(topic.next("c"), Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert topic.deliver_rest() == [("b", 1), ("c", 1)]


@pytest.mark.parametrize("code", [Code.NOT_ENOUGH_REPLICAS, Code.UNKNOWN_TOPIC_ID, None])
def test_batches_missing_in_the_new_log_go_there_first_once_more(code: int | None) -> None:
    """None: the request was not sent."""
    topic = Topic()
    topic.lose_answer()
    topic.hear_of(NEW)
    topic.give_up_first()
    request = topic.next("b")
    if code is None:
        topic.core.sender.on_request_not_sent(request, topic.core.now_ms)
    else:
        topic.refuse(request, code)
    assert topic.deliver_rest() == [("b", 0), ("c", 0)]


@pytest.mark.parametrize("first_heard", [NEW, OLD])
@pytest.mark.parametrize("lost_again", [True, False])
def test_an_id_that_comes_and_goes_ends_no_doubt(first_heard: UUID, lost_again: bool) -> None:
    """A broker that lags behind names an earlier topic. "c" is in the log of the one that lives: under another number
    it would be there twice. A reader found it in an earlier form of the rule."""
    topic = Topic()
    if first_heard is OLD:
        topic.lose_answer()
    topic.hear_of(NEW)
    topic.core.poll()
    if first_heard is NEW:
        topic.lose_answer()
    topic.hear_of(OLD)
    topic.core.poll()
    topic.give_up_first()
    topic.refuse(topic.next("b"), Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    again = topic.next("c")
    if lost_again:
        topic.refuse(again, Code.REQUEST_TIMED_OUT)
        topic.hear_of(NEW)
        topic.refuse(topic.next("b"), Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        again = topic.next("c")
    assert again.batches[0].epoch == 0, "as it was, so that the broker recognises it"
    topic.core.acknowledge(again)
    topic.core.poll()
    assert {(*payloads_of([batch]), batch.persistence) for batch in topic.core.decided} == {
        ("known", Persistence.PERSISTED),
        ("a", Persistence.NOT_PERSISTED),
        ("b", Persistence.NOT_PERSISTED),  # overtaken: true of that log
        ("c", Persistence.PERSISTED),
    }


def test_a_batch_in_doubt_before_one_that_the_old_log_acknowledged_is_delivered_to_the_new_one() -> None:
    core = Core()
    core.snapshot = snapshot_of({TOPIC: [1]}, version=2, topic_id=OLD)
    core.poll()
    core.acknowledge(core.send("known"))
    doubted, acknowledged, refused = (core.send(payload) for payload in "cde")
    core.respond(doubted, answer(0, Code.REQUEST_TIMED_OUT))
    core.respond(acknowledged, answer(0))
    core.respond(refused, answer(0, Code.TOPIC_AUTHORIZATION_FAILED))
    core.snapshot = snapshot_of({TOPIC: [1]}, version=3, topic_id=NEW)
    (again,) = core.poll(400)
    assert payloads_of(again.batches) == ["c"]
    core.acknowledge(again)
    core.poll()
    assert {(*payloads_of([batch]), batch.persistence) for batch in core.decided} == {
        ("known", Persistence.PERSISTED),
        ("c", Persistence.PERSISTED),
        ("d", Persistence.PERSISTED),
        ("e", Persistence.NOT_PERSISTED),
    }
