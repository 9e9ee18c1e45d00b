"""The core over the real kernel: the same records, now with bytes. Identity, splits and rejected records."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgpack
import pytest

from client_stub.contract.wire import Format
from sidecar.kernel import PAGE_TAKEN, BatchRecords, Chain, RecordBlock, StickyPartitioner, index
from sidecar.producer.producer_batch import ProducerBatch

from .harness import TOPIC, Core, answer

PAGE_BYTES = 4096
PAGES = 64
INCARNATION = 7


class KernelCore(Core):
    """As Core, with a journal chain in plain memory and the kernel's BatchRecords."""

    def __init__(self, **arguments: object) -> None:
        super().__init__(records_factory=BatchRecords, **arguments)  # type: ignore[arg-type]
        self.owners = bytearray(8 * PAGES)
        for page in range(PAGES):
            struct.pack_into("<II", self.owners, 8 * page, PAGE_TAKEN, INCARNATION)
        self.chain = Chain(
            bytearray(PAGE_BYTES * PAGES),
            PAGE_BYTES,
            0,
            0,
            bytearray(8),
            incarnation=INCARNATION,
            owners=self.owners,
        )
        self.free_pages = list(range(PAGES))
        self.seq = 0

    def submit(self, values: Sequence[bytes], *, partition: int = 0) -> RecordBlock:
        payload = b"".join(msgpack.packb([None, value, None, partition, None]) for value in values)
        needed = self.chain.pages_needed(len(values), len(payload))
        self.chain.link_pages([self.free_pages.pop() for _ in range(needed)])
        self.seq += 1
        entry = self.chain.append(
            payload,
            count=len(values),
            client_row=0,
            client_generation=1,
            stream=1,
            seq=self.seq,
            base_timestamp_ms=1_700_000_000_000,
            format=Format.MSGPACK,
            flags=0,
        )
        block = index(self.chain, entry, StickyPartitioner(4, [0, 1, 2, 3], 16384, 1), 1_048_576)
        self.accumulator.append(TOPIC, self.lane, block, self.now_ms)
        return block


def encoded(batch: ProducerBatch) -> bytes:
    out = bytearray(batch.size_bytes)
    written = batch.records.encode_into(out, batch.producer_id, batch.epoch, batch.base_sequence)
    assert written == batch.size_bytes
    return bytes(out)


@pytest.mark.rule("S4")
def test_a_retry_encodes_the_same_bytes_again() -> None:
    core = KernelCore()
    core.submit([b"a" * 100, b"b" * 100])
    (request,) = core.poll()
    before = encoded(request.batches[0])
    core.submit([b"later"])
    core.respond(request, answer(0, 7))
    (again,) = core.poll(200)
    assert again.batches == request.batches
    assert encoded(again.batches[0]) == before
    assert request.size_bytes == len(before)


@pytest.mark.rule("A1")
def test_batches_are_filled_by_the_exact_encoded_size() -> None:
    core = KernelCore(batch_size=1000, linger_ms=50)
    core.submit([b"x" * 100] * 30)
    batches = core.accumulator.incomplete.oldest_first()
    assert sum(batch.count for batch in batches) == 30
    assert all(batch.size_bytes <= 1000 for batch in batches)
    assert all(batch.size_bytes + 110 > 1000 for batch in batches[:-1]), "as full as they can be"
    cursors = [(batch.records.first_cursor, batch.records.last_cursor) for batch in batches]
    assert cursors == sorted(cursors)


@pytest.mark.rule("A7")
def test_halves_of_a_batch_together_are_its_records() -> None:
    core = KernelCore()
    core.submit([b"%d" % n for n in range(5)])
    (request,) = core.poll()
    parent = request.batches[0]
    core.respond(request, answer(0, 10))
    core.poll()
    first, second = parent.children
    assert (first.count, second.count) == (3, 2)
    assert first.records.first_cursor == parent.records.first_cursor
    assert second.records.last_cursor == parent.records.last_cursor
    assert second.base_sequence == 3
    encoded(second)


@pytest.mark.rule("A6")
def test_rejected_records_are_set_apart_and_every_entry_is_finished() -> None:
    core = KernelCore()
    block = core.submit([b"0", b"1", b"2", b"3", b"4"])
    (request,) = core.poll()
    errors = ((0, "no key"), (2, None), (3, "no key"))
    core.respond(request, answer(0, 87, record_errors=errors))
    (again,) = core.poll()
    good = again.batches[0]
    assert good.count == 2
    assert good.records.first_cursor[1] == 1
    assert good.records.last_cursor[1] == 4
    core.acknowledge(again)
    core.poll()
    assert sum(batch.count for batch in core.decided) == 5
    entry = block.entry
    assert entry.remaining == 5
    for batch in core.decided:
        batch.records.mark_done()
    assert entry.remaining == 0
    assert core.chain.live_entries == 0
