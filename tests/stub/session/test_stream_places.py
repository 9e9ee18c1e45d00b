"""Goal: a producer works with any number of topics. Beyond the bound those at rest make room, and nothing of them is
left.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise

import msgpack
import pytest

from client_stub import Producer, errors
from client_stub.contract.error_codes import ERROR_CODES
from client_stub.contract.wire import Kind, LocalCode, Persistence
from client_stub.outbox.outbox import STREAMS_KEPT_MAX
from client_stub.session.stream_admission import ADMITTED_MS_MIN, LEAVING_MAX, REFUSED_MS_MAX
from tests.patience import PATIENCE_S
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import Client, FakeDaemon, Submit
from tests.stub.session.test_session import Run

PLACES = 3


@pytest.fixture
def few(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon that keeps three streams of a client."""
    daemon.limits["streams"] = PLACES
    return daemon


@pytest.fixture
def producer(few: FakeDaemon) -> Iterator[Producer]:
    with Producer(few.run_dir) as made:
        yield made


def test_one_topic_too_many_ends_the_stream_unused_longest(producer: Producer, few: FakeDaemon) -> None:
    for _ in range(5):
        for topic in ("a", "b", "c"):
            producer.send(topic, b"v").result(PATIENCE_S)
    assert not few.ended
    producer.send("a", b"v").result(PATIENCE_S)
    producer.send("d", b"v").result(PATIENCE_S)
    assert few.ended == [(2, 5)], "b was unused longest"
    producer.send("b", b"again").result(PATIENCE_S)
    assert few.received[-1].stream == 5 and few.received[-1].seq == 1, "a number is used once"
    assert few.ended[1:] == [(3, 5)]


def test_a_thousand_topics_leave_no_more_than_the_bounds_in_the_producer(
    producer: Producer, few: FakeDaemon
) -> None:
    for number in range(2 * STREAMS_KEPT_MAX + 10):
        producer.send(f"t{number}", b"v")
        if number % 10 == 0:
            producer.flush(PATIENCE_S)
    producer.flush(PATIENCE_S)
    outbox = producer._engine.outbox
    session = outbox.io["thread"]._session
    assert len(outbox.streams) <= STREAMS_KEPT_MAX + 1
    assert len(session.streams.windows) == len(session.streams.by_topic) == PLACES
    assert (
        len(session.streams.in_use) <= PLACES
        and not session.streams.hold_reasons
        and not session.streams.flushing
    )
    assert len(few.only_client.positions) == PLACES
    assert producer.stats().delivered == len(few.received) == 2 * STREAMS_KEPT_MAX + 10


def test_more_busy_topics_than_streams_take_turns(producer: Producer, few: FakeDaemon) -> None:
    """Each has records under way all the time."""
    topics = [f"t{number}" for number in range(4 * PLACES)]
    delivered: dict[str, list[int]] = {topic: [] for topic in topics}
    stop = threading.Event()

    def keep_sending(topic: str) -> None:
        number, mine = 0, delivered[topic]
        while not stop.is_set():
            producer.send(topic, b"%d" % number, on_delivery=lambda error, _, n=number: mine.append(n))
            number += 1
            stop.wait(0.001)

    threads = [threading.Thread(target=keep_sending, args=(topic,)) for topic in topics]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: all(len(each) > 200 for each in delivered.values()))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    producer.flush(PATIENCE_S)
    for numbers in delivered.values():
        assert numbers == list(range(len(numbers)))
    assert producer.stats().failed == 0


def test_a_daemon_that_ends_no_streams_refuses_one_too_many_for_good(daemon: FakeDaemon) -> None:
    def refuse(client: Client, submit: Submit) -> bool:
        daemon.tell(client, [Kind.REFUSED, "TOO_MANY_STREAMS", "Too many topics.", submit.stream])
        return False

    daemon.accept = refuse
    with Producer(daemon.run_dir) as producer:
        with pytest.raises(errors.TopicLimit):
            producer.send("a", b"v").result(PATIENCE_S)
        with pytest.raises(errors.TopicLimit):
            producer.send("a", b"v")
    assert not daemon.ended


def test_a_topic_refused_for_a_full_table_is_tried_again(producer: Producer, few: FakeDaemon) -> None:
    """Three topics were refused. All other clients left, and the producer raised TopicLimit for ever."""
    is_full = threading.Event()
    is_full.set()

    def accept(client: Client, submit: Submit) -> bool:
        if is_full.is_set() and submit.topic != "known":
            few.tell(client, [Kind.REFUSED, "TOPIC_TABLE_FULL", "The table is full.", submit.stream])
            return False
        return True

    few.accept = accept
    refused = [producer.send(topic, b"v") for topic in ("a", "b", "a")]
    assert producer.send("known", b"v").result(PATIENCE_S).topic == "known", "others go on"
    eventually(lambda: len(few.received) > 4)
    with pytest.raises(TimeoutError, match=r"the daemon holds topic a \(The table is full\)"):
        refused[0].result(0.01)
    assert producer.takes_records
    is_full.clear()
    assert [each.result(PATIENCE_S).topic for each in refused] == ["a", "b", "a"]
    assert [each.records[0][1] for each in few.received if each.topic == "known"] == [b"v"]


