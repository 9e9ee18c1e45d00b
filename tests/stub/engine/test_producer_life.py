"""A Producer's first send, its daemon that is away or refuses it, and its end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from client_stub import Producer, errors
from client_stub.contract.wire import Kind, Persistence
from client_stub.io.io_thread import IoThread
from client_stub.outbox.outbox import Outbox
from client_stub.session.session import Session
from client_stub.session.streams import Streams
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon


def test_no_daemon_names_the_path_and_the_command(run_dir: Path) -> None:
    producer = Producer(run_dir, connect_timeout_ms=200)
    with pytest.raises(errors.DaemonUnreachable) as caught:
        producer.send("t", b"v")
    assert f"{run_dir}/control.sock" in str(caught.value)
    assert "kafka-sidecar run" in str(caught.value)
    assert caught.value.retriable
    producer.close()


def test_a_stale_socket_of_a_dead_daemon_is_no_daemon(run_dir: Path) -> None:
    import socket

    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(run_dir / "control.sock"))
    dead.close()
    producer = Producer(run_dir, connect_timeout_ms=200)
    with pytest.raises(errors.DaemonUnreachable, match="kafka-sidecar run"):
        producer.send("t", b"v")
    producer.close()


def test_a_daemon_that_starts_meanwhile_is_found(run_dir: Path) -> None:
    producer = Producer(run_dir)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(producer.send("t", b"v").result(10)))
    thread.start()
    eventually(lambda: producer._engine.outbox.waiters.reasons.last_word)
    daemon = FakeDaemon(run_dir)
    thread.join(10)
    assert results[0].offset == 0
    producer.close()
    daemon.stop()


def test_the_error_of_a_refused_client_has_the_reason(run_dir: Path) -> None:
    daemon = FakeDaemon(run_dir)
    daemon.refuse_hello = ("NOT_ADMITTED", 'Client "x" needs the token.')
    producer = Producer(run_dir, "x")
    with pytest.raises(errors.DaemonRefused, match="needs the token") as caught:
        producer.send("t", b"v")
    assert caught.value.name == "NOT_ADMITTED"
    producer.close()
    daemon.stop()


@pytest.mark.parametrize("refused", ["producer", "topic"])
def test_after_a_refusal_the_producer_takes_no_more_records(
    daemon: FakeDaemon, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's next task asks at once, before the io thread has passed the refusal on to senders."""
    may_pass = threading.Event()
    publish = IoThread._publish_state

    def late(io: IoThread) -> None:
        if io.is_refused:
            assert may_pass.wait(10)
        publish(io)

    monkeypatch.setattr(IoThread, "_publish_state", late)
    daemon.deliver = None
    producer = Producer(daemon.run_dir)
    sent = producer.send("t", b"v")
    eventually(lambda: daemon.received)
    if refused == "producer":
        daemon.refuse_hello = ("MALFORMED_FRAME", "it cannot be read")
        daemon.kill_worker()
    else:
        client, (submit,) = daemon.only_client, daemon.received
        daemon.do(lambda: daemon.tell(client, [Kind.REFUSED, "TOPIC_LIMIT", "too many", submit.stream]))
    eventually(sent.done)
    assert isinstance(sent.exception(0), errors.DeliveryFailed)
    takes_records = producer.takes_records
    may_pass.set()
    assert not takes_records
    eventually(lambda: not producer._engine.io.is_refused or producer._engine.outbox.fatal)  # type: ignore[union-attr]
    assert not producer.takes_records
    producer.close(0)


@pytest.mark.rule("S2")
def test_close_delivers_says_goodbye_and_is_idempotent(daemon: FakeDaemon) -> None:
    producer = Producer(daemon.run_dir)
    deliveries = [producer.send("t", b"v") for _ in range(101)]
    producer.close()
    assert deliveries[-1].result(0).offset == 100
    assert eventually(lambda: daemon.byes) == [False]
    producer.close()
    with pytest.raises(errors.ProducerClosed, match="after producer has been closed"):
        producer.send("t", b"v")
    with pytest.raises(ValueError, match="cannot be negative"):
        Producer(daemon.run_dir).close(-1)


