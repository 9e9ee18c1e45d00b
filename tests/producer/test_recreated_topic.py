"""A topic that is deleted and created again while batches are under way. Requests that name it by id cannot reach the
new log, so a doubt about the old one says nothing of the new one, which takes any first sequence."""

from __future__ import annotations

from uuid import UUID

import pytest

from client_stub.wire import Persistence
from sidecar.common.errors import Code
from sidecar.producer.in_flight import ProduceRequest

from .harness import TOPIC, Core, answer, payloads_of, snapshot_of

pytestmark = [pytest.mark.rule("S4")]
OLD, NEW, NEWER = UUID(int=1), UUID(int=2), UUID(int=3)


class Topic:
    """A core with three batches under way in one partition: "a" and "b" are refused, the answer to "c" is lost."""

    def __init__(self, *, by_id: bool = True) -> None:
        self.core = core = Core()
        self.by_id = by_id
        self.topic_id = OLD
        self.hear_of(OLD)
        core.poll()
        core.acknowledge(core.send("known"))
        first, second, third = (self._named(core.send(payload)) for payload in "abc")
        self.refuse(first, Code.NOT_ENOUGH_REPLICAS)
        self.refuse(second, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        self.third = third

    def hear_of(self, topic_id: UUID | None) -> None:
        leaders = {TOPIC: [1]} if topic_id is not None else {}
        self.topic_id = topic_id or self.topic_id
        self.core.snapshot = snapshot_of(leaders, version=self.core.snapshot.version + 1, topic_id=topic_id)

    def _named(self, request: ProduceRequest) -> ProduceRequest:
        """As the worker's port does when it encodes the request."""
        if self.by_id:
            request.topic_names = {self.topic_id: TOPIC}
        return request

    def refuse(self, request: ProduceRequest, code: int) -> None:
        (topic_id,) = request.topic_names or (None,)
        self.core.respond(request, answer(0, code, topic_id=topic_id))

    def next(self, advance_ms: float = 400.0) -> ProduceRequest:
        (request,) = self.core.poll(advance_ms)
        return self._named(request)

    def give_up_first(self) -> None:
        """What follows "a" gets other numbers once nothing of it is in doubt."""
        again = self.next()
        assert payloads_of(again.batches) == ["a"]
        self.refuse(again, Code.TOPIC_AUTHORIZATION_FAILED)

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
def test_what_waits_behind_a_doubt_about_the_old_log_keeps_its_order(heard: str, lost: str) -> None:
    """Sent again first, "c" would be taken by the new log, and "b" would be late for good. Found by the simulation."""
    topic = Topic()
    if heard == "once it was gone":
        topic.hear_of(None)
        topic.core.poll()
    if heard == "before":
        topic.hear_of(NEW)
        topic.core.poll()
    if lost == "by its answer":
        topic.refuse(topic.third, Code.REQUEST_TIMED_OUT)
    else:
        topic.core.sender.on_disconnect(1, topic.core.now_ms)
    if heard != "before":
        topic.hear_of(NEW)
    topic.give_up_first()
    assert topic.deliver_rest() == [("b", 1), ("c", 1)]
    assert [(*payloads_of([batch]), batch.code) for batch in topic.core.completed] == [
        ("known", Code.NONE),
        ("a", Code.TOPIC_AUTHORIZATION_FAILED),
        ("b", Code.NONE),
        ("c", Code.NONE),
    ]


def test_a_topic_recreated_while_a_renumbering_waits_for_the_doubt() -> None:
    topic = Topic()
    topic.refuse(topic.third, Code.REQUEST_TIMED_OUT)
    topic.core.clock.advance(400)
    topic.give_up_first()
    topic.hear_of(NEW)
    assert topic.deliver_rest() == [("b", 1), ("c", 1)]


def test_what_was_in_doubt_before_never_fails_as_surely_not_persisted() -> None:
    """Its record may have been in the log that is gone, and somebody may have read it there."""
    topic = Topic()
    topic.refuse(topic.third, Code.REQUEST_TIMED_OUT)
    topic.hear_of(NEW)
    topic.give_up_first()
    topic.core.links.down.add(1)
    topic.core.poll(200_000)
    assert {(*payloads_of([batch]), batch.persistence) for batch in topic.core.completed} == {
        ("known", Persistence.PERSISTED),
        ("a", Persistence.NOT_PERSISTED),
        ("b", Persistence.NOT_PERSISTED),
        ("c", Persistence.POSSIBLY_PERSISTED),
    }


def test_named_by_its_name_a_late_copy_may_be_in_the_new_log() -> None:
    """Brokers before 4.1: the broker may have taken the request just after the topic was created again. Under another
    number "c" could be there twice."""
    topic = Topic(by_id=False)
    topic.refuse(topic.third, Code.REQUEST_TIMED_OUT)
    topic.hear_of(NEW)
    topic.give_up_first()
    again = topic.next()
    assert [(*payloads_of([batch]), batch.epoch) for batch in again.batches] == [("c", 0)]


def test_a_doubt_about_the_log_that_is_there_stays() -> None:
    """The first attempt went to the old topic, the second one, whose answer is lost too, to the new one."""
    topic = Topic()
    topic.refuse(topic.third, Code.REQUEST_TIMED_OUT)
    topic.hear_of(NEW)
    first = topic.next()
    assert payloads_of(first.batches) == ["a"]
    topic.core.acknowledge(first)
    second = topic.next()
    assert payloads_of(second.batches) == ["b"]
    topic.refuse(second, Code.REQUEST_TIMED_OUT)
    again = topic.next()
    assert payloads_of(again.batches) == ["b"]
    topic.refuse(again, Code.TOPIC_AUTHORIZATION_FAILED)  # it may be in the log
    third = topic.next()
    topic.refuse(third, Code.REQUEST_TIMED_OUT)
    assert [(*payloads_of([batch]), batch.epoch) for batch in topic.next().batches] == [("c", 0)]


def test_an_id_that_comes_back_ends_no_doubt() -> None:
    """Metadata from a broker that lags behind: which of the topics is gone, nobody knows."""
    topic = Topic()
    topic.hear_of(NEW)
    topic.core.poll()
    topic.hear_of(OLD)
    topic.core.poll()
    topic.refuse(topic.third, Code.REQUEST_TIMED_OUT)
    topic.give_up_first()
    assert [(*payloads_of([batch]), batch.epoch) for batch in topic.next().batches] == [("c", 0)]


def test_halves_of_a_batch_in_doubt_about_the_old_log_are_in_no_doubt_either() -> None:
    core = Core()
    core.snapshot = snapshot_of({TOPIC: [1]}, version=2, topic_id=OLD)
    core.poll()
    core.acknowledge(core.send("known"))
    gap, whole = core.send("gap"), core.send("a", "b")
    for request in (gap, whole):
        request.topic_names = {OLD: TOPIC}
    core.respond(whole, answer(0, Code.REQUEST_TIMED_OUT, topic_id=OLD))
    core.respond(gap, answer(0, Code.TOPIC_AUTHORIZATION_FAILED, topic_id=OLD))
    (again,) = core.poll(400)
    core.respond(again, answer(0, Code.MESSAGE_TOO_LARGE, topic_id=OLD))
    core.snapshot = snapshot_of({TOPIC: [1]}, version=3, topic_id=NEW)
    sent = []
    while requests := core.poll(400):
        for request in requests:
            sent += [(*payloads_of([batch]), batch.epoch) for batch in request.batches]
            core.acknowledge(request)
    assert sent == [("a", 1), ("b", 1)]


def test_only_the_last_ids_of_a_topic_are_remembered() -> None:
    """A partition of a topic that is recreated again and again holds no more for it."""
    topic = Topic()
    topic.refuse(topic.third, Code.REQUEST_TIMED_OUT)
    for number in range(3, 100):
        topic.hear_of(UUID(int=number))
        topic.core.poll()
    sequences = topic.third.batches[0].queue.sequences
    assert sequences is not None
    assert sequences.gone_topic_ids == tuple(UUID(int=number) for number in (95, 96, 97, 98))
    topic.give_up_first()
    assert topic.deliver_rest() == [("b", 1), ("c", 1)]
