"""One broker of two that does not answer: BF-02 and RF-11 on the fake broker."""

from __future__ import annotations

import pytest

from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import ConditionTimeout, wait_until

from .harness import Harness, Sender

pytestmark = [pytest.mark.process]

SETTINGS = {
    "request.timeout.ms": 1_000,
    "socket.connection.setup.timeout.ms": 1_000,
    "delivery.timeout.ms": 30_000,
    "batch.size": 1_000,
    "daemon.batch_growth_bytes": 0,
    "partitioner.availability.timeout.ms": 100,
}


def test_bf_02_a_broker_that_hears_nothing(harness: Harness) -> None:
    """BF-02: a broker is stopped for longer than a request may take, twice. Records for the other one go on all the
    while; when it is back everything is there once and in order."""
    topic, sender = harness.primed(2)
    nodes = {partition: request.node for request in harness.produced(topic) for _, partition in request.codes}
    with sender:
        harness.kafka.stop_reading(nodes[0])
        for _ in range(20):
            sender.send(0)
        # Given up after request.timeout.ms, and once more on the next connection.
        first = set(harness.kafka.connections(nodes[0]))
        seen: set[int] = set()

        def given_up_twice() -> bool:
            sender.send(1)
            sender.deliveries[-1].result(10)
            seen.update(harness.kafka.connections(nodes[0]))
            return len(seen - first) >= 2

        wait_until(given_up_twice, "two new connections")
        harness.kafka.read_again(nodes[0])
        assert all(outcome.error is None for outcome in sender.outcomes())
        harness.balance(sender)


def test_rf_11_keyless_records_avoid_a_broker_that_hangs(harness: Harness) -> None:
    """RF-11: keyless records go to the other broker's partitions once it has not taken a batch for
    partitioner.availability.timeout.ms; none is lost."""
    _topic, sender = harness.primed(4)
    with sender:
        held = harness.kafka.add(on(Api.PRODUCE, node=1, times=ALWAYS).hold_answer())

        def round_without_it() -> bool:
            begun = len(sender.deliveries)
            for _ in range(200):
                sender.send(None, size=500)
            probes = sender.deliveries[begun:]
            try:
                wait_until(lambda: all(probe.done() for probe in probes), "this round", timeout_s=0.3)
            except ConditionTimeout:
                return False
            return True

        wait_until(round_without_it, "a round without the broker that hangs")
        assert held.hits
        held.remove()
        assert all(outcome.error is None for outcome in sender.outcomes())
        harness.balance(sender)


def test_a_broker_that_gives_no_producer_id_holds_up_nobody() -> None:
    """The broker that is asked first does not answer. Java waits for it until request.timeout.ms; here the others are
    asked after a second."""
    with FakeBroker({"t": 3}, nodes=3) as kafka:
        held = kafka.add(on(Api.INIT_PRODUCER_ID).hold())
        settings = {"daemon.workers": 1, "request.timeout.ms": 60_000, "linger.ms": 0}
        with (
            SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon,
            Sender(daemon, "t") as sender,
        ):
            held.wait()
            (asked,) = kafka.requests(Api.INIT_PRODUCER_ID)
            silent = asked.node - 1  # the partition that it leads
            for partition in range(3):
                sender.send(partition)
            for partition in {0, 1, 2} - {silent}:
                sender.deliveries[partition].result(20)
            held.release()
            assert all(outcome.error is None for outcome in sender.outcomes())


MIB = 1 << 20


def test_brokers_that_read_nothing_leave_a_request_buffer_to_the_others() -> None:
    """Two stopped brokers could hold both of the largest requests that fit into the buffers until they time out. The
    one that has taken no byte longest is closed for the third, and loses nothing by it."""
    with FakeBroker({"t": 3}, nodes=3, message_bytes_max=64 * MIB) as kafka:
        settings = {
            "daemon.workers": 1,
            "linger.ms": 0,
            "max.request.size": 32 * MIB,
            "buffer.memory": 192 * MIB,
            "request.timeout.ms": 60_000,
        }
        with (
            SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon,
            Sender(daemon, "t") as sender,
        ):
            for partition in range(3):
                sender.send(partition).result(20)
            kafka.stop_reading(1)
            kafka.stop_reading(2)
            for partition in (0, 1):
                sender.send(partition, size=20 * MIB)
            wait_until(lambda: requests_in_flight(daemon) == 2, "both to be on their way")
            sender.send(2, size=20 * MIB).result(20)
            kafka.read_again(1)
            kafka.read_again(2)
            assert all(outcome.error is None for outcome in sender.outcomes())
            assert [len(kafka.records("t", partition)) for partition in range(3)] == [2, 2, 2]


def requests_in_flight(daemon: SidecarDaemon) -> float:
    return metric(daemon, "kafka_sidecar_in_flight_requests")
