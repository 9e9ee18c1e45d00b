"""Goal: records of files as they are meant, and each bad one named by its place."""

from __future__ import annotations

import csv
import io
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from sidecar.cli import record_files
from sidecar.cli.bad_input import BadInput
from sidecar.cli.record_files import Pair, format_of, read_records


def read(content: str | bytes, form: str, key: str | None = None) -> list[Pair]:
    data = content.encode() if isinstance(content, str) else content
    return list(read_records(io.BytesIO(data), "file", form, key))


def test_lines() -> None:
    assert read("a\r\n\nb", "lines") == [(None, b"a"), (None, b""), (None, b"b")]
    assert read(b"\xff\n", "lines") == [(None, b"\xff")], "lines are bytes"


def test_jsonl() -> None:
    text = '{"k": "x", "n": 1}\n\n {"k": null}\n{"k": 5}\n'
    assert read(text, "jsonl", "k") == [
        (b"x", b'{"k": "x", "n": 1}'),
        (None, b'{"k": null}'),
        (b"5", b'{"k": 5}'),
    ]
    assert read("[1]\n", "jsonl") == [(None, b"[1]")]


def test_csv() -> None:
    text = 'carrier,note\nUA,"two\nlines"\n"Ü",x\n'
    assert read(text, "csv", "carrier") == [
        (b"UA", b'{"carrier":"UA","note":"two\\nlines"}'),
        ("Ü".encode(), '{"carrier":"Ü","note":"x"}'.encode()),
    ]


def test_parquet(tmp_path: Path) -> None:
    table = pa.table({"k": ["a", None], "n": [1, 2], "at": pa.array([0, 1], pa.timestamp("s"))})
    parquet.write_table(table, tmp_path / "t.parquet")
    found = read((tmp_path / "t.parquet").read_bytes(), "parquet", "k")
    assert found[0] == (b"a", b'{"k":"a","n":1,"at":"1970-01-01T00:00:00"}')
    assert found[1][0] is None


@pytest.mark.parametrize(
    ("content", "form", "key", "words"),
    [
        ("{}\n{", "jsonl", None, "file, line 2: not JSON"),
        ("[1]", "jsonl", "k", 'no field "k"'),
        ('{"a": 1}', "jsonl", "k", 'line 1: has no field "k"'),
        ("", "csv", None, "first line must name the columns"),
        ("a,b\n1,2\n", "csv", "k", 'no column "k" for the key; columns are a, b'),
        ("a,b\n1,2\n3\n", "csv", None, "line 3: not 2 fields"),
        ("a,b\n1,2,3\n", "csv", None, "line 2: not 2 fields"),
        (b"a\n\xff\n", "csv", None, "UTF-8"),
        ("no parquet", "parquet", None, "not a readable Parquet file"),
    ],
)
def test_bad_input_names_its_place(content: str | bytes, form: str, key: str | None, words: str) -> None:
    with pytest.raises(BadInput) as bad:
        read(content, form, key)
    assert words in str(bad.value)


def test_records_before_a_bad_one_are_read() -> None:
    records = read_records(io.BytesIO(b'{"k": 1}\n{'), "file", "jsonl", None)
    assert next(records) == (None, b'{"k": 1}')
    with pytest.raises(BadInput):
        next(records)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.csv.gz", "csv"),
        ("a.jsonl.zst", "jsonl"),
        ("a.gz", "lines"),
        ("a.jsonl", "jsonl"),
        ("a.NDJSON", "jsonl"),
        ("a.csv", "csv"),
        ("a.parquet", "parquet"),
        ("-", "lines"),
    ],
)
def test_format_by_name(name: str, form: str) -> None:
    assert format_of(Path(name)) == form


# --- nothing is changed or left out -----------------------------------------------------------------------


def parquet_of(table: pa.Table, **how: Any) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(table, sink, **how)
    return sink.getvalue()


def refusal(content: str | bytes, form: str, key: str | None = None, binary: str = "text") -> str:
    with pytest.raises(BadInput) as bad:
        data = content.encode() if isinstance(content, str) else content
        list(read_records(io.BytesIO(data), "file", form, key, binary))
    return str(bad.value)


