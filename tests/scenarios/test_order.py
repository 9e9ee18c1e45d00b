"""Order without idempotence: SN-03 with one request in flight on the fake broker, which keeps no sequences then."""

from __future__ import annotations

import pytest

from client_stub import errors
from sidecar.tools.testing.fault_rules import Rule, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.waiting import wait_until

from .harness import Harness, Sender

pytestmark = [pytest.mark.process]

A, B = 1, 2
SETTINGS = {
    "enable.idempotence": "false",
    "max.in.flight.requests.per.connection": 1,
    "metadata.max.age.ms": 100,
    "delivery.timeout.ms": 3_000,
    "request.timeout.ms": 3_000,
}
REFRESHES = 5
"""So many metadata.max.age.ms lie between the two records, and the daemon knows the new leader."""


def hung(harness: Harness) -> tuple[Sender, Rule]:
    """Record 1 of partition 0 hangs on its way to A, B leads by now, and record 2 is ready."""
    topic, sender = harness.primed(2)
    harness.kafka.move_leader(topic, 1, B)
    hang = harness.kafka.add(on(Api.PRODUCE, topic=topic, partition=0, node=A).hold())
    sender.send(0)
    hang.wait()
    harness.kafka.move_leader(topic, 0, B)
    asked = len(harness.kafka.requests(Api.METADATA))
    wait_until(
        lambda: len(harness.kafka.requests(Api.METADATA)) >= asked + REFRESHES, "metadata to be asked for"
    )
    sender.send(0)
    # Later records of another partition arrive at B: whatever might be sent there of partition 0 was sent.
    for _ in range(3):
        sender.send(1).result(10)
    return sender, hang


def at_b(harness: Harness, topic: str) -> list[int]:
    """How many records each batch of partition 0 had that B was sent."""
    return [
        batch.header.record_count
        for request in harness.produced(topic)
        if request.node == B
        for batch in request.batches
        if batch.partition == 0
    ]


def test_sn_03_the_second_waits_for_the_first(harness: Harness) -> None:
    """SN-03: batch 2 is not sent to the new leader while batch 1 is unsettled at the old one; then 1, then 2."""
    sender, hang = hung(harness)
    with sender:
        assert at_b(harness, sender.topic) == []
        hang.release()
        outcomes = sender.outcomes()
        assert [outcomes[number].offset for number in (0, 2, 3)] == [0, 1, 2]
        harness.balance(sender)
    assert at_b(harness, sender.topic) == [1, 1]


def test_sn_03_the_first_expires(harness: Harness) -> None:
    """SN-03: batch 1 runs out of delivery.timeout.ms where it hangs, possibly persisted: batch 2 goes after it."""
    sender, hang = hung(harness)
    with sender:
        error = sender.deliveries[2].exception(10)
        assert isinstance(error, errors.DeliveryTimeout)
        assert error.persistence == 1
        assert sender.deliveries[3].result(10).offset == 1
        hang.release()
        sender.send(0)
        assert sender.outcomes()[-1].offset == 2
        harness.balance(sender)
    assert [each.offset for each in harness.kafka.records(sender.topic, 0)] == [0, 1, 2]
