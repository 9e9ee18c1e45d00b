"""Closing while something is under way: FC-06 without its transactional parts, ID-10 while closing."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from client_stub import errors
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

from .harness import FAST, METRIC, Harness, sequences

pytestmark = [pytest.mark.process]

COORDINATOR_LOADING, OUT_OF_ORDER, CLUSTER_AUTHORIZATION_FAILED = 14, 45, 31
EPOCH_MAX = 32_767
STOP_S = 15.0


@pytest.fixture
def alone(start_daemon: StartDaemon) -> Iterator[Harness]:
    """A daemon of the test's own, which it stops; its drain may take long."""
    with FakeBroker() as kafka:
        settings = {**FAST, "daemon.shutdown_timeout_s": 10}
        yield Harness(kafka, start_daemon(kafka.bootstrap_servers, settings=settings))
        kafka.clear_rules()


def stop(harness: Harness, accepted: int) -> None:
    """Ask the daemon to end once it has accepted so many records (what it has not taken stays with the stub); returns
    at once."""
    wait_until(
        lambda: metric(harness.daemon, f"{METRIC}records_accepted_total") >= accepted,
        f"{accepted} accepted records",
    )
    assert harness.daemon.process is not None
    harness.daemon.process.send_signal(signal.SIGTERM)


def ended(harness: Harness) -> int:
    """Its exit status, once it has ended by itself."""
    assert harness.daemon.process is not None
    status = harness.daemon.process.wait(STOP_S)
    assert "did not finish draining" not in harness.daemon.log_path.read_text()
    return status


def test_fc_06_close_0_with_records_under_way(harness: Harness) -> None:
    """FC-06: close(0) tells every pending record at once: what the daemon has as possibly persisted. It is still
    delivered, and another producer is none the worse."""
    topic, sender = harness.primed()
    held = harness.kafka.add(on(Api.PRODUCE, topic=topic).hold())
    for _ in range(100):
        sender.send()
    held.wait()
    sender.producer.close(0)
    assert all(delivery.done() for delivery in sender.deliveries)
    for outcome in sender.outcomes()[1:]:
        assert isinstance(outcome.error, errors.DeliveryCancelled)
    accepted = [o.error is not None and o.error.persistence == 1 for o in sender.outcomes()[1:]]
    assert accepted[0]
    assert accepted == sorted(accepted, reverse=True)
    with pytest.raises(errors.ProducerClosed):
        sender.producer.send(topic, b"late")
    held.release()
    with harness.sender(topic) as after:
        after.send()
        after.offsets()
        wait_until(
            lambda: len(harness.kafka.records(topic)) == 2 + sum(accepted),
            "what was accepted to be delivered",
        )
        harness.balance(sender, after)


def test_fc_06_close_while_no_producer_id_comes(harness: Harness) -> None:
    """FC-06: InitProducerId finds its coordinator loading for ever: close(1) ends at its limit and tells every
    record; when the coordinator is there the daemon delivers its records."""
    topic = harness.new_topic()
    loading = harness.kafka.add(on(Api.INIT_PRODUCER_ID, times=ALWAYS).refuse(COORDINATOR_LOADING))
    harness.replace_worker()
    sender = harness.sender(topic)
    for _ in range(10):
        sender.send()
    loading.wait(2)
    begun = time.monotonic()
    sender.producer.close(1)
    assert time.monotonic() - begun >= 1
    for outcome in sender.outcomes():
        assert isinstance(outcome.error, errors.DeliveryCancelled)
        assert outcome.error.persistence == 1
    assert not harness.produced(topic)
    loading.remove()
    wait_until(lambda: len(harness.kafka.records(topic)) == 10, "the daemon to deliver what it has")
    harness.balance(sender)


