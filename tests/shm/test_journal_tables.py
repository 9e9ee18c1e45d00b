"""Chain table and descriptors; and what the next daemon reads out of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgpack
import pytest

from sidecar.kernel import BatchRecords, StickyPartitioner, fail_remaining, index, mark_failed_done
from sidecar.shm import layout
from sidecar.shm.buffer_pool import BufferPool
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.client_table import ClientTable
from sidecar.shm.descriptor_states import DescriptorEvent, DescriptorState
from sidecar.shm.descriptors import DescriptorTable
from sidecar.shm.reclaim import reclaim_slot
from sidecar.shm.recovery import describe_undelivered
from sidecar.shm.segment import Segment
from tests.reading_back import row_of
from tests.shm.sent import Sent


class Slot:
    """A worker's use of its slot, by hand."""

    def __init__(self, segment: Segment, slot: int, *, incarnation: int = 1) -> None:
        self.segment, self.number = segment, slot
        self.pool = BufferPool(segment, incarnation=incarnation, workers=1)
        self.chains = ChainTable(segment, slot, incarnation=incarnation)
        self.descriptors = DescriptorTable(segment, slot)

    def accept(self, topic: str, count: int, *, seq: int = 1) -> tuple[Any, Any]:
        payload = b"".join(msgpack.packb([b"key-%d" % i, b"value"]) for i in range(count))
        chain = self.chains.open(0, topic)
        assert chain is not None
        needed = chain.pages_needed(count, len(payload))
        if needed:
            chain.link_pages(self.pool.take(needed) or [])
        fields = {"client_row": 0, "client_generation": 1, "stream": 1, "base_timestamp_ms": 0, "flags": 0}
        return chain, chain.append(payload, count=count, seq=seq, format=1, **fields)

    def batches(self, chain: Any, entry: Any, partitions: int = 3) -> list[tuple[int, BatchRecords]]:
        block = index(chain, entry, StickyPartitioner(partitions, range(partitions), 16_384, 1), 1 << 20)
        found = []
        for partition, start, stop in block.groups:
            batch = BatchRecords()
            batch.try_append(block, start, stop, 1 << 20)
            found.append((partition, batch))
        return found

    def send(self, chain: Any, partition: int, batch: BatchRecords) -> int:
        sent = Sent(
            chain.chain_id, partition, batch, producer_id=1 << 33, epoch=2, base_sequence=(1 << 31) - 2
        )
        return sent.publish(self.descriptors)


@pytest.fixture
def worker(segment: Segment, slot: int) -> Slot:
    return Slot(segment, slot)


def test_a_topic_keeps_its_chain(worker: Slot, segment: Segment) -> None:
    orders, plain = worker.chains.open(0, "orders"), worker.chains.open(1, "orders")
    assert orders is not None and plain is not None
    assert (orders.chain_id, plain.chain_id) == (0, 1)
    assert worker.chains.open(0, "orders") is orders
    chain, _ = worker.accept("größen", 3)
    again = ChainTable(segment, 0)
    assert [(row.chain_id, row.lane, row.topic) for row in again.names()] == [
        (0, 0, "orders"),
        (1, 1, "orders"),
        (2, 0, "größen"),
    ]
    assert [row.tail for row in again.names()] == [0, 0, chain.tail]
    reopened = again.open(0, "größen")
    assert reopened is not None and reopened.tail == chain.tail
    for name in ("", "x" * 250):
        with pytest.raises(ValueError, match="bytes, not 1 to 249"):
            worker.chains.open(0, name)
    assert worker.chains.open(0, "x" * 249) is not None


def test_a_full_chain_table_says_so(worker: Slot) -> None:
    for i in range(layout.CHAINS_MAX):
        assert worker.chains.open(0, f"topic-{i}") is not None
    assert worker.chains.open(0, "one more") is None
    assert worker.chains.open(0, "topic-7") is not None


def test_a_descriptors_life(worker: Slot, segment: Segment) -> None:
    chain, entry = worker.accept("orders", 10)
    partition, batch = worker.batches(chain, entry)[0]
    free = worker.descriptors.free_count
    number = worker.send(chain, partition, batch)
    assert worker.descriptors.free_count == free - 1
    (seen,) = DescriptorTable(segment, 0)
    assert (seen.state, seen.chain_id, seen.partition, seen.count) == (
        DescriptorState.SENT_UNDER,
        chain.chain_id,
        partition,
        batch.count,
    )
    assert (seen.first_cursor, seen.last_cursor) == (batch.first_cursor, batch.last_cursor)
    assert (seen.producer_id, seen.epoch, seen.base_sequence) == (1 << 33, 2, (1 << 31) - 2)
    assert (seen.base_offset, seen.append_time_ms, seen.code) == (-1, -1, 0)
    with pytest.raises(AssertionError, match="is SENT_UNDER, which has no RELEASE"):
        worker.descriptors.step(DescriptorEvent.RELEASE, number)
    worker.descriptors.store_outcome(number, code=-1, base_offset=1 << 40, append_time_ms=-1)
    (seen,) = DescriptorTable(segment, 0)
    assert (seen.state, seen.base_offset, seen.code) == (DescriptorState.STORED, 1 << 40, -1)
    worker.descriptors.step(DescriptorEvent.RELEASE, number)
    worker.descriptors.step(DescriptorEvent.RELEASE, number)
    worker.descriptors.step(DescriptorEvent.FREE, number)
    assert list(worker.descriptors) == []
    with pytest.raises(AssertionError, match="is FREE, which has no FREE"):
        worker.descriptors.step(DescriptorEvent.FREE, number)
    assert worker.descriptors.free_count == free


