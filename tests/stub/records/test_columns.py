"""send_arrow(): column blocks read back by the tests' own reader, and by msgpack where columns are not read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_stub import Producer, errors
from client_stub.contract.wire import Format
from client_stub.records.column_types import checked_columns
from client_stub.records.columns import column_block
from client_stub.zmtp.frames import FRAME_COPIED_BYTES, Pieces
from tests.stub.fake_daemon import FakeDaemon
from tests.stub.records.column_reader import read_columns

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
    return [
        row
        for batch in checked_columns(table).to_batches()
        for row in read_columns(bytes(column_block(batch)))
    ]


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
        ({"value": pa.array([b"v"]), "timestamp": pa.array([1.5])}, TypeError, "bigint, timestamp or date"),
        ({"value": pa.array([b"v"]), "headers": pa.array([["h"]])}, TypeError, "headers must be a"),
    ],
)
def test_wrong_columns_are_named(columns: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        checked_columns(pa.table(columns))
    with pytest.raises(TypeError, match=r"takes a pyarrow Table or RecordBatch, not list\.$"):
        checked_columns([b"v"])
    for module, hint in (
        ("pandas.core.frame", r"pyarrow\.Table\.from_pandas\("),
        ("polars", r"frame\.to_arrow\("),
    ):
        frame = type("DataFrame", (), {"__module__": module})()
        with pytest.raises(TypeError, match=f"not DataFrame; {hint}"):
            checked_columns(frame)


def test_a_null_header_key_is_refused() -> None:
    table = pa.table(
        {"value": pa.array([b"v"]), "headers": pa.array([[{"key": None, "value": b"x"}]], HEADERS)}
    )
    with pytest.raises(ValueError, match="record 0: headers attribute: a header or its key is null"):
        block_rows(table)


def headers_from(keys: Any, ends: list[int], valid: list[bool] | None = None, *, large: bool = False) -> Any:
    """A headers column over any buffers at all: rows end in ``keys`` at ``ends``, the values are all ``x``."""
    values = pa.array([b"x"] * len(keys), pa.binary())
    pairs = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
    offsets = pa.array([0, *ends], pa.int64() if large else pa.int32())
    made = (pa.LargeListArray if large else pa.ListArray).from_arrays(offsets, pairs)
    if valid is None:
        return made
    bits = pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(made.type, len(ends), [bits, offsets.buffers()[1]], children=[pairs])


def unchecked_text(contents: list[bytes]) -> Any:
    made = pa.array(contents, pa.binary())
    return pa.StringArray.from_buffers(len(contents), made.buffers()[1], made.buffers()[2])


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "keys", [pa.array([b"ok", b"a", b"\xff\xfe"]), unchecked_text([b"ok", b"a", b"\xff\xfe"])]
)
def test_a_header_key_that_is_no_utf8_is_refused_before_anything_is_queued(
    producer: Producer, keys: Any, large: bool
) -> None:
    """A consumer that decodes keys would lose the whole batch. The second chunk's record is named by its place."""
    good = headers_from(pa.array([b"ok"], keys.type), [1], large=large)
    column = pa.chunked_array([good, headers_from(keys, [1, 3], large=large)])
    table = pa.table({"value": pa.array([b"1", b"2", b"3"]), "headers": column})
    with pytest.raises(
        ValueError, match=r"record 2: headers attribute: the key of a header is not UTF-8: b'\\xff"
    ):
        producer.send_arrow("t", table)
    assert not producer._engine.outbox.pending


@pytest.mark.parametrize("large", [False, True])
def test_a_null_headers_row_has_no_headers(large: bool) -> None:
    """Null keys and bytes that are no text: Arrow lets anything stand there."""
    keys = pa.array([b"a", None, b"\xff", b"b", b"c"])
    column = headers_from(keys, [1, 3, 3, 5], [True, False, True, True], large=large)
    table = pa.table({"value": pa.array([b"1", b"2", b"3", b"4"]), "headers": column})
    rows = [row[2] for row in block_rows(table)]
    assert rows == [[["a", b"x"]], None, [], [["b", b"x"], ["c", b"x"]]]
    assert [row[2] for row in block_rows(table.slice(1, 2))] == [None, []]
    with pytest.raises(ValueError, match="record 1: headers attribute: a header or its key is null"):
        block_rows(table.set_column(1, "headers", headers_from(keys, [1, 3, 3, 5], large=large)))


