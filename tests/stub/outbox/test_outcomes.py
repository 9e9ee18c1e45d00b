"""The Producer against the scripted daemon: outcomes of every shape, callbacks, failures."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from client_stub import Producer, errors
from client_stub.contract.wire import Kind, LocalCode, OutcomeKind, Persistence, Shape
from client_stub.outbox.callback_log import LINES_MAX
from client_stub.outbox.submission import Submission
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import Client, FakeDaemon, Submit


def test_flush_returns_when_the_callbacks_have_run(producer: Producer) -> None:
    entered, go, flushed = threading.Event(), threading.Event(), threading.Event()

    def slow(error: Any, metadata: Any) -> None:
        entered.set()
        go.wait(10)

    def flush() -> None:
        producer.flush(10)
        flushed.set()

    producer.send("t", b"v", on_delivery=slow)
    thread = threading.Thread(target=flush)
    assert entered.wait(10)
    thread.start()
    assert not flushed.wait(0.1)
    go.set()
    thread.join(10)
    assert flushed.is_set()


@pytest.mark.rule("A6")
def test_one_failing_callback_is_logged_and_stops_nobody(
    producer: Producer, daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []

    def on_delivery(error: Any, metadata: Any) -> None:
        told.append(metadata.offset)
        if metadata.offset % 3 == 0:
            raise RuntimeError("the caller's own fault")

    producer.send_many("t", [(None, b"%d" % n) for n in range(10)], on_delivery=on_delivery)
    producer.flush(10)
    assert told == list(range(10))
    assert caplog.text.count("An on_delivery callback failed") == 4


def test_callbacks_that_fail_are_a_few_lines_a_minute(
    producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback with a bug logged a traceback for each record."""

    def fail(*_: object) -> None:
        raise RuntimeError("the caller's own fault")

    for minute in (1, 2):
        for _ in range(2):
            producer.send_many("t", [(None, b"x")] * 100, on_delivery=fail)
            producer.flush(10)
        lines = [line for line in caplog.messages if "callback failed" in line]
        assert len(lines) == minute * LINES_MAX
        assert [line.endswith("not logged for 60 s.") for line in lines[-2:]] == [False, True]
        producer._engine.outbox.waiters.callback_log._limit.next_ms = 0.0  # a minute is over


