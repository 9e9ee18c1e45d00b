"""When a batch leaves: AC-02, AC-03, AC-04 on the fake broker, whose log says when each request came.

Times have lower bounds that must hold, and upper ones far enough off for a busy machine.
"""

from __future__ import annotations

import time

import pytest

from sidecar.tools.testing.fault_rules import on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

from .harness import METRIC, OUTCOME_S, Harness

pytestmark = [pytest.mark.process]

LINGER_DEFAULT_MS = 5
LATE_MS = 400.0
"""How much later than due the quickest of some records may be."""
FOREVER_MS = 60_000
"""A linger that no test waits for: what leaves did not wait for it."""
BATCH_BYTES = 2_000
SETTINGS = {
    "linger.ms": LINGER_DEFAULT_MS,
    "daemon.batch_growth_bytes": 0,
    'topics."none-*".linger.ms': 0,
    'topics."ten-*".linger.ms': 10,
    'topics."half-*".linger.ms': 500,
    'topics."three-*".linger.ms': 3_000,
    'topics."unacked-*".linger.ms': 0,
    'topics."unacked-*".acks': 0,
    'topics."plain-*".linger.ms': 100,
    'topics."plain-*".acks': 1,
    'topics."large-none".linger.ms': FOREVER_MS,
    'topics."large-none".batch.size': BATCH_BYTES,
    'topics."large-gzip".linger.ms': FOREVER_MS,
    'topics."large-gzip".batch.size': BATCH_BYTES,
    'topics."large-gzip".compression.type': "gzip",
    'topics."single-*".batch.size': 0,
}


@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "linger_ms", "records"),
    [
        ("default", LINGER_DEFAULT_MS, 10),
        ("none-1", 0, 10),
        ("ten-1", 10, 10),
        ("half-1", 500, 4),
        ("three-1", 3_000, 1),
        ("unacked-1", 0, 10),
        ("plain-1", 100, 10),
    ],
)
def test_ac_02_latency_is_linger(harness: Harness, name: str, linger_ms: int, records: int) -> None:
    """AC-02: after a primer, single records are acknowledged linger.ms after they were sent: never before, and the
    quickest not much later; a request each."""
    harness.kafka.create_topic(name, 1)
    with harness.sender(name) as sender:
        sender.send()
        sender.outcomes()
        latencies = []
        for _ in range(records):
            began = time.monotonic()
            delivery = sender.send()
            wait_until(delivery.done, "the outcome", timeout_s=OUTCOME_S, interval_s=0.001)
            assert delivery.exception(0) is None
            latencies.append((time.monotonic() - began) * 1_000)
        # With acks=0 the sender knows before the broker does.
        wait_until(lambda: len(harness.kafka.records(name)) == records + 1, "the last record to be there")
        harness.balance(sender)
    assert min(latencies) >= linger_ms
    assert min(latencies) < linger_ms + LATE_MS
    assert len(harness.produced(name)) == records + 1


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_ac_03_a_record_larger_than_a_batch(harness: Harness, codec: str) -> None:
    """AC-03: of twice batch.size, compressed or not: alone in its batch, and without linger."""
    topic = f"large-{codec}"
    harness.kafka.create_topic(topic, 2)
    with harness.sender(topic) as sender:
        for partition in (0, 1):
            sender.send(partition, size=2 * BATCH_BYTES)
        assert sender.offsets() == [0, 0], "it did not wait for linger"
        # One that lingers is closed by the large one behind it: both leave, each in a batch of its own.
        sender.send(0)
        sender.send(0, size=2 * BATCH_BYTES)
        assert sender.offsets() == [0, 0, 1, 2]
        harness.balance(sender)
    batches = [harness.kafka.batches(topic, partition) for partition in (0, 1)]
    assert [[batch.header.record_count for batch in each] for each in batches] == [[1, 1, 1], [1]]
    assert {batch.header.codec for each in batches for batch in each} <= {codec, "none"}
    assert batches[1][0].header.codec == codec


@pytest.mark.parametrize("kind", ["partition", "key", "neither"])
def test_ac_03_batch_size_0(harness: Harness, kind: str) -> None:
    """AC-03: batch.size 0: every record is a batch of its own, and none hangs."""
    topic = f"single-{kind}"
    harness.kafka.create_topic(topic, 3)
    with harness.sender(topic) as sender:
        deliveries = [
            sender.producer.send(
                topic,
                b"%d" % number,
                key=b"%d" % number if kind == "key" else None,
                partition=number % 3 if kind == "partition" else None,
            )
            for number in range(100)
        ]
        told = [delivery.result(15) for delivery in deliveries]
    assert len({(each.partition, each.offset) for each in told}) == 100
    batches = [batch for partition in range(3) for batch in harness.kafka.batches(topic, partition)]
    assert [batch.header.record_count for batch in batches] == [1] * 100


@pytest.mark.alone
def test_ac_04_each_broker_at_its_own_linger_end(harness: Harness) -> None:
    """AC-04: a record for one broker, a little later one for another: each leaves at the end of its own linger."""
    topic = "half-two"
    harness.kafka.create_topic(topic, 2)
    with harness.sender(topic) as sender:
        for partition in (0, 1):
            sender.send(partition)
        sender.outcomes()
        seen = len(harness.produced(topic))
        sent_s = []
        for partition in (0, 1):
            if partition:
                # The second begins to linger while the first does; the broker's answer to another topic is the wait.
                with harness.sender("none-other") as other:
                    harness.kafka.create_topic("none-other", 1)
                    other.send()
                    other.producer.flush(OUTCOME_S)
            sent_s.append(time.monotonic())
            sender.send(partition)
        assert all(outcome.error is None for outcome in sender.outcomes())
        requests = harness.produced(topic)[seen:]
        harness.balance(sender)
    assert [[batch.partition for batch in request.batches] for request in requests] == [[0], [1]]
    assert len({request.node for request in requests}) == 2
    for sent, request in zip(sent_s, requests, strict=True):
        assert 0.5 <= request.at_s - sent < 0.5 + LATE_MS / 1_000


@pytest.mark.alone
def test_ac_04_waiting_costs_no_turns(harness: Harness) -> None:
    """AC-04: while a record lingers, and while its request waits for an answer, the worker sleeps. A record costs a
    handful of turns (rd:0055 allows up to 1,000 for ten)."""
    turns = f"{METRIC}wakeups_total"
    topic = "three-idle"
    harness.kafka.create_topic(topic, 1)
    with harness.sender(topic) as sender:
        sender.send()
        held = harness.kafka.add(on(Api.PRODUCE, topic=topic).hold_answer())
        before = metric(harness.daemon, turns)
        held.wait()  # the linger of three seconds is over
        lingering = metric(harness.daemon, turns) - before
        assert lingering < 60
        held.release()
        sender.outcomes()
        before = metric(harness.daemon, turns)
        for _ in range(10):
            sender.send()
            sender.producer.flush(OUTCOME_S)
        # Turns are published twice a second.
        wait_until(lambda: metric(harness.daemon, turns) - before >= 10, "the turns of ten records")
        assert metric(harness.daemon, turns) - before < 1_000
        harness.balance(sender)
