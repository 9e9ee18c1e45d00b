"""Memory under faults: BP-01, BP-05, BP-09 with a small pool, on a fake broker whose sockets hold little."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from client_stub import errors
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api

from .harness import Harness, Outcome

pytestmark = [pytest.mark.process]

LEADER_NOT_AVAILABLE, NOT_LEADER = 5, 6
POOL_BYTES = 8 << 20
MAX_BLOCK_MS = 600
RECEIVE_BUFFER_BYTES = 8_192
SETTINGS = {
    "delivery.timeout.ms": 1_500,
    "request.timeout.ms": 1_400,
    "buffer.memory": POOL_BYTES,
}


def leads(harness: Harness, node: int) -> str:
    topic = harness.new_topic()
    harness.kafka.move_leader(topic, 0, node)
    return topic


def test_bp_01_a_full_pool_blocks_its_sender_only(harness: Harness) -> None:
    """BP-01: the broker stalls, the pool fills: BufferExhausted after max.block.ms, not before; another sender's
    records are delivered all the while."""
    stalled, alive = leads(harness, 1), leads(harness, 2)
    held = harness.kafka.add(on(Api.PRODUCE, topic=stalled, times=ALWAYS).hold())
    with harness.sender(stalled, max_block_ms=MAX_BLOCK_MS) as sender, harness.sender(alive) as other:
        waited_s = 0.0
        with pytest.raises(errors.BufferExhausted) as raised:
            while True:
                began = time.monotonic()
                try:
                    sender.send(size=100_000)
                finally:
                    waited_s = time.monotonic() - began
        assert raised.value.retriable
        assert waited_s >= MAX_BLOCK_MS / 1000
        other.send()
        assert other.offsets() == [0]
        held.remove()
        sender.outcomes()
        harness.balance(sender, other)


def test_bp_05_memory_of_an_expired_batch_is_not_used_again(harness: Harness) -> None:
    """BP-05: a batch is half on the socket when it expires; records of other topics fill the memory; then the broker
    reads on. No byte of the new records is in the old request, nothing lies where it does not belong."""
    stuck, same_node, other_node = leads(harness, 1), leads(harness, 1), leads(harness, 2)
    sizes = [900_000, 900_000, 900_000]
    with (
        harness.sender(stuck) as sender,
        harness.sender(same_node) as behind,
        harness.sender(other_node) as beside,
    ):
        sender.send()
        sender.offsets()
        # Refused for a while, so that its deadline comes well before that of the request it goes with.
        refused = harness.kafka.add(on(Api.PRODUCE, topic=stuck, times=ALWAYS).refuse(LEADER_NOT_AVAILABLE))
        for size in sizes:
            sender.send(size=size)
        refused.wait(3)
        harness.kafka.stop_reading(1)
        refused.remove()
        told = sender.outcomes()[1:]
        assert all(isinstance(outcome.error, errors.DeliveryTimeout) for outcome in told)
        for _ in range(60):
            beside.send(size=50_000)
            behind.send(size=50_000)
        beside.offsets()
        harness.kafka.read_again(1)
        behind.outcomes()
        harness.balance(sender, behind, beside)
    assert not harness.kafka.bad_batches


def rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmRSS")


@pytest.mark.parametrize(("records", "size"), [(10_000, 0), (16, 950 << 10)], ids=["many", "large"])
def test_bp_09_always_refused(harness: Harness, records: int, size: int) -> None:
    """BP-09: NOT_LEADER for ever: every record is told at its deadline, memory stays in its bound."""
    (pid,) = harness.daemon.worker_pids()
    before = rss_bytes(pid)
    told = always_refused(harness, records, size)
    assert all(isinstance(outcome.error, errors.DeliveryTimeout) for outcome in told)
    # The pool is part of it as far as it was touched, and two request buffers for each broker.
    assert rss_bytes(pid) - before < POOL_BYTES + (32 << 20)


def always_refused(harness: Harness, records: int, size: int) -> list[Outcome]:
    topic, sender = harness.primed()
    with sender:
        refused = harness.kafka.add(on(Api.PRODUCE, topic=topic, times=ALWAYS).refuse(NOT_LEADER))
        for _ in range(records):
            sender.send(size=size)
        assert harness.held_bytes() <= POOL_BYTES
        told = sender.outcomes(60)[1:]
        assert all(outcome.error is not None for outcome in told)
        refused.remove()
        for _ in range(5):  # Java may still sit out a backoff that is as long as the deadline
            sender.send()
            if sender.outcomes()[-1].error is None:
                break
        assert sender.outcomes()[-1].error is None
        harness.balance(sender)
    return told