@pytest.mark.rule("A6")
def test_a_callback_that_wants_to_end_the_process_ends_nothing(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    """sys.exit() in the io thread ended that thread without a word, and every later wait was for ever."""

    def leave(*_: object) -> None:
        raise SystemExit("as sys.exit() in a callback")

    with Producer(daemon.run_dir, on_error=leave) as producer:
        producer.send("t", b"1", on_delivery=leave)
        second = producer.send("t", b"2")
        second.add_done_callback(leave)
        producer.flush(10)
        daemon.deliver = lambda client, submit: daemon.outcome(
            client, submit, kind=OutcomeKind.FAILED, code=LocalCode.EXPIRED
        )
        producer.send("t", b"3")
        assert producer.flush(10) == 1
        daemon.deliver = daemon.deliver_all
        assert producer.send("t", b"4").result(10).offset == 2
    for words in ("An on_delivery callback", "A done callback", "An on_error callback"):
        assert caplog.text.count(f"{words} failed") == 1


@pytest.mark.rule("A6")
def test_outcomes_of_every_shape_reach_each_record_once(producer: Producer, daemon: FakeDaemon) -> None:
    """Three partitions answer for one submission, one of them with an error for a list of records."""
    daemon.deliver = None
    told: list[tuple[str, Any]] = []
    records = [(None, b"%d" % n) for n in range(12)]
    producer.send_many("t", records, on_delivery=lambda e, m: told.append(("bulk", e or m)))
    client, submit = _accepted(daemon)

    def answer() -> None:
        evens = sum(1 << n for n in range(0, 8, 2)).to_bytes(1, "little")
        daemon.outcome(
            client, submit, shape=Shape.BITMAP, indexes=evens, count=4, partition=3, base_offset=100
        )
        odds = b"".join(n.to_bytes(2, "little") for n in (1, 3, 5, 7))
        daemon.outcome(
            client,
            submit,
            shape=Shape.LIST,
            indexes=odds,
            count=4,
            kind=OutcomeKind.FAILED,
            code=10,
            text="The broker's own words.",
        )
        daemon.outcome(client, submit, first_index=8, count=4, partition=5, base_offset=7, append_time_ms=99)

    daemon.do(answer)
    producer.flush(10)
    results = [result for _, result in told]
    assert [(r.partition, r.offset) for r in results[:4]] == [(3, 100), (3, 101), (3, 102), (3, 103)]
    assert all(isinstance(r, errors.RecordTooLarge) for r in results[4:8])
    assert str(results[4]) == "The broker's own words."
    assert [(r.partition, r.offset, r.timestamp_ms) for r in results[8:]] == [
        (5, 7, 99), (5, 8, 99), (5, 9, 99), (5, 10, 99)
    ]  # fmt: skip
    assert len(results) == 12


@pytest.mark.rule("A6")
def test_a_repeated_outcome_completes_nobody_twice(producer: Producer, daemon: FakeDaemon) -> None:
    """After a worker's death outcomes are told again, under their old numbers or under new ones."""
    daemon.deliver = None
    told: list[Any] = []
    delivery = producer.send("t", b"v", on_delivery=lambda e, m: told.append(m))
    client, submit = _accepted(daemon)

    def answer() -> None:
        daemon.outcome(client, submit, number=1, base_offset=5)
        daemon.outcome(client, submit, number=1, base_offset=6)
        daemon.outcome(client, submit, number=2, base_offset=7)

    daemon.do(answer)
    producer.flush(10)
    assert delivery.result(10).offset == 5
    eventually(lambda: 2 in daemon.acks)
    assert [metadata.offset for metadata in told] == [5]


def test_a_failed_record_raises_its_own_error(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.deliver = lambda client, submit: daemon.outcome(
        client, submit, kind=OutcomeKind.FAILED, code=LocalCode.EXPIRED, persistence=1, text="Expired."
    )
    told: list[Any] = []
    delivery = producer.send("t", b"v", on_delivery=lambda e, m: told.append((e, m)))
    with pytest.raises(errors.DeliveryTimeout, match="Expired") as caught:
        delivery.result(10)
    assert caught.value.retriable
    assert caught.value.persistence is Persistence.POSSIBLY_PERSISTED
    assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, errors.SidecarError)
    assert told == [(caught.value, None)]


def test_flush_raises_an_unwatched_failure_of_send_many(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.deliver = lambda client, submit: daemon.outcome(client, submit, kind=OutcomeKind.FAILED, code=29)
    producer.send_many("t", [(b"k", b"v")] * 3)
    with pytest.raises(errors.TopicAuthorizationFailed, match="3 records"):
        producer.flush(10)
    producer.flush(10)
    asked = producer.send_many("t", [(b"k", b"v")] * 3)
    with pytest.raises(errors.TopicAuthorizationFailed):
        asked.result(10)


def test_calls_that_share_a_submission_share_no_failure(producer: Producer, daemon: FakeDaemon) -> None:
    """Records 3 to 6 of a submission fail: the second call's and one that send() put there."""
    daemon.accept = lambda client, submit: False
    for number in (1, 2):  # two under way: what comes now gathers
        producer.send("t", b"before")
        eventually(lambda: len(daemon.received) == number)  # noqa: B023 (called at once)
    row = (None, b"v")
    good, bad = producer.send_many("t", [row] * 3), producer.send_many("t", [row] * 2)
    own, unwatched = producer.send("t", b"v"), producer.send_many("t", [row] * 4)
    bad.watch()
    assert not good.done() and not bad.done()

    def deliver(client: Client, submit: Submit) -> None:
        if submit.count == 10:
            daemon.outcome(client, submit, first_index=3, count=4, kind=OutcomeKind.FAILED, code=29)
            daemon.outcome(client, submit, count=3, base_offset=2)
            daemon.outcome(client, submit, first_index=7, count=3, base_offset=5)
        else:
            daemon.deliver_all(client, submit)

    def accept() -> None:
        daemon.accept, daemon.deliver = lambda client, submit: True, deliver
        daemon.tell(daemon.only_client, [Kind.RESUME, 1, 1])

    daemon.do(accept)
    assert good.result(10) == 3
    with pytest.raises(errors.TopicAuthorizationFailed):
        bad.result(10)
    assert (good.failed_count, bad.failed_count, unwatched.failed_count) == (0, 2, 1)
    assert isinstance(own.exception(10), errors.TopicAuthorizationFailed)
    with pytest.raises(errors.TopicAuthorizationFailed) as caught:
        producer.flush(10)
    assert "records of send_many" not in str(caught.value)  # one of ``unwatched``, which nobody looks after
    assert daemon.received[-1].count == 10


def test_flush_waits_until_errors_that_nobody_asks_for_are_noted(
    producer: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, reached, go = producer._engine.outbox, threading.Event(), threading.Event()
    real = outbox.settle

    def held(accepted: list[Submission], completed: list[Submission], *, is_news: bool) -> None:
        if completed:
            reached.set()
            assert go.wait(10)
        real(accepted, completed, is_news=is_news)

    monkeypatch.setattr(outbox, "settle", held)
    daemon.deliver = lambda client, submit: daemon.outcome(
        client, submit, count=2, kind=OutcomeKind.FAILED, code=29
    )
    producer.send_many("t", [(None, b"v")] * 2)
    assert reached.wait(10)
    with pytest.raises(TimeoutError):
        producer.flush(0)
    go.set()
    with pytest.raises(errors.TopicAuthorizationFailed):
        producer.flush(10)


def test_callbacks_of_one_call_do_not_wait_with_those_of_another(
    producer: Producer, daemon: FakeDaemon
) -> None:
    told: list[str] = []
    for name in "abab":
        producer.send_many("t", [(None, b"v")] * 2, on_delivery=lambda e, m, name=name: told.append(name))
    producer.flush(10)
    assert "".join(told) == "aabbaabb"


def test_waiting_inside_a_callback_is_refused_instead_of_hanging(
    producer: Producer, daemon: FakeDaemon
) -> None:
    caught: list[Exception] = []

    def on_delivery(error: Any, metadata: Any) -> None:
        try:
            producer.flush()
        except errors.SidecarError as refused:
            caught.append(refused)
        producer.send("t", b"from a callback")

    producer.send("t", b"v", on_delivery=on_delivery)
    eventually(lambda: len(daemon.received) == 2)
    assert "would wait for ever" in str(caught[0])


def _accepted(daemon: FakeDaemon) -> tuple[Client, Submit]:
    eventually(lambda: daemon.clients and daemon.only_client.log)
    return daemon.only_client, daemon.only_client.log[0]
