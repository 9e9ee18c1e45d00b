"""Goal: each type of Parquet is sent as one and the same JSON, whatever other packages are installed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyarrow import parquet

from sidecar.cli.bad_input import BadInput
from sidecar.cli.record_files import read_records

ROOT: Final = Path(__file__).resolve().parents[2]
INSTANT: Final = 1_700_000_000_123_456_789
PAIRS: Final = pa.map_(pa.string(), pa.timestamp("ns"))
COLUMNS: Final[tuple[tuple[Any, str], ...]] = (
    *((pa.array([-5], kind), "-5") for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((pa.array([5], kind), "5") for kind in (pa.uint8(), pa.uint16(), pa.uint32())),
    (pa.array([2**64 - 1], pa.uint64()), "18446744073709551615"),
    *((pa.array([1.5], kind), "1.5") for kind in (pa.float16(), pa.float32(), pa.float64())),
    (pa.array([True]), "true"),
    (pa.nulls(1), "null"),
    (pa.array(["ü"]), '"ü"'),
    (pa.array(["ü"], pa.large_string()), '"ü"'),
    (pa.array([b"b"]), '"b"'),
    (pa.array([b"b"], pa.large_binary()), '"b"'),
    (pa.array([b"bb"], pa.binary(2)), '"bb"'),
    (pa.array([Decimal("1.10")]), '"1.10"'),
    (pa.array([Decimal("0E-10")], pa.decimal128(20, 10)), '"0.0000000000"'),
    (pa.array([Decimal("-12345678901234567890123456789012345678901234567890.5")]),
     '"-12345678901234567890123456789012345678901234567890.5"'),
    (pa.array([date(2024, 2, 29)]), '"2024-02-29"'),
    (pa.array([-86_400_000], pa.date64()), '"1969-12-31"'),
    (pa.array([5], pa.time32("s")), '"00:00:05"'),
    (pa.array([86_399_999], pa.time32("ms")), '"23:59:59.999000"'),
    (pa.array([5], pa.time64("us")), '"00:00:00.000005"'),
    (pa.array([5], pa.time64("ns")), '"00:00:00.000000005"'),
    (pa.array([INSTANT // 10**9], pa.timestamp("s")), '"2023-11-14T22:13:20"'),
    (pa.array([INSTANT // 10**6], pa.timestamp("ms")), '"2023-11-14T22:13:20.123000"'),
    (pa.array([INSTANT // 10**3], pa.timestamp("us")), '"2023-11-14T22:13:20.123456"'),
    (pa.array([INSTANT], pa.timestamp("ns")), '"2023-11-14T22:13:20.123456789"'),
    (pa.array([-1], pa.timestamp("ns")), '"1969-12-31T23:59:59.999999999"'),
    (pa.array([INSTANT // 10**3], pa.timestamp("us", "UTC")), '"2023-11-14T22:13:20.123456+00:00"'),
    (pa.array([INSTANT], pa.timestamp("ns", "Europe/Berlin")), '"2023-11-14T22:13:20.123456789+00:00"'),
    (pa.array([0], pa.timestamp("ms", "+05:30")), '"1970-01-01T00:00:00+00:00"'),
    (pa.array([90_000], pa.duration("s")), '"PT90000S"'),
    (pa.array([-1], pa.duration("ms")), '"-PT0.001000S"'),
    (pa.array([1], pa.duration("us")), '"PT0.000001S"'),
    (pa.array([1], pa.duration("ns")), '"PT0.000000001S"'),
    (pa.array(["a"]).dictionary_encode(), '"a"'),
    (pa.array([[INSTANT, None]], pa.list_(pa.timestamp("ns"))), '["2023-11-14T22:13:20.123456789",null]'),
    (pa.array([[]], pa.list_(pa.int8())), "[]"),
    (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), "[1,2]"),
    (pa.array([[[1], None]], pa.large_list(pa.list_(pa.int8()))), "[[1],null]"),
    (pa.array([{"a": 1, "b": {"c": INSTANT}}], pa.struct(
        [("a", pa.int8()), ("b", pa.struct([("c", pa.timestamp("ns"))]))])),
     '{"a":1,"b":{"c":"2023-11-14T22:13:20.123456789"}}'),
    (pa.array([[("k", 0), ("k", None)]], PAIRS), '[["k","1970-01-01T00:00:00"],["k",null]]'),
    (pa.array([[{"at": 0}]], pa.list_(pa.struct([("at", pa.duration("ns"))]))), '[{"at":"PT0S"}]'),
)  # fmt: skip


def file_of(**columns: Any) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pa.table(columns), sink)
    return sink.getvalue()


def read(content: bytes, key: str | None = None, binary: str = "text") -> list[tuple[bytes | None, bytes]]:
    return list(read_records(io.BytesIO(content), "file", "parquet", key, binary))


@pytest.mark.parametrize(("column", "shown"), COLUMNS, ids=lambda each: getattr(each, "type", ""))
def test_each_type_and_its_null(column: Any, shown: str) -> None:
    whole = pa.chunked_array([pa.nulls(1, column.type), column, pa.nulls(2, column.type), column])
    expected = [f'{{"c":{each}}}'.encode() for each in ("null", shown, "null", "null", shown)]
    assert [value for _, value in read(file_of(c=whole))] == expected


def test_nulls_inside_are_nulls() -> None:
    """What stands below a null is no value, and the rows behind it keep theirs."""
    for kind in (pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2), PAIRS):
        item = [("k", 0)] if kind == PAIRS else [1, 2]
        found = [value for _, value in read(file_of(c=pa.array([item, None, item], kind)))]
        assert found[1] == b'{"c":null}' and found[0] == found[2] != found[1]
    inner = pa.StructArray.from_arrays(
        [pa.array([1, 2, 3])], names=["a"], mask=pa.array([False, True, False])
    )
    assert [value for _, value in read(file_of(c=inner))] == [
        b'{"c":{"a":1}}',
        b'{"c":null}',
        b'{"c":{"a":3}}',
    ]


def test_keys_of_all_types_are_their_text() -> None:
    for column, shown in COLUMNS:
        key = read(file_of(c=column), "c")[0][0]
        if column.type != pa.null():
            assert key == shown.strip('"').encode()


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pa.array([0, 2**50], pa.timestamp("ms")), "is a time outside of the years 1 to 9999"),
        (pa.array([0, -(2**31)], pa.date32()), "is a date outside of the years 1 to 9999"),
        (pa.array([0, 86_400], pa.time32("s")), "is a time of day outside of 0 to 24 hours"),
        (pa.array([b"a", b"\xff"]), "has bytes that are not UTF-8 text; take --binary base64"),
        (pa.array([b"a", b"\xff"]).view(pa.string()), "has text that is not UTF-8"),
        (pa.array([[b"a"], [b"\xff"]]), "has bytes that are not UTF-8 text; take --binary base64"),
        (
            pa.array([1.0, float("nan")], pa.float16()),
            "is nan, which JSON does not have; make it null, or text",
        ),
        (
            pa.array([{"at": 0}, {"at": 2**62}], pa.struct([("at", pa.timestamp("ms"))])),
            "is a time outside of",
        ),
    ],
    ids=lambda each: getattr(each, "type", ""),
)
def test_an_unsendable_value_names_its_column_and_row(column: Any, why: str) -> None:
    content = file_of(id=pa.array([1, 2]), c=column)
    records = read_records(io.BytesIO(content), "file", "parquet", None)
    assert next(records)[1].startswith(b'{"id":1,'), "what stands before it is sent"
    with pytest.raises(BadInput) as bad:
        next(records)
    assert str(bad.value).startswith(f'file, row 2: column "c" {why}')


def test_a_file_that_breaks_off_says_after_which_row() -> None:
    sink = io.BytesIO()
    with parquet.ParquetWriter(
        sink, pa.schema([("c", pa.int64())]), compression="none", use_dictionary=False
    ) as file:
        for number in range(2):
            file.write_table(pa.table({"c": pa.array([number] * 10)}))
    content = bytearray(sink.getvalue())
    second = parquet.ParquetFile(io.BytesIO(content)).metadata.row_group(1).column(0).data_page_offset
    content[second : second + 8] = b"\xff" * 8
    got = []
    with pytest.raises(BadInput, match=r"^file: not a readable Parquet file after row 10 \("):
        got.extend(read_records(io.BytesIO(content), "file", "parquet", None))


ALONE: Final = """
import sys
from importlib.abc import MetaPathFinder

MAY_BE_THERE = {*sys.stdlib_module_names, "pyarrow", "sidecar", "client_stub", "msgpack", "click", "rich", "cramjam"}

class OnlyTheProducts(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if "." in name or name in MAY_BE_THERE or name.startswith("_sysconfigdata"):
            return None
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OnlyTheProducts())
from sidecar.cli.record_files import read_records

for key, value in read_records(sys.stdin.buffer, "stdin", "parquet", "id"):
    print(value.decode())
"""


def test_no_package_that_nothing_declares_decides(tmp_path: Path) -> None:
    """pandas gave nanoseconds, pytz zones, and tzdata stood in for a host without /usr/share/zoneinfo."""
    columns = {f"c{number}": column for number, (column, _) in enumerate(COLUMNS)}
    ended = subprocess.run(
        [sys.executable, "-c", ALONE],
        input=file_of(id=pa.array([1]), **columns),
        env=os.environ | {"PYTHONTZPATH": str(tmp_path), "TZDIR": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    row = ",".join(f'"c{number}":{shown}' for number, (_, shown) in enumerate(COLUMNS))
    assert ended.stdout.decode() == f'{{"id":1,{row}}}\n'