def test_records_of_unadmitted_streams_fail_after_delivery_timeout_with_the_refusal(
    few: FakeDaemon,
) -> None:
    few.deliver = None  # so none of the first topics comes to rest
    with Producer(few.run_dir, delivery_timeout_ms=300) as producer:
        first = [producer.send(topic, b"v") for topic in ("a", "b", "c")]
        late = producer.send("d", b"v")
        with pytest.raises(errors.TopicLimit, match="topic d has waited 300 ms") as caught:
            late.result(PATIENCE_S)
        assert caught.value.name == "TOO_MANY_STREAMS" and not caught.value.retriable
        assert caught.value.persistence is Persistence.NOT_PERSISTED
        assert ERROR_CODES[LocalCode.TOPIC_REFUSED].name == "TOPIC_REFUSED"
        few.do(few.deliver_log)
        assert [each.result(PATIENCE_S).topic for each in first] == ["a", "b", "c"]
        few.deliver = few.deliver_all
        assert producer.send("d", b"again").result(PATIENCE_S).topic == "d"


def test_a_refused_topic_is_tried_again_ever_later_up_to_a_bound() -> None:
    run = Run(0, topics=("a",), streams_max=PLACES)
    run.pass_time(1.0)
    asked: list[float] = []
    run.worker.submit = lambda message, payload: (  # type: ignore[method-assign]
        asked.append(run.now_ms) or [[Kind.REFUSED, "TOPIC_TABLE_FULL", "full", message[2]]]
    )
    run.add()
    while run.now_ms < 60_000:
        run.pass_time(10.0)
        run.ship()
    pauses = [after - before for before, after in pairwise(asked)]
    assert pauses[0] < 150
    assert pauses[4] > 1_000
    assert max(pauses) <= 1.2 * REFUSED_MS_MAX + 110


def test_busy_streams_leave_after_200_ms_and_at_most_25_at_a_time() -> None:
    topics = tuple(f"t{number:03}" for number in range(4 * LEAVING_MAX))
    run = Run(0, topics=topics, streams_max=2 * LEAVING_MAX)
    run.worker.window_bytes = 1 << 20
    run.worker.rng.random = lambda: 1.0  # type: ignore[method-assign]
    run.pass_time(1.0)
    run.rng.choice = iter(topics).__next__  # type: ignore[method-assign, assignment]
    admission = run.session.streams.admission

    def choose(_: object) -> str:
        return next(names)

    names = iter(topics)
    run.rng.choice = choose  # type: ignore[method-assign, assignment]
    for _ in topics:
        run.add()
    run.ship()
    assert len(admission.admitted) == 2 * LEAVING_MAX and len(admission.queue) == 2 * LEAVING_MAX
    run.pass_time(ADMITTED_MS_MIN / 2)
    assert not any(window.is_leaving for window in admission.admitted.values())
    run.pass_time(ADMITTED_MS_MIN)
    assert sum(window.is_leaving for window in admission.admitted.values()) == LEAVING_MAX


def test_a_stream_that_went_back_is_not_ended_before_the_worker_has_answered() -> None:
    """It was at rest when RESEND had sent it back, though its records were under way again: the worker took them, and
    took them once more under the next number.
    """
    run = Run(0, topics=("a", "b"), streams_max=1)
    run.pass_time(1.0)
    topics = iter(("a", "b"))
    run.rng.choice = lambda _: next(topics)  # type: ignore[method-assign, assignment]
    run.add()
    run.add()
    sent: list[list[object]] = []

    def ship() -> None:
        while (frames := run.session.next_frames()) is not None:
            sent.append(msgpack.unpackb(frames[0]))

    ship()
    run.pass_time(ADMITTED_MS_MIN)
    assert run.session.streams.windows[1].is_leaving
    run.tell([Kind.RESEND, 1, 1])
    run.pass_time(ADMITTED_MS_MIN)
    ship()
    assert [(message[0], message[2]) for message in sent if message[0] == Kind.SUBMIT] == [
        (Kind.SUBMIT, 1)
    ] * 2
    assert Kind.END_STREAM not in [message[0] for message in sent]
    for message in sent:
        if message[0] == Kind.SUBMIT:
            for answer in run.worker.submit(message, run.made[0][1]):
                run.tell(answer)
    run.worker.deliver()
    run.tell_news()
    ship()
    assert [message[1:] for message in sent if message[0] == Kind.END_STREAM] == [[1, 1]]
    run.finish()
    run.check_all_is_delivered_in_order()