@hypothesis.given(
    st.lists(
        st.one_of(
            st.tuples(st.just(True), st.lists(st.text(max_size=3).map(str.encode), max_size=3)),
            st.tuples(st.just(False), st.lists(st.one_of(st.none(), st.binary(max_size=3)), max_size=3)),
        ),
        min_size=1,
        max_size=12,
    ),
    st.data(),
    st.booleans(),
)
@hypothesis.settings(max_examples=150, deadline=None)
def test_any_headers_over_any_garbage_read_back(
    rows: list[tuple[bool, list[bytes | None]]], data: Any, large: bool
) -> None:
    keys = pa.array([key for _, own in rows for key in own], pa.binary())
    ends = list(itertools.accumulate(len(own) for _, own in rows))
    column = headers_from(keys, ends, [valid for valid, _ in rows], large=large)
    start = data.draw(st.integers(0, len(rows) - 1))
    table = pa.table({"value": pa.array([b"v"] * len(rows)), "headers": column}).slice(start)
    assert [row[2] for row in block_rows(table)] == [
        [[key.decode(), b"x"] for key in own if key is not None] if valid else None
        for valid, own in rows[start:]
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])),
        pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.binary(1))])),
        pa.list_(pa.struct([("key", pa.dictionary(pa.int8(), pa.string())), ("value", pa.large_binary())])),
        pa.map_(pa.string(), pa.binary()),
    ],
)
def test_headers_of_every_kind_of_text_and_bytes_are_taken(kind: Any) -> None:
    one: Any = [("h", b"x")] if pa.types.is_map(kind) else [{"key": "h", "value": b"x"}]
    table = pa.table({"value": pa.array([b"1", b"2", b"3"]), "headers": pa.array([one, None, []], kind)})
    assert [row[2] for row in block_rows(table)] == [[["h", b"x"]], None, []]


@pytest.mark.parametrize(
    ("name", "column", "text"),
    [
        (
            "timestamp",
            pa.array([1, 2**60], pa.timestamp("s")),
            "record 1: Invalid timestamp: 1152921504606846976000",
        ),
        ("timestamp", pa.array([0, None, -1], pa.timestamp("us")), "record 2: Invalid timestamp: -1"),
        (
            "timestamp",
            pa.array([2**64 - 1], pa.uint64()),
            "record 0: Invalid timestamp: 18446744073709551615",
        ),
        ("timestamp", pa.array([0, -1], pa.date32()), "record 1: Invalid timestamp: -86400000"),
        ("timestamp", pa.array([-86_400_000], pa.date64()), "record 0: Invalid timestamp: -86400000"),
        ("partition", pa.array([0, 2**31], pa.int64()), "record 1: Invalid partition: 2147483648"),
        ("partition", pa.array([-1], pa.int32()), "record 0: Invalid partition: -1"),
    ],
)
def test_a_number_out_of_range_names_its_record(name: str, column: Any, text: str) -> None:
    table = pa.table({"value": pa.array([b"v"] * len(column)), name: column})
    with pytest.raises(ValueError, match=text):
        checked_columns(table)


def test_numbers_at_the_edge_of_their_range_are_taken() -> None:
    most = 2**63 - 1
    for column, expected in [
        (pa.array([most // 1_000, None, 0], pa.timestamp("s")), [most // 1_000 * 1_000, None, 0]),
        (pa.array([most, None, 0], pa.timestamp("ms")), [most, None, 0]),
        (pa.array([most, None, 999_999], pa.timestamp("ns")), [most // 10**6, None, 0]),
        (pa.array([most, None, 0], pa.uint64()), [most, None, 0]),
        (pa.array([None, None, None], pa.timestamp("s")), [None] * 3),
        (pa.array([2**31 - 1, None, 0], pa.date32()), [(2**31 - 1) * 86_400_000, None, 0]),
        (pa.array([20_089 * 86_400_000, None, 0], pa.date64()), [20_089 * 86_400_000, None, 0]),
    ]:
        table = pa.table({"value": pa.array([b"v"] * 3), "timestamp": column})
        assert [row[4] for row in block_rows(table)] == expected
    table = pa.table({"value": pa.array([b"v"]), "partition": pa.array([2**31 - 1], pa.uint32())})
    assert block_rows(table)[0][3] == 2**31 - 1


@pytest.mark.parametrize("name", ["value", "key", "headers", "partition", "timestamp"])
def test_two_columns_of_one_name_are_refused_by_name(name: str) -> None:
    columns = [pa.array([b"v"]), pa.nulls(1), pa.nulls(1)]
    table = pa.Table.from_arrays(columns, names=["value" if name != "value" else "other", name, name])
    with pytest.raises(ValueError, match=f"2 columns '{name}'"):
        checked_columns(table)
    other = pa.Table.from_arrays(columns, names=["value", "mine", "mine"])
    assert checked_columns(other).column_names == ["value"], "others may have any names"


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([True]), "value attribute unsupported type bool"),
        (pa.array([1], pa.decimal128(9, 2)), "value attribute unsupported type decimal128"),
        (pa.array([[b"v"]]), "value attribute unsupported type list"),
        (pa.array([{"a": 1}]), "value attribute unsupported type struct"),
    ],
)
def test_values_of_other_types_are_refused(column: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        checked_columns(pa.table({"value": column}))


def test_nulls_of_a_dictionary_and_empty_batches(producer: Producer) -> None:
    """A null may be an index or stand in the dictionary itself; chunks and tables without rows are nothing."""
    column = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 0]), pa.array([b"a", None]))
    assert [row[1] for row in block_rows(pa.table({"value": column}))] == [b"a", None, None, b"a"]
    empty = pa.table({"value": pa.array([], pa.binary()), "headers": pa.array([], HEADERS)})
    assert producer.send_arrow("t", empty).result(1) == 0
    table = pa.concat_tables(
        [empty, pa.table({"value": [b"1"], "headers": pa.array([None], HEADERS)}), empty]
    )
    assert producer.send_arrow("t", table).result(10) == 1