def test_a_descriptor_becomes_true_by_one_store(worker: Slot, segment: Segment) -> None:
    """Any part of publish's or settle's plain writes without the state's store changes nothing for a reader."""
    rng = random.Random(5)
    chain, entry = worker.accept("orders", 10)
    partition, batch = worker.batches(chain, entry)[0]
    area = segment.slot(0).area

    def replay(before: bytes, after: bytes, at: int) -> None:
        changed = [i for i in range(at + 8, at + layout.DESCRIPTOR_BYTES) if before[i] != after[i]]
        expected = [(d.index, d.state) for d in DescriptorTable(segment, 0)]
        for _ in range(30):
            area[:] = before
            for i in rng.sample(changed, rng.randint(0, len(changed))):
                area[i] = after[i]
            assert [(d.index, d.state) for d in DescriptorTable(segment, 0)] != expected
        area[:] = after

    before = bytes(area)
    number = worker.send(chain, partition, batch)
    at = layout.DESCRIPTORS_OFFSET + number * layout.DESCRIPTOR_BYTES
    replay(before, bytes(area), at)
    before = bytes(area)
    worker.descriptors.store_outcome(number, code=0, base_offset=7, append_time_ms=9)
    replay(before, bytes(area), at)


def test_undelivered_records_found_by_a_new_daemon(
    worker: Slot, segment: Segment, segment_path: Path
) -> None:
    assert describe_undelivered(segment) == []
    chain, entry = worker.accept("orders", 30)
    waiting_chain, waiting = worker.accept("unknown", 4)
    other = Segment.attach(segment_path)
    assert describe_undelivered(other) == [
        (0, "orders", 30, entry.payload_bytes),
        (0, "unknown", 4, waiting.payload_bytes),
    ]
    # Delivered is a fate, also while nobody was told. A failure is one when its client knows.
    fail_remaining(waiting_chain, waiting, 0xFF05)
    assert [row[2] for row in describe_undelivered(other)] == [30, 4]
    mark_failed_done(waiting_chain, waiting, range(4))
    batches = worker.batches(chain, entry)
    numbers = [worker.send(chain, partition, batch) for partition, batch in batches]
    assert [row[2] for row in describe_undelivered(other)] == [30], "sent is not delivered"
    worker.descriptors.store_outcome(numbers[0], 0, 100, -1)
    assert [row[2] for row in describe_undelivered(other)] == [30 - batches[0][1].count]
    for number in numbers[1:]:
        worker.descriptors.store_outcome(number, 0, 100, -1)
    assert describe_undelivered(other) == []
    for (_, batch), number in zip(batches, numbers, strict=True):
        worker.descriptors.step(DescriptorEvent.RELEASE, number)
        batch.mark_done()
        worker.descriptors.step(DescriptorEvent.FREE, number)
    assert describe_undelivered(other, slots=[0, 9]) == []
    other.close()


def test_a_damaged_chain_is_never_nothing(
    worker: Slot, segment: Segment, caplog: pytest.LogCaptureFixture
) -> None:
    worker.accept("orders", 1)
    (page,) = [page for page, word in enumerate(segment.owners.cast("Q")) if word]
    segment.pages[page * segment.page_bytes + 64] ^= 0xFF
    assert describe_undelivered(segment) == [(0, "orders", 0, 0)]
    assert "impossible header" in caplog.text


def test_a_reclaimed_slot_is_whole_for_the_next_worker(worker: Slot, segment: Segment) -> None:
    chain, entry = worker.accept("orders", 30)
    partition, batch = worker.batches(chain, entry)[0]
    worker.send(chain, partition, batch)
    row = ClientTable(segment).take_row(b"c" * 20, "client", 1, 0, b"s" * 16)
    assert row is not None
    tail = chain.tail
    assert reclaim_slot(segment, 0) == worker.pool.taken_count > 0
    assert bytes(segment.owners) == bytes(len(segment.owners))
    assert row_of(ClientTable(segment), b"c" * 20) is None
    segment.slot(0).claim(incarnation=2)
    again = Slot(segment, 0, incarnation=2)
    assert again.descriptors.free_count == again.descriptors.capacity
    chain, entry = again.accept("orders", 3)
    assert entry.position >= tail, "a cursor of before never names a record of after"
    assert [row[:3] for row in describe_undelivered(segment)] == [(0, "orders", 3)]
