"""Flush and close: FC-01, FC-03, FC-04, FC-07 with a linger that nobody lives to see."""

from __future__ import annotations

import signal
import threading

import pytest

from client_stub import errors
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api

from .harness import FAST, Harness, Sender

pytestmark = [pytest.mark.process]

UNDER_WAY = 4_000
SETTINGS = {"linger.ms": 60_000, "batch.size": 65_536, 'topics."quick-*".linger.ms': 0}


def flushed(harness: Harness) -> tuple[str, Sender]:
    """A topic that the daemon knows, and the sender of its first record."""
    topic = harness.new_topic()
    sender = harness.sender(topic)
    sender.send()
    sender.producer.close(20)
    assert sender.offsets() == [0]
    return topic, sender


def test_fc_01_flush_ends_linger(harness: Harness) -> None:
    """FC-01: 50 rounds of 100 sends and a flush: nothing is done before it, all is done after it."""
    topic, first = flushed(harness)
    with harness.sender(topic) as sender:
        for _ in range(50):
            begun = len(sender.deliveries)
            for _ in range(100):
                sender.send()
            assert not any(delivery.done() for delivery in sender.deliveries[begun:])
            sender.producer.flush(20)
            assert all(delivery.done() for delivery in sender.deliveries)
        harness.balance(first, sender)


def test_fc_03_flush_is_not_starved(harness: Harness) -> None:
    """FC-03: others send without pause; flush waits only for what was sent before it."""
    (topic, first), (busy, second) = flushed(harness), flushed(harness)
    stop = threading.Event()
    with harness.sender(topic) as sender, harness.sender(busy) as other:

        def send_on() -> None:
            while not stop.is_set():
                other.send(size=100)
                if len(other.deliveries) > UNDER_WAY:  # several full batches are always under way
                    other.deliveries[-UNDER_WAY].exception(20)

        thread = threading.Thread(target=send_on)
        thread.start()
        try:
            for number in range(1, 6):
                sender.send()
                sender.producer.flush(10)
                assert len(sender.offsets()) == number
            assert thread.is_alive()
        finally:
            stop.set()
            thread.join()
        other.producer.flush(20)
        harness.balance(first, second, sender, other)


def test_fc_03_an_abandoned_flush_leaves_no_state(harness: Harness) -> None:
    """FC-03: flush runs out of patience and is called again; later records linger as before."""
    topic, first = flushed(harness)
    with harness.sender(topic) as sender:
        held = harness.kafka.add(on(Api.PRODUCE, topic=topic).hold_answer())
        sender.send()
        with pytest.raises(TimeoutError):
            sender.producer.flush(0.05)
        held.wait()
        held.release()
        sender.producer.flush(10)
        assert sender.deliveries[0].done()
        sender.send()
        # Others come and go; ours still lingers. (What lingers no longer than ours would take ours along.)
        harness.kafka.create_topic("quick-1", 1)
        with harness.sender("quick-1") as other:
            other.send()
            other.producer.flush(10)
        assert not sender.deliveries[1].done()
        sender.producer.flush(10)
        assert sender.offsets() == [1, 2]
        harness.balance(first, sender)


def test_fc_04_close(harness: Harness) -> None:
    """FC-04: close returns after all acks; again it does nothing; a negative patience is refused; no send after it."""
    topic = harness.new_topic()
    sender = harness.sender(topic)
    for _ in range(101):
        sender.send()
    with pytest.raises(ValueError, match="negative"):
        sender.producer.close(-100)
    sender.producer.close()
    assert all(delivery.done() for delivery in sender.deliveries)
    assert sender.offsets() == list(range(101))
    sender.producer.close()
    with pytest.raises(errors.ProducerClosed):
        sender.producer.send(topic, b"late")
    harness.balance(sender)


def test_fc_07_stop_with_brokers_gone(start_daemon: StartDaemon) -> None:
    """FC-07: the daemon is stopped with records under way and others behind them, and no broker answers. Each record
    has one outcome, with the reason, and those on the wire are possibly persisted."""
    with FakeBroker({"t": 1}) as kafka:
        settings = {
            **FAST,
            "daemon.shutdown_timeout_s": 0.5,
            "batch.size": 1_000,
            "daemon.batch_growth_bytes": 0,
        }
        harness = Harness(kafka, start_daemon(kafka.bootstrap_servers, settings=settings))
        with harness.sender("t") as sender:
            sender.send()
            sender.offsets()
            kafka.add(on(Api.PRODUCE, times=ALWAYS).hold())
            for _ in range(200):
                sender.send(size=400)
            # Records not accepted by then would wait for a successor, without an outcome.
            sender.producer.flush(20, until="accepted")
            harness.wait_produced("t", 2)
            assert harness.daemon.process is not None
            harness.daemon.process.send_signal(signal.SIGTERM)
            told = sender.outcomes()[1:]
            assert {type(outcome.error) for outcome in told} == {errors.DeliveryAborted}
            doubtful = [outcome.error is not None and outcome.error.persistence == 1 for outcome in told]
            assert doubtful[0]
            assert not doubtful[-1]
            assert doubtful == sorted(doubtful, reverse=True)
            harness.daemon.process.wait(15)
            # Nobody is left to be told: the worker ended by itself, not by the supervisor's patience.
            assert "did not finish draining" not in harness.daemon.log_path.read_text()
            kafka.clear_rules()