def test_two_columns_of_one_name_are_refused_and_none_is_dropped() -> None:
    assert 'file: two columns are called "id"' in refusal("id,name,id\n1,a,2\n", "csv")
    assert 'two columns are called ""' in refusal("a,,\n1,2,3\n", "csv")
    two = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert 'file: two columns are called "a"' in refusal(parquet_of(two), "parquet")
    pairs = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["b", "b"])
    nested = pa.table({"s": pa.ListArray.from_arrays(pa.array([0, 1]), pairs)})
    assert 'column "s" has two "b"' in refusal(parquet_of(nested), "parquet")


def test_bytes_of_parquet_are_text_or_base64_and_keys_are_themselves() -> None:
    file = parquet_of(pa.table({"b": pa.array([b"text", b"\xff\x00\x01"])}))
    assert read(parquet_of(pa.table({"b": [b"text"]})), "parquet", "b") == [(b"text", b'{"b":"text"}')]
    assert (
        refusal(file, "parquet")
        == 'file, row 2: column "b" has bytes that are not UTF-8 text; take --binary base64.'
    )
    found = list(read_records(io.BytesIO(file), "file", "parquet", "b", "base64"))
    assert found == [(b"text", b'{"b":"dGV4dA=="}'), (b"\xff\x00\x01", b'{"b":"/wAB"}')]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_without_json_form_is_refused_with_its_row(value: float) -> None:
    file = parquet_of(pa.table({"n": [1.5, value], "s": ["a", "b"]}))
    assert (
        refusal(file, "parquet")
        == f'file, row 2: column "n" is {value}, which JSON does not have; make it null, or text.'
    )
    nested = parquet_of(pa.table({"l": [[1.0], [value]]}))
    assert 'file, row 2: column "l" holds NaN or Infinity' in refusal(nested, "parquet")
    assert read(parquet_of(pa.table({"n": pa.array([None, 1.5])})), "parquet") == [
        (None, b'{"n":null}'),
        (None, b'{"n":1.5}'),
    ]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_line_with_a_constant_that_json_does_not_have_is_refused(word: str) -> None:
    assert (
        refusal(f'{{"a": 1}}\n{{"a": [{word}]}}\n', "jsonl")
        == f"file, line 2: not JSON ({word} is not JSON)."
    )


def test_a_deeply_nested_line_is_one_sentence_with_its_number() -> None:
    assert (
        refusal('{"a": 1}\n' + "[" * 100_000 + "]" * 100_000, "jsonl")
        == "file, line 2: nested too deeply to be read."
    )


@pytest.mark.parametrize(
    ("number", "key"),
    [("1.10", b"1.10"), ("9" * 5_000, b"9" * 5_000), ("1e999", b"1e999"), ("-0", b"-0"), ("true", b"true")],
)
def test_the_key_of_a_number_is_its_text(number: str, key: bytes) -> None:
    """Not what Python makes of it: 1.10 would go to another partition than the same text from elsewhere."""
    line = f'{{"k": {number}}}'.encode()
    assert read(line, "jsonl", "k") == [(key, line)]


def test_a_key_that_stands_twice_is_refused() -> None:
    """Python's parser takes the last one, Java's the first; the value goes as it stands."""
    assert refusal('{"k": 1, "a": 2, "k": 3}', "jsonl", "k") == (
        'file, line 1: has the field "k" twice, so its key is not clear.'
    )
    assert "twice" in refusal('{"k": 1, "\\u006b": 3}', "jsonl", "k")
    assert "twice" in refusal('{"ü": 1, "ü": 3}', "jsonl", "ü")
    line = '{"a": {"k": 1, "k": 2}, "b": 1, "b": 2, "k": 5}'
    assert read(line, "jsonl", "k") == [(b"5", line.encode())]
    assert read('{"k": 1, "k": 2}', "jsonl") == [(None, b'{"k": 1, "k": 2}')]
    digits = f'{{"k": [{"9" * 5_000}]}}'
    assert read(digits, "jsonl") == [(None, digits.encode())]
    assert 'file, line 1: field "k": Exceeds the limit' in refusal(digits, "jsonl", "k")


