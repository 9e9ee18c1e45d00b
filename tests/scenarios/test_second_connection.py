"""A daemon whose connection to a broker is full, and the second one that it makes (daemon.connections_per_broker)."""

from __future__ import annotations

import pytest

from sidecar.tools.testing.fault_rules import Rule, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.waiting import wait_until

from .harness import Harness, Sender

pytestmark = [pytest.mark.process]

NODE = 1
PARTITIONS = 4
SETTINGS = {
    "batch.size": 500,
    "daemon.batch_growth_bytes": 0,
    "max.request.size": 1_024,
    "max.in.flight.requests.per.connection": 2,
}


def led_by_one(harness: Harness) -> tuple[str, Sender]:
    """A topic of one broker, on which nothing is in flight: everything went by one connection so far."""
    topic = harness.new_topic(PARTITIONS)
    for partition in range(PARTITIONS):
        harness.kafka.move_leader(topic, partition, NODE)
    sender = harness.sender(topic)
    for partition in range(PARTITIONS):
        sender.send(partition)
    sender.offsets()
    return topic, sender


def connections_of(harness: Harness, topic: str, skip: int = 0) -> list[int]:
    return [request.connection for request in harness.produced(topic)[skip:]]


def fill_first(harness: Harness, topic: str, sender: Sender) -> tuple[Rule, int]:
    """The one connection is full with a record of partition 0 and one of 1, whose answers are held back, and then much
    comes for all partitions. The rule, and a partition that goes by the second connection by now."""
    begun = len(harness.produced(topic))
    (first,) = set(connections_of(harness, topic))
    held = harness.kafka.add(on(Api.PRODUCE, topic=topic, partition=0).hold_answer())
    for partition in (0, 1):
        sender.send(partition, size=400)
        harness.wait_produced(topic, begun + partition + 1)
    for number in range(20 * PARTITIONS):
        sender.send(number % PARTITIONS, size=400)

    def by_second() -> list[int]:
        requests = harness.produced(topic)[begun:]
        return [request.batches[0].partition for request in requests if request.connection != first]

    return held, wait_until(by_second, "requests by a second connection")[0]


def test_half_go_by_the_second_until_nothing_is_in_flight(harness: Harness) -> None:
    """One connection that hangs holds up half of the partitions; in the end one is used, as before."""
    topic, sender = led_by_one(harness)
    with sender:
        (first,) = set(connections_of(harness, topic))
        held, partition = fill_first(harness, topic, sender)
        of_second = sender.deliveries[PARTITIONS + 2 + partition :: PARTITIONS]
        wait_until(lambda: all(delivery.done() for delivery in of_second), "half to be delivered meanwhile")
        assert not all(delivery.done() for delivery in sender.deliveries)
        held.release()
        sender.outcomes()
        assert len(set(connections_of(harness, topic))) == 2
        seen = len(harness.produced(topic))
        for partition in range(PARTITIONS):
            sender.send(partition)
        assert all(outcome.error is None for outcome in sender.outcomes())
        assert set(connections_of(harness, topic, seen)) == {first}
        harness.balance(sender)


def test_requests_on_a_cut_second_connection_are_sent_again(harness: Harness) -> None:
    """Its answers are lost with it: nothing is doubled, and the order stands."""
    topic, sender = led_by_one(harness)
    with sender:
        held, partition = fill_first(harness, topic, sender)
        cut = harness.kafka.add(on(Api.PRODUCE, topic=topic, partition=partition, times=3).cut_answer())
        for _ in range(20):
            sender.send(partition, size=400)
        wait_until(lambda: cut.hits >= 1, "a request whose answer is lost")
        held.release()
        assert all(outcome.error is None for outcome in sender.outcomes())
        harness.balance(sender)
