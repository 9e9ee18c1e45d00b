"""send_arrow(): column blocks read back by the tests' own reader, and by msgpack where columns are not read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_stub import Producer
from client_stub.columnar import checked_columns, column_block
from client_stub.wire import Format
from tests.stub.column_reader import read_columns
from tests.stub.fake_daemon import FakeDaemon

pa = pytest.importorskip("pyarrow")
hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def column_daemon(run_dir: Path) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(run_dir, limits={"max_request_size": 1 << 20, "formats": 6})
    yield fake
    fake.stop()


def block_rows(table: Any) -> list[list[Any]]:
    return [row for batch in checked_columns(table).to_batches() for row in read_columns(column_block(batch))]


binaries = st.one_of(st.none(), st.binary(max_size=20))
headers = st.one_of(
    st.none(),
    st.lists(st.fixed_dictionaries({"key": st.text(max_size=4), "value": binaries}), max_size=3),
)
rows = st.lists(
    st.tuples(
        binaries,
        binaries,
        headers,
        st.one_of(st.none(), st.integers(0, 2**31 - 1)),
        st.one_of(st.none(), st.integers(0, 2**62)),
    ),
    min_size=1,
    max_size=40,
)


@hypothesis.given(rows, st.data(), st.sampled_from([pa.binary(), pa.large_binary()]))
@hypothesis.settings(max_examples=150, deadline=None)
def test_any_slice_of_any_table_reads_back(rows: list[Any], data: Any, kind: Any) -> None:
    """Slices matter most: offsets that do not begin at 0, validity bits in the middle of a byte."""
    keys, values, pairs, partitions, times = (list(column) for column in zip(*rows, strict=True))
    table = pa.table(
        {
            "key": pa.array(keys, kind),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(pairs, HEADERS),
            "partition": pa.array(partitions, pa.int32()),
            "timestamp": pa.array(times, pa.int64()),
        }
    )
    start = data.draw(st.integers(0, len(rows) - 1))
    count = data.draw(st.integers(1, len(rows) - start))
    expected = [
        [key, value, None if pair is None else [[p["key"], p["value"]] for p in pair], partition, time]
        for key, value, pair, partition, time in rows[start : start + count]
    ]
    assert block_rows(table.slice(start, count)) == expected


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array(["ä", None]), ["ä".encode(), None]),
        (pa.array(["a", "b"], pa.large_string()), [b"a", b"b"]),
        (pa.array(["a", "a"]).dictionary_encode(), [b"a", b"a"]),
        (pa.array([b"ab", b"cd"], pa.binary(2)), [b"ab", b"cd"]),
        (pa.array([None, None]), [None, None]),
        (pa.array(["a", "b"], pa.string_view()), [b"a", b"b"]),
    ],
)
def test_every_kind_of_text_and_bytes_is_taken(column: Any, expected: list[Any]) -> None:
    assert [row[1] for row in block_rows(pa.table({"value": column}))] == expected


def test_timestamps_become_milliseconds_and_partitions_int32() -> None:
    table = pa.table(
        {
            "value": pa.array([b"v"]),
            "timestamp": pa.array([1_700_000_000_123_456], pa.timestamp("us")),
            "partition": pa.array([3], pa.int64()),
        }
    )
    assert block_rows(table) == [[None, b"v", None, 3, 1_700_000_000_123]]


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        ({"key": pa.array([b"k"])}, ValueError, "has no column 'value'"),
        ({"value": pa.array([1])}, TypeError, "value attribute unsupported type int64"),
        ({"value": pa.array([b"v"]), "partition": pa.array(["1"])}, TypeError, "partition must be a"),
        ({"value": pa.array([b"v"]), "timestamp": pa.array([1.5])}, TypeError, "timestamp must be a"),
        ({"value": pa.array([b"v"]), "headers": pa.array([["h"]])}, TypeError, "headers must be a"),
    ],
)
def test_wrong_columns_are_named(columns: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        checked_columns(pa.table(columns))
    with pytest.raises(TypeError, match="takes a pyarrow Table"):
        checked_columns([b"v"])


def test_a_null_header_key_is_refused() -> None:
    table = pa.table(
        {"value": pa.array([b"v"]), "headers": pa.array([[{"key": None, "value": b"x"}]], HEADERS)}
    )
    with pytest.raises(ValueError, match="null key"):
        block_rows(table)


def test_a_table_is_cut_into_submissions_that_fit(column_daemon: FakeDaemon) -> None:
    with Producer(column_daemon.run_dir) as producer:
        producer.send("t", b"before")
        values = [b"%06d" % n + bytes(n % 1000) for n in range(8_000)]
        table = pa.table({"key": pa.array([b"%d" % n for n in range(8_000)]), "value": pa.array(values)})
        assert producer.send_arrow("t", table).result(10) == 8_000
        producer.send("t", b"after").result(10)
    columns = [s for s in column_daemon.received if s.format == Format.ARROW]
    assert all(len(s.payload) <= 1 << 20 for s in columns) and len(columns) >= 4
    assert [row[1] for s in columns for row in read_columns(s.payload)] == values
    assert column_daemon.received[0].format == Format.MSGPACK
    assert column_daemon.received[-1].format == Format.MSGPACK


def test_a_worker_that_reads_no_columns_gets_msgpack(producer: Producer, daemon: FakeDaemon) -> None:
    table = pa.table(
        {
            "key": pa.array(["a", None, "c"]),
            "value": pa.array([b"1", b"", None]),
            "headers": pa.array([None, [{"key": "h", "value": None}], []], HEADERS),
        }
    ).slice(1)
    producer.send_arrow("t", table).result(10)
    assert [s.format for s in daemon.received] == [Format.MSGPACK]
    assert daemon.received[0].records == [
        [None, b"", [["h", None]], None, None],
        [b"c", None, [], None, None],
    ]
    producer.send_arrow("t", table.select(["key", "value"]).combine_chunks().to_batches()[0]).result(10)
    assert daemon.received[1].records == [[None, b""], [b"c", None]]


@hypothesis.given(rows, st.data())
@hypothesis.settings(max_examples=100, deadline=None)
def test_the_daemons_kernel_reads_what_the_stub_writes(rows: list[Any], data: Any) -> None:
    import msgpack

    kernel = pytest.importorskip("sidecar.kernel")
    keys, values, pairs, partitions, times = (list(column) for column in zip(*rows, strict=True))
    table = pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.large_binary()),
            "headers": pa.array(pairs, HEADERS),
            "partition": pa.array(partitions, pa.int32()),
            "timestamp": pa.array(times, pa.int64()),
        }
    ).slice(data.draw(st.integers(0, len(rows) - 1)))
    for batch in checked_columns(table).to_batches():
        block = column_block(batch)
        unpacker = msgpack.Unpacker()
        unpacker.feed(kernel.records_from_columns(block, batch.num_rows))
        read = [[*record, *[None] * (5 - len(record))] for record in unpacker]
        assert read == read_columns(block)
