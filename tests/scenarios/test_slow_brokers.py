"""One broker of two that does not answer: BF-02 and RF-11 on the fake broker."""

from __future__ import annotations

import pytest

from sidecar.testing.fault_rules import ALWAYS, on
from sidecar.testing.kafka_frames import Api
from sidecar.testing.waiting import ConditionTimeout, wait_until

from .scene import Scene

pytestmark = [pytest.mark.process]

SETTINGS = {
    "request.timeout.ms": 1_000,
    "socket.connection.setup.timeout.ms": 1_000,
    "delivery.timeout.ms": 30_000,
    "batch.size": 1_000,
    "daemon.batch_growth_bytes": 0,
    "partitioner.availability.timeout.ms": 100,
}


def test_bf_02_a_broker_that_hears_nothing(scene: Scene) -> None:
    """BF-02: a broker is stopped for longer than a request may take, twice: records for the other one go on all the
    while; when it is back everything is there once and in order."""
    topic, sender = scene.primed(2)
    nodes = {partition: request.node for request in scene.produced(topic) for _, partition in request.codes}
    with sender:
        scene.kafka.stop_reading(nodes[0])
        for _ in range(20):
            sender.send(0)
        # Given up after request.timeout.ms, and once more on the next connection.
        first = set(scene.kafka.connections(nodes[0]))
        seen: set[int] = set()

        def given_up_twice() -> bool:
            sender.send(1)
            sender.deliveries[-1].result(10)
            seen.update(scene.kafka.connections(nodes[0]))
            return len(seen - first) >= 2

        wait_until(given_up_twice, "two new connections")
        scene.kafka.read_again(nodes[0])
        assert all(outcome.error is None for outcome in sender.outcomes())
        scene.balance(sender)


def test_rf_11_keyless_records_avoid_a_broker_that_hangs(scene: Scene) -> None:
    """RF-11: keyless records go to the other broker's partitions once it has not taken a batch for
    partitioner.availability.timeout.ms; none is lost."""
    _topic, sender = scene.primed(4)
    with sender:
        held = scene.kafka.add(on(Api.PRODUCE, node=1, times=ALWAYS).hold_answer())

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
        scene.balance(sender)