def test_keys_of_other_kinds() -> None:
    assert read('{"k": {"a": [1, 2.5]}}', "jsonl", "k")[0][0] == b'{"a":[1,2.5]}'
    assert 'line 1: field "k" has half a character' in refusal('{"k": "\\ud800"}', "jsonl", "k")
    assert 'row 1: the key "k" is nan' in refusal(parquet_of(pa.table({"k": [math.nan]})), "parquet", "k")


def test_a_decimal_or_a_time_is_a_key_without_quotes() -> None:
    for column, key in [
        (pa.array([Decimal("1.10")]), b"1.10"),
        (pa.array([0], pa.timestamp("us", "UTC")), b"1970-01-01T00:00:00+00:00"),
        (pa.array([0], pa.time64("us")), b"00:00:00"),
        (pa.array([[1, 2]]), b"[1,2]"),
    ]:
        assert read(parquet_of(pa.table({"k": column})), "parquet", "k")[0][0] == key


def test_a_line_ends_once() -> None:
    """Further carriage returns are the record's."""
    assert read(b"a\r\r\nb\rc\nd\r", "lines") == [(None, b"a\r"), (None, b"b\rc"), (None, b"d\r")]


def test_lines_of_json_are_utf8_and_a_byte_order_mark_is_none_of_it() -> None:
    assert read(b"\xef\xbb\xbf[1]\n[2]", "jsonl") == [(None, b"[1]"), (None, b"[2]")]
    assert "line 1: not JSON ('utf-8' codec" in refusal(b'"\xed\xa0\x80"', "jsonl")


def test_a_csv_in_another_encoding_names_its_line_and_what_stands_before_is_read() -> None:
    """Decoding by blocks lost the rows of the block."""
    records = read_records(io.BytesIO("a,b\n1,ü\n2,".encode() + "ü\n".encode("latin-1")), "file", "csv", None)
    assert next(records) == (None, '{"a":"1","b":"ü"}'.encode())
    with pytest.raises(
        BadInput, match=r"^file, line 3: not CSV in UTF-8 \('utf-8' codec can't decode byte 0xfc"
    ):
        next(records)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_csv_has_any_end_of_line(end: str) -> None:
    text = end.join(["a,b", '1,"x', 'y"', "2,z"])
    for last in ("", end):
        found = [value for _, value in read(text + last, "csv")]
        assert found == [
            '{"a":"1","b":"x{}y"}'.replace("{}", end.replace("\r", "\\r").replace("\n", "\\n")).encode(),
            b'{"a":"2","b":"z"}',
        ]


def test_a_csv_that_ends_in_the_middle_or_quotes_by_halves_is_refused() -> None:
    """The csv module would drop quotes and go on."""
    assert "not CSV in UTF-8 (unexpected end of data)" in refusal('a,b\n1,"cut', "csv")
    assert "near line 3: not CSV" in refusal('a,b\n1,2\n"x"y,2\n', "csv")
    assert read('a,b\n5" pipe,2', "csv") == [(None, b'{"a":"5\\" pipe","b":"2"}')]


def test_fields_and_lines_are_as_long_as_records_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    field = "x" * 1_000_000
    assert read(f"a,b\n1,{field}\n", "csv") == [(None, f'{{"a":"1","b":"{field}"}}'.encode())]
    monkeypatch.setattr(record_files, "LINE_BYTES_MAX", 10)
    assert read("123456789\n", "lines") == [(None, b"123456789")]
    for form, content in (
        ("lines", "a\n" + "x" * 11),
        ("jsonl", "1\n" + "x" * 11),
        ("csv", "a\n" + "x" * 11),
    ):
        assert refusal(content, form) == "file, line 2: longer than 10 bytes, which no record can be."


def test_the_csv_limit_of_the_process_is_never_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one for the whole process: importlib.metadata reads lists of files by the same module."""
    before = csv.field_size_limit()
    monkeypatch.setattr(record_files, "LINE_BYTES_MAX", 10)
    assert read("a\n1\n", "csv") == [(None, b'{"a":"1"}')]
    assert csv.field_size_limit() == before
