"""Columnar payloads become the same records that a row-by-row sender would have packed."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_stub.records.columns import column_block
from sidecar.kernel import _kernel
from tests.kernel.journal import Journal, encode
from tests.kernel.oracle import reference

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
blobs = st.one_of(st.none(), st.binary(max_size=30), st.binary(min_size=250, max_size=300))
header_lists = st.one_of(
    st.none(), st.lists(st.fixed_dictionaries({"key": st.text(max_size=40), "value": blobs}), max_size=5)
)
rows = st.lists(
    st.tuples(
        blobs,
        blobs,
        header_lists,
        st.one_of(st.none(), st.integers(-3, 9)),
        st.one_of(st.none(), st.integers(0, 1 << 60)),
    ),
    min_size=1,
    max_size=20,
)


def unpack(records: bytes) -> list[list[Any]]:
    unpacker = msgpack.Unpacker(raw=False)
    unpacker.feed(records)
    return [(*row, None, None, None)[:5] for row in unpacker]


def table_of(given_rows: list[tuple[Any, ...]], *, large: bool = False) -> Any:
    key, value, headers, partition, timestamp = zip(*given_rows, strict=True)
    binary = pa.large_binary() if large else pa.binary()
    return pa.table(
        {
            "value": pa.array(value, binary),
            "key": pa.array(key, binary),
            "headers": pa.array(headers, HEADERS),
            "partition": pa.array(partition, pa.int32()),
            "timestamp": pa.array(timestamp, pa.int64()),
        }
    )


@settings(max_examples=100, deadline=None)
@given(rows, st.data())
def test_columns_are_their_rows(given_rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    table = table_of(given_rows, large=data.draw(st.booleans()))
    start = data.draw(st.integers(0, len(given_rows) - 1))
    (batch,) = table.to_batches()
    batch = batch.slice(start)
    payload = bytes(column_block(batch))
    expected = [
        (k, v, None if h is None else [[pair["key"], pair["value"]] for pair in h], p, t)
        for k, v, h, p, t in given_rows[start:]
    ]
    for kernel in (_kernel, reference):
        assert unpack(kernel.records_from_columns(payload, batch.num_rows)) == expected


def test_columns_that_are_missing_are_null(kernel: ModuleType) -> None:
    (batch,) = pa.table({"value": ["a", "b"]}).to_batches()
    assert unpack(kernel.records_from_columns(bytes(column_block(batch)), 2)) == [
        (None, b"a", None, None, None),
        (None, b"b", None, None, None),
    ]


def test_columns_and_rows_make_the_same_batch(kernel: ModuleType) -> None:
    given_rows = [(f"k{i}".encode(), b"v" * i, None, None, None) for i in range(300)]
    (batch,) = table_of(given_rows).to_batches()
    journal, plain = Journal(kernel, page_count=1_000), Journal(kernel, page_count=1_000)
    entry = journal.append(kernel.records_from_columns(bytes(column_block(batch)), 300), 300)
    by_columns = journal.batches(journal.index(entry, 3))
    by_rows = plain.batches(plain.index(plain.add([list(row) for row in given_rows]), 3))
    assert {p: encode(b) for p, b in by_columns.items()} == {p: encode(b) for p, b in by_rows.items()}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"KCS1",
        struct.pack("<IIII", 0x3153434B, 2, 1, 0),
        struct.pack("<IIII", 0x3153434B, 2, 0, 0),
        struct.pack("<IIIIBBHIIIIIII", 0x3153434B, 2, 1, 0, 1, 4, 0, 2, 0, 0, 4_000, 0, 0, 0),
        struct.pack("<IIIIBBHIIIIIII", 0x3153434B, 2, 1, 0, 1, 4, 0, 3, 0, 0, 0, 0, 0, 0),
        struct.pack("<IIIIBBHIIIIIIIiii", 0x3153434B, 2, 1, 0, 1, 4, 0, 2, 0, 0, 48, 60, 0, 0, 0, 5, 3),
        struct.pack("<IIIIBBHIIIIIIIiii", 0x3153434B, 2, 1, 0, 1, 4, 0, 2, 0, 0, 48, 60, 0, 0, -9, 0, 0),
    ],
)
def test_damaged_columns_fail_as_malformed_records(kernel: ModuleType, payload: bytes) -> None:
    journal = Journal(kernel)
    entry = journal.append(kernel.records_from_columns(payload, 2), 2)
    assert journal.index(entry).failures == [(0, 0xFF00), (1, 0xFF00)]


def test_a_count_that_no_submission_has_is_an_error(kernel: ModuleType) -> None:
    for count in (0, -1, 65_536):
        with pytest.raises(ValueError, match="record count"):
            kernel.records_from_columns(b"", count)
