"""Extension and twin do the same, byte for byte; and another project's decoder reads their bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords

from client_stub.contract.wire import Shape
from sidecar.kernel import _kernel
from tests.kernel.journal import BASE_MS, Journal, encode, pack
from tests.kernel.oracle import reference
from tests.outcomes import unpack_outcomes

blobs = st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=250, max_size=700))
headers = st.one_of(
    st.none(),
    st.lists(
        st.tuples(st.text(max_size=40), st.one_of(st.none(), st.binary(max_size=20))).map(list), max_size=20
    ),
)
timestamps = st.one_of(st.none(), st.integers(0, 1 << 62), st.integers(BASE_MS - 9000, BASE_MS + 9000))
records = st.one_of(
    st.tuples(blobs, blobs),
    st.tuples(blobs, blobs, headers),
    st.tuples(blobs, blobs, headers, st.one_of(st.none(), st.integers(-2, 9))),
    st.tuples(blobs, blobs, headers, st.one_of(st.none(), st.integers(0, 6)), timestamps),
    st.tuples(
        blobs,
        blobs,
        st.none(),
        st.none(),
        st.one_of(st.integers(-3, -1), st.integers(1 << 63, (1 << 64) - 1)),
    ),
).map(list)
submissions = st.lists(st.lists(records, min_size=1, max_size=25), min_size=1, max_size=4)
malformed = st.one_of(
    st.binary(min_size=1, max_size=300), st.lists(records, min_size=1, max_size=6).map(pack)
)

PARTITIONS = 6
INVALID_PARTITION = 0xFF02
FIXED_PARTITIONS = 0x20


def walk(
    kernel: Any, payloads: list[tuple[bytes, int]], limit: int, max_request_bytes: int
) -> dict[str, Any]:
    """Everything that is visible of one run through all walks."""
    journal = Journal(kernel, page_count=2_000)
    partitioner = kernel.StickyPartitioner(PARTITIONS, [0, 2, 3, 5], 600, 42)
    seen: dict[str, Any] = {"blocks": [], "batches": [], "outcomes": [], "stores": []}
    kernel.set_store_hook(seen["stores"].append)
    open_batches: dict[int, Any] = {}
    batches: list[Any] = []
    failed: list[tuple[Any, list[int]]] = []
    for seq, (payload, count) in enumerate(payloads, 1):
        flags = seq % 2 | seq * 5 % 8 << 2 | (FIXED_PARTITIONS if seq % 3 == 2 else 0)
        entry = journal.append(payload, count, seq=seq, flags=flags)
        block = kernel.index(journal.chain, entry, partitioner, max_request_bytes)
        again = kernel.index(journal.chain, entry, partitioner, max_request_bytes, 0xFFFE)
        found = [
            again.find(start, stop, max(entry.ordinal + later, 0), i)
            for _, start, stop in again.groups
            for later, i in ((-1, 9), (0, 0), (0, 3), (0, 24), (1, 0))
        ]
        final = [each for each in block.failures if flags & FIXED_PARTITIONS or each[1] != INVALID_PARTITION]
        assert (again.groups, again.failures) == (block.groups, final), "as adoption reads it"
        assert bool(again.unplaced) is (len(final) < len(block.failures)), "a partition may appear"
        assert not kernel.index(journal.chain, entry, partitioner, max_request_bytes, 0xFFFF).count
        seen["blocks"].append(
            (found, block.groups, block.failures, block.count, kernel.entry_words(journal.chain, entry))
        )
        assert kernel.entry_payload(journal.chain, entry) == payload
        failed.append((entry, [i for i, _ in block.failures]))
        for partition, start, stop in block.groups:
            at = start
            while at < stop:
                if partition not in open_batches:
                    open_batches[partition] = kernel.BatchRecords()
                    batches.append((partition, open_batches[partition]))
                at += open_batches[partition].try_append(block, at, stop, limit)
                if at < stop:
                    del open_batches[partition]
    seen["runs"] = list(runs(kernel, journal.chain, max_request_bytes))
    seen["streams"] = journal.chain.streams()
    seen["held"] = [journal.chain.held_between(first, stop) for first in (0, 4, 9) for stop in (0, 9, None)]
    seen["between"] = [entry.seq for entry in journal.chain.entries(4, 20)]
    for partition, batch in batches:
        pieces = [batch, *(batch.split() if batch.count > 1 else ()), batch.select(range(0, batch.count, 2))]
        for piece in pieces:
            cursors = (
                piece.first_cursor,
                piece.last_cursor,
                [piece.slice_indexes(i) for i in range(piece.slice_count)],
                [piece.slice_payload(i) for i in range(piece.slice_count)],
                piece.first_timestamp_ms,
                piece.max_timestamp_ms,
            )
            seen["batches"].append((partition, piece.count, cursors, encode(piece, 9, 1, 77)))
            for i in range(piece.slice_count):
                fields = {"number": 1, "kind": 1, "persistence": 2, "code": 0, "partition": partition}
                outcome = piece.outcomes(i, **fields, base_offset=100, append_time_ms=-1, text=b"text")
                seen["outcomes"].append((piece.slice_entry(i).seq, piece.slice_share(i), outcome))
    seen["pages"] = bytes(journal.pages)
    for entry, indexes in failed:
        seen["stores"].append(kernel.fail_remaining(journal.chain, entry, INVALID_PARTITION))
        kernel.mark_failed_done(journal.chain, entry, indexes)
    seen["finished"] = [batch.mark_done() for _, batch in batches]
    seen["left"] = (journal.chain.live_entries, journal.chain.live_records)
    seen["released"] = (journal.chain.release_pages(), journal.chain.release_idle())
    seen["done pages"] = bytes(journal.pages)
    kernel.set_store_hook(None)
    return seen


def runs(kernel: Any, chain: Any, max_request_bytes: int) -> Iterator[Any]:
    """All that is live as adoption reads it: many entries at once, and again in pieces of a few records."""
    partitioner = kernel.StickyPartitioner(0xFF00, [], 1, 1)
    note = bytearray(8)
    for records_max in (65_535, 3):
        ordinals = chain.ordinals(0, 1_000)
        assert [struct.pack("<Q", entry.ordinal) for entry in chain.entries()] == [
            ordinals[at : at + 8] for at in range(0, len(ordinals), 8)
        ]
        gathered: dict[int, Any] = {}
        while ordinals:
            block = kernel.index_run(
                chain,
                ordinals,
                partitioner,
                max_request_bytes,
                0xFFFE,
                note,
                1 << 60,
                records_max=records_max,
            )
            assert note == bytes(8), "nothing is in work any more"
            ordinals = ordinals[8 * block.taken :]
            accepted = [block.accepted(ref) for ref in range(block.count)]
            yield block.taken, block.groups, block.failures, block.unplaced, block.entry.ordinal, accepted
            for partition, start, stop in block.groups:
                batch = gathered.setdefault(partition, kernel.BatchRecords())
                assert batch.try_append(block, start, stop, 1 << 30) == stop - start
                (position, index) = batch.last_cursor
                yield block.find(start, stop, position, index), block.find(start, stop, position, index + 1)
        for partition, batch in gathered.items():
            yield partition, batch.first_cursor, batch.last_cursor, batch.shares(), encode(batch, 9, 1, 77)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(submissions, st.integers(70, 3_000), st.sampled_from([400, 1 << 20]))
def test_both_do_the_same(
    given_submissions: list[list[list[Any]]], limit: int, max_request_bytes: int
) -> None:
    payloads = [(pack(records), len(records)) for records in given_submissions]
    mine = walk(_kernel, payloads, limit, max_request_bytes)
    theirs = walk(reference, payloads, limit, max_request_bytes)
    for what, value in theirs.items():
        assert mine[what] == value, what
    assert mine["left"] == (0, 0)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(malformed, st.integers(1, 12), st.data())
def test_unreadable_payloads_fail_alike(payload: bytes, count: int, data: st.DataObject) -> None:
    broken = bytearray(payload)
    for _ in range(data.draw(st.integers(0, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    payloads = [(bytes(broken), min(count, len(broken)))]
    assert walk(_kernel, payloads, 1_000, 1 << 20) == walk(reference, payloads, 1_000, 1 << 20)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(blobs, blobs, headers, st.none(), timestamps).map(list), min_size=1, max_size=40))
def test_kafka_pythons_decoder_reads_our_batches(given_records: list[list[Any]]) -> None:
    journal = Journal(_kernel, page_count=2_000)
    batch = journal.batches(journal.index(journal.add(given_records)))[0]
    memory = MemoryRecords(encode(batch, 5, 2, 10))
    read = memory.next_batch()
    assert read is not None and memory.next_batch() is None
    assert read.validate_crc()
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (5, 2, 10)
    found = [(r.key, r.value, [(k, v) for k, v in r.headers], r.timestamp, r.offset) for r in read]
    assert found == [
        (key, value, [(k, v) for k, v in given_headers or ()], BASE_MS if stamp is None else stamp, offset)
        for offset, (key, value, given_headers, _, stamp) in enumerate(given_records)
    ]


def test_outcomes_take_the_shorter_shape() -> None:
    journal = Journal(_kernel, page_count=2_000)

    def shape_of(chosen: list[int], flags: int) -> Shape:
        entry = journal.add([[b"k", b"v", None, int(i in chosen)] for i in range(600)], flags=flags)
        batch = journal.batches(journal.index(entry, 2))[1]
        (outcome,) = unpack_outcomes(
            batch.outcomes(
                0, number=3, kind=1, persistence=2, code=0, partition=1, base_offset=50, append_time_ms=-1
            )
        )
        assert (outcome.count, outcome.first_index, outcome.base_offset) == (len(chosen), chosen[0], 50)
        if outcome.shape == Shape.BITMAP:
            bits = int.from_bytes(outcome.indexes, "little")
            assert [i + chosen[0] for i in range(bits.bit_length()) if bits >> i & 1] == chosen
        if outcome.shape == Shape.LIST:
            assert list(memoryview(outcome.indexes).cast("H")) == chosen
        return Shape(outcome.shape)

    assert shape_of(list(range(7, 300)), 1) == Shape.RANGE
    assert shape_of(list(range(0, 600, 3)), 1) == Shape.BITMAP
    assert shape_of([1, 599], 1) == Shape.LIST
    assert shape_of([1, 599], 0) == Shape.COUNT


def test_later_slices_have_later_offsets() -> None:
    journal = Journal(_kernel, page_count=2_000)
    batch = _kernel.BatchRecords()
    for seq in (1, 2, 3):
        block = journal.index(journal.add([[b"k", b"v"]] * 4, seq=seq))
        assert batch.try_append(block, 0, 4, 1 << 20) == 4
    found = [
        unpack_outcomes(
            batch.outcomes(
                i, number=1, kind=1, persistence=2, code=0, partition=0, base_offset=base, append_time_ms=-1
            )
        )[0].base_offset
        for base in (1_000, -1)
        for i in range(3)
    ]
    assert found == [1_000, 1_004, 1_008, -1, -1, -1]


def test_encoding_into_too_little_room_writes_nothing() -> None:
    journal = Journal(_kernel, page_count=2_000)
    batch = journal.batches(journal.index(journal.add([[b"k", b"v" * 50]] * 9)))[0]
    out = bytearray(batch.size_bytes - 1)
    with pytest.raises(ValueError, match="does not fit"):
        batch.encode_into(out, 1, 0, 0)
    assert out == bytes(len(out))