def test_a_table_that_fails_in_the_middle_has_the_future_of_its_queued_rows(
    column_daemon: FakeDaemon,
) -> None:
    column_daemon.accept = lambda client, submit: False
    producer = Producer(column_daemon.run_dir, max_block_ms=100)
    table = pa.table({"value": pa.array([bytes(500_000)] * 40)})
    with pytest.raises(errors.BufferExhausted) as caught:
        producer.send_arrow("t", table)
    queued = caught.value.queued
    assert queued is not None
    assert f"(The first {queued.count} records of this call are queued.)" in str(caught.value)
    column_daemon.accept = lambda client, submit: True
    column_daemon.kill_worker()
    assert queued.result(10) == queued.count
    producer.close(0)


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
        block = bytes(column_block(batch))
        unpacker = msgpack.Unpacker()
        unpacker.feed(kernel.records_from_columns(block, batch.num_rows))
        read = [[*record, *[None] * (5 - len(record))] for record in unpacker]
        assert read == read_columns(block)


def as_received(table: Any) -> Any:
    """The table as it comes out of a stream of Arrow's format, which is how Spark hands over its batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue().to_pybytes()).read_all()


def buffer_addresses(column: Any) -> set[int]:
    return {each.address for each in column.chunk(0).buffers() if each is not None}


def test_what_nobody_can_change_is_sent_without_a_copy() -> None:
    table = as_received(pa.table({"key": [b"k" * 16] * 1_000, "value": [b"v" * 100] * 1_000}))
    (batch,) = checked_columns(table).to_batches()
    block = column_block(batch)
    assert isinstance(block, Pieces)
    places = {pa.py_buffer(each).address for each in block.buffers if len(each)}
    assert places >= buffer_addresses(table["key"]) | buffer_addresses(table["value"])
    assert [row[:2] for row in read_columns(bytes(block))] == [[b"k" * 16, b"v" * 100]] * 1_000


def test_what_its_owner_can_change_is_copied() -> None:
    numpy = pytest.importorskip("numpy")
    owned = numpy.full(5_000, 7, dtype=numpy.int64)
    table = pa.table({"value": [b"v"] * 5_000, "timestamp": pa.array(owned)})
    assert owned.ctypes.data in buffer_addresses(table["timestamp"]), "Arrow has no copy of it"
    (batch,) = checked_columns(table).to_batches()
    block = column_block(batch)
    owned[:] = 8
    assert {row[4] for row in read_columns(bytes(block))} == {7}


@pytest.mark.parametrize("size_bytes", [FRAME_COPIED_BYTES, FRAME_COPIED_BYTES + 1])
def test_a_small_frame_is_no_longer_in_pieces(size_bytes: int) -> None:
    made = Pieces.of([b"a", bytes(size_bytes - 1)])
    assert isinstance(made, bytes) is (size_bytes == FRAME_COPIED_BYTES)
    assert (len(made), bytes(made)) == (size_bytes, b"a" + bytes(size_bytes - 1))


def test_pieces_that_a_socket_takes_in_parts_arrive_whole(column_daemon: FakeDaemon) -> None:
    """Megabytes of all columns, cut into submissions, between other records of the topic."""
    count = 30_000
    table = as_received(
        pa.table(
            {
                "key": [None if number % 3 == 0 else b"k%d" % number for number in range(count)],
                "value": [b"%d" % number * 30 for number in range(count)],
                "headers": pa.array(
                    [[{"key": "h", "value": b"%d" % number}] for number in range(count)], HEADERS
                ),
                "partition": pa.array([number % 5 for number in range(count)], pa.int32()),
                "timestamp": pa.array(range(count), pa.int64()),
            }
        )
    )
    with Producer(column_daemon.run_dir) as producer:
        producer.send("t", b"before").result(30)
        producer.send_arrow("t", table.slice(1)).result(30)
        producer.send("t", b"after").result(30)
    blocks = [each for each in column_daemon.received if each.format == Format.ARROW]
    assert len(blocks) > 1
    assert [row for each in blocks for row in read_columns(each.payload)] == block_rows(table.slice(1))