def test_fc_06_close_in_error(harness: Harness) -> None:
    """FC-06: nobody may be idempotent here: the records fail by name, and close ends without its own limit."""
    topic = harness.new_topic()
    denied = harness.kafka.add(on(Api.INIT_PRODUCER_ID, times=ALWAYS).refuse(CLUSTER_AUTHORIZATION_FAILED))
    harness.replace_worker()
    sender = harness.sender(topic)
    for _ in range(10):
        sender.send()
    sender.producer.close(STOP_S)
    for outcome in sender.outcomes():
        assert isinstance(outcome.error, errors.ClusterAuthorizationFailed)
        assert outcome.error.persistence == 0
    denied.remove()
    harness.balance(sender)


def test_fc_06_the_daemon_stops_while_no_producer_id_comes(start_daemon: StartDaemon) -> None:
    """FC-06: the same with the daemon's own stop: at daemon.shutdown_timeout_s all are told, none persisted."""
    with FakeBroker({"t": 1}) as kafka:
        kafka.add(on(Api.INIT_PRODUCER_ID, times=ALWAYS).hold())
        settings = {**FAST, "daemon.shutdown_timeout_s": 0.5}
        harness = Harness(kafka, start_daemon(kafka.bootstrap_servers, settings=settings))
        with harness.sender("t") as sender:
            for _ in range(10):
                sender.send()
            wait_until(lambda: kafka.requests(Api.INIT_PRODUCER_ID), "InitProducerId")
            stop(harness, 10)
            for outcome in sender.outcomes():
                assert isinstance(outcome.error, errors.DeliveryAborted)
                assert outcome.error.persistence == 0
            assert ended(harness) == 1
        kafka.clear_rules()
        assert not harness.produced("t")


def exhausted(harness: Harness) -> str:
    """A topic whose producer stands at the last epoch."""
    harness.kafka.next_identity = (77_000, EPOCH_MAX)
    harness.replace_worker()
    topic = harness.new_topic()
    with harness.sender(topic) as first:
        first.send()
        first.offsets()
    assert sequences(harness.produced(topic)) == [(EPOCH_MAX, 0)]
    return topic


def test_id_10_epochs_run_out_while_closing(alone: Harness) -> None:
    """ID-10: a bump is due at epoch 32767 while the daemon drains: a new producer id, all is delivered under it."""
    topic = exhausted(alone)
    with alone.sender(topic) as sender:
        asked = len(alone.kafka.requests(Api.INIT_PRODUCER_ID))
        refused = alone.kafka.add(on(Api.PRODUCE, topic=topic).refuse(OUT_OF_ORDER).hold_answer())
        for _ in range(50):
            sender.send()
        refused.wait()
        stop(alone, 51)
        wait_until(lambda: alone.daemon.info()["state"] == "draining", "the drain to begin")
        refused.release()
        assert sender.offsets() == list(range(1, 51))
        assert ended(alone) == 0
    assert len(alone.kafka.requests(Api.INIT_PRODUCER_ID)) == asked + 1
    last = alone.kafka.batches(topic)[-1].header
    assert (last.producer_id != 77_000, last.epoch) == (True, 0)
    assert not alone.kafka.bad_batches


def test_id_10_epochs_run_out_while_force_closing(alone: Harness) -> None:
    """ID-10: the same, but the new id never comes, and a second SIGTERM forces: told as not persisted, and it ends."""
    topic = exhausted(alone)
    with alone.sender(topic) as sender:
        asked = len(alone.kafka.requests(Api.INIT_PRODUCER_ID))
        refused = alone.kafka.add(on(Api.PRODUCE, topic=topic).refuse(OUT_OF_ORDER).hold_answer())
        alone.kafka.add(on(Api.INIT_PRODUCER_ID, times=ALWAYS).hold())
        sender.send()
        refused.wait()
        stop(alone, 2)
        wait_until(lambda: alone.daemon.info()["state"] == "draining", "the drain to begin")
        refused.release()
        wait_until(
            lambda: len(alone.kafka.requests(Api.INIT_PRODUCER_ID)) == asked + 1, "a new id to be asked for"
        )
        alone.daemon.force()
        (told,) = sender.outcomes()
        assert isinstance(told.error, errors.DeliveryAborted)
        assert told.error.persistence == 0
        assert ended(alone) == 1
    assert len(alone.kafka.records(topic)) == 1
