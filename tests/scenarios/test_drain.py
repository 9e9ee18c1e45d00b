"""Whose turn it is: AC-05 with one request in flight a broker and room for one batch in a request."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sidecar.tools.testing.fault_rules import on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.waiting import wait_until

from .harness import OUTCOME_S, Harness, Sender

pytestmark = [pytest.mark.process]

LEADER_NOT_AVAILABLE = 5
RECORD_BYTES = 700
RETRY_MS = 1_500
ROUNDS = 6
SETTINGS = {
    "daemon.connections_per_broker": 1,  # the order in which two connections' requests arrive is nobody's
    "batch.size": 500,
    "daemon.batch_growth_bytes": 0,
    "max.request.size": 1_024,
    "max.in.flight.requests.per.connection": 1,
    "retry.backoff.ms": RETRY_MS,
    "retry.backoff.max.ms": RETRY_MS,
}


def order_of(harness: Harness, topic: str, node: int, skip: int = 0) -> list[int]:
    """The partitions of one broker's requests, one batch each."""
    found = [request for request in harness.produced(topic)[skip:] if request.node == node]
    assert all(len(request.batches) == 1 for request in found), "a request has room for one batch"
    return [request.batches[0].partition for request in found]


def fill_while_held(harness: Harness, sender: Sender, rounds: int) -> None:
    """All four queues are full behind one unanswered request a broker; then the answers come."""
    seen, before = len(harness.produced(sender.topic)), harness.accepted()
    held = [
        harness.kafka.add(on(Api.PRODUCE, topic=sender.topic, node=node).hold_answer()) for node in (1, 2)
    ]
    for partition in (0, 1):
        sender.send(partition, size=RECORD_BYTES)
    for rule in held:
        rule.wait()
    for number in range(4 * rounds):
        sender.send((number + 2) % 4, size=RECORD_BYTES)
    wait_until(lambda: harness.accepted() == before + 2 + 4 * rounds, "all to stand in their queues")
    assert len(harness.produced(sender.topic)) == seen + 2
    for rule in held:
        rule.release()


def test_ac_05_drain_continues_where_it_stopped(harness: Harness) -> None:
    """AC-05: two partitions a broker, both always full: they take turns, and no broker waits for the other."""
    topic, sender = harness.primed(4)
    with sender:
        seen = len(harness.produced(topic))
        fill_while_held(harness, sender, ROUNDS)
        assert all(outcome.error is None for outcome in sender.outcomes())
        harness.balance(sender)
    for node, partitions in ((1, {0, 2}), (2, {1, 3})):
        order = order_of(harness, topic, node, seen)[: 2 * ROUNDS]
        assert set(order) == partitions
        # The first of a broker was sent while the other queue was empty; from then on they take turns.
        assert all(before != after for before, after in pairwise(order[1:])), order


def test_ac_05_a_partition_that_waits_is_skipped(harness: Harness) -> None:
    """AC-05: while a partition waits for its retry the other of its broker is drained; no head-of-line blocking."""
    topic, sender = harness.primed(4)
    with sender:
        seen = len(harness.produced(topic))
        refused = harness.kafka.add(on(Api.PRODUCE, topic=topic, partition=2).refuse(LEADER_NOT_AVAILABLE))
        sender.send(2, size=RECORD_BYTES)
        refused.wait()
        for _ in range(ROUNDS):
            sender.send(2, size=RECORD_BYTES)
            sender.send(0, size=RECORD_BYTES)
        others = sender.deliveries[-1]
        assert others.exception(OUTCOME_S) is None
        assert order_of(harness, topic, 1, seen) == [2, *[0] * ROUNDS]
        assert all(outcome.error is None for outcome in sender.outcomes())
        harness.balance(sender)
    requests = [request for request in harness.produced(topic)[seen:] if request.node == 1]
    first, again = [request.at_s for request in requests if request.batches[0].partition == 2][:2]
    assert again - first >= RETRY_MS / 1_000 * 0.8  # its jitter
