"""Goal: records of files as they are meant, and each bad one named by its place."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from sidecar.cli.record_files import BadInput, Pair, format_of, read_records


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
    [("a.jsonl", "jsonl"), ("a.NDJSON", "jsonl"), ("a.csv", "csv"), ("a.parquet", "parquet"), ("-", "lines")],
)
def test_format_by_name(name: str, form: str) -> None:
    assert format_of(Path(name)) == form