def test_close_meets_an_io_thread_that_has_just_ended(daemon: FakeDaemon) -> None:
    """Found with a hundred producers: the thread saw the wish to end before it was woken for it, and ended. Then
    close() wrote to a descriptor that was closed, or somebody else's by then."""
    producer = Producer(run_dir=str(daemon.run_dir))
    producer.send("t", b"x").result(timeout=10)
    io = producer._engine.io
    assert io is not None
    io.abandon()
    io.join(10)
    producer.close()


def test_a_first_send_that_meets_a_close_leaves_no_thread_behind(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has found the producer open, and another thread closes it before there is an io thread to end."""
    producer = Producer(daemon.run_dir)
    start = producer._engine._start

    def close_and_start(outbox: Outbox) -> None:
        producer.close()
        start(outbox)

    monkeypatch.setattr(producer._engine, "_start", close_and_start)
    with pytest.raises(errors.ProducerClosed):
        producer.send("t", b"1")
    io = producer._engine.io
    assert io is not None
    eventually(lambda: io.has_ended)


def test_close_0_fails_what_is_not_delivered_and_says_what_may_be(daemon: FakeDaemon) -> None:
    daemon.deliver = None
    producer = Producer(daemon.run_dir)
    told: list[Any] = []
    sent = producer.send("t", b"v", on_delivery=lambda e, m: told.append(e))
    eventually(lambda: daemon.received)
    producer.close(0)
    with pytest.raises(errors.DeliveryCancelled, match="may still deliver") as caught:
        sent.result(0)
    assert caught.value.persistence is Persistence.POSSIBLY_PERSISTED
    assert told == [caught.value]
    assert eventually(lambda: daemon.byes) == [True]


def test_each_call_gets_the_fatal_error_with_its_own_number(producer: Producer, daemon: FakeDaemon) -> None:
    """Two calls wait for room in the middle when the daemon turns the client away."""
    producer.send("t", b"v").result(10)
    daemon.accept = lambda client, submit: False
    told: dict[str, errors.SidecarError] = {}

    def send_many(topic: str) -> None:
        try:
            producer.send_many(topic, [(None, bytes(500_000))] * 40)
        except errors.SidecarError as error:
            told[topic] = error

    threads = [threading.Thread(target=send_many, args=(topic,)) for topic in ("a", "b")]
    for thread in threads:
        thread.start()
    eventually(lambda: len(producer._engine.outbox.waiters._locks) == 2)
    daemon.refuse_hello = ("MALFORMED_FRAME", "it cannot be read")
    daemon.kill_worker()
    for thread in threads:
        thread.join(10)
    assert [error.name for error in told.values()] == ["MALFORMED_FRAME"] * 2
    began = [error for error in told.values() if error.queued is not None]
    assert began, "the first of them had room"
    for error in began:
        assert error.queued is not None
        assert str(error).count("of this call are queued") == 1
        assert f"(The first {error.queued.count} records of this call" in str(error)
    assert "of this call" not in str(producer._engine.outbox.fatal)


def test_a_bug_in_the_io_thread_leaves_no_caller_waiting(
    producer: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that the end of the thread meets again: callers then waited for ever."""

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    daemon.deliver = None
    delivery = producer.send("t", b"accepted")
    producer.flush(10, until="accepted")
    monkeypatch.setattr(Session, "receive_worker", fail)
    monkeypatch.setattr(Streams, "fail_all", fail)
    daemon.do(daemon.deliver_log)
    with pytest.raises(errors.DaemonLost, match="io thread failed: RuntimeError"):
        delivery.result(10)
    with pytest.raises(errors.SidecarError, match="create a new Producer"):
        producer.send("t", b"late")
    assert producer.flush(10) == 1
    producer.close()


def test_a_producer_that_begins_during_a_wrong_reload_fails_at_once_and_continues_after_it(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was started in these two seconds raised DaemonRefused for its whole life."""
    monkeypatch.setattr("client_stub.session.backoff.REFUSED_FIRST_MS", 20.0)
    daemon = FakeDaemon(run_dir)
    daemon.refuse_hello = ("NOT_ADMITTED", "it is not admitted.")
    producer = Producer(run_dir, "x")
    for _ in range(3):
        with pytest.raises(errors.DaemonRefused, match="it is not admitted"):
            producer.send("t", b"v")
    daemon.refuse_hello = None

    def sent() -> bool:
        try:
            return producer.send("t", b"v").result(10).offset == 0
        except errors.DaemonRefused:
            return False

    eventually(sent)
    producer.close()
    daemon.stop()
