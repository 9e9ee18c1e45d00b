"""Goal: gzip is opened by its first bytes, a byte order mark is no part of a record, and what is no text is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import threading
import zipfile
from pathlib import Path

import cramjam
import pytest

from sidecar.cli import plain_input
from sidecar.cli.bad_input import BadInput
from sidecar.cli.record_files import Pair, read_records

TEXT = b"".join(b"line %d\n" % number for number in range(20_000))
LINES = TEXT.splitlines()


def values(content: bytes, form: str = "lines", **how: bytes) -> list[bytes]:
    return [value for _, value in read_records(io.BytesIO(content), "file", form, None, **how)]  # type: ignore[arg-type]


class Trickle(io.RawIOBase):
    """A pipe whose writer is slow: each read gets some bytes only."""

    def __init__(self, content: bytes, sizes: random.Random) -> None:
        self._content = io.BytesIO(content)
        self._sizes = sizes

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        more = self._content.read(min(len(target), self._sizes.choice((1, 2, 3, 7, 5_000))))
        target[: len(more)] = more
        return len(more)


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(TEXT),
        gzip.compress(TEXT[:70_000]) + gzip.compress(b"") + gzip.compress(TEXT[70_000:]),
        gzip.compress(TEXT) + bytes(512),
        gzip.compress(b"\xef\xbb\xbf" + TEXT),
        b"\xef\xbb\xbf" + TEXT,
        TEXT,
    ],
    ids=["gzip", "members", "padded", "gzip with a mark", "mark", "plain"],
)
def test_compressed_input_is_read_as_its_text(content: bytes, tmp_path: Path) -> None:
    assert values(content) == LINES
    assert values(content, delimiter=b"\n") == LINES
    for seed in range(5):
        stream = io.BufferedReader(Trickle(content, random.Random(seed)))
        assert [value for _, value in read_records(stream, "stdin", "lines", None)] == LINES, seed
    file = tmp_path / "file"
    file.write_bytes(b"read before\n" + content)
    with file.open("rb") as opened:
        opened.readline()  # as `{ read line; kafka-sidecar produce ...; } < file` does
        assert [value for _, value in read_records(opened, "file", "lines", None)] == LINES


def test_input_that_expands_a_thousandfold_is_read_in_pieces() -> None:
    stream = plain_input.opened(io.BytesIO(gzip.compress(bytes(50 << 20))), "file")
    assert len(stream.read1(1 << 30)) <= plain_input.CHUNK_BYTES  # type: ignore[attr-defined]
    assert sum(map(len, iter(lambda: stream.read(1 << 20), b""))) > 49 << 20


def test_csv_and_jsonl_and_keys_of_lines_are_opened_too() -> None:
    mark = "\ufeff"
    for content in (f"{mark}k,v\n1,2\n".encode(), gzip.compress(b"k,v\n1,2\n")):
        assert list(read_records(io.BytesIO(content), "file", "csv", "k")) == [(b"1", b'{"k":"1","v":"2"}')]
    for content in (f'{mark}{{"k":1}}\n'.encode(), gzip.compress(b'{"k":1}\n')):
        assert list(read_records(io.BytesIO(content), "file", "jsonl", "k")) == [(b"1", b'{"k":1}')]
    for content in (b"\xef\xbb\xbfa;\xef\xbb\xbfb", b"\xef\xbb\xbf"):
        assert values(content) == ([b"a;\xef\xbb\xbfb"] if len(content) > 3 else []), "only at the beginning"


def test_a_whole_file_goes_as_it_stands() -> None:
    for content in (gzip.compress(TEXT), b"\xef\xbb\xbfa\n", b"PAR1\x15"):
        assert values(content, "whole") == [content]


def zipped() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a.csv", TEXT)
    return sink.getvalue()


@pytest.mark.parametrize("form", ["lines", "jsonl", "csv"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bytes(cramjam.zstd.compress(TEXT)), "is compressed by zstd: write `zstd -dc FILE | kafka-sidecar"),
        (bytes(cramjam.lz4.compress(TEXT)), "is compressed by lz4: write `lz4 -dc FILE | kafka-sidecar"),
        (lzma.compress(TEXT), "is compressed by xz: write `xz -dc FILE | kafka-sidecar"),
        (bz2.compress(TEXT, 1), "is compressed by bzip2: write `bzip2 -dc FILE | kafka-sidecar"),
        (bz2.compress(TEXT), "is compressed by bzip2"),
        (zipped(), "is a zip archive (or a workbook)"),
        ("a\n".encode("utf-16"), "is UTF-16 or UTF-32 and not UTF-8: `iconv -f UTF-16 -t UTF-8` changes it."),
        ("a\n".encode("utf-32"), "`iconv -f UTF-32 -t UTF-8` changes it."),
        (b"PAR1\x15\x04", "is Parquet: take --format parquet."),
        (b"Obj\x01\x04", "is Avro"),
        (gzip.compress(lzma.compress(TEXT)), "is compressed by xz"),
    ],
)
def test_input_that_is_no_text_fails_with_one_sentence(content: bytes, words: str, form: str) -> None:
    for stream in (io.BytesIO(content), io.BufferedReader(Trickle(content, random.Random(1)))):
        with pytest.raises(BadInput) as bad:
            list(read_records(stream, "file", form, None))
        assert str(bad.value).startswith("file: is ") and words in str(bad.value)
        assert str(bad.value).endswith(".") and "\n" not in str(bad.value)


@pytest.mark.parametrize(
    "text", [b"PAR1S", b"BZh9", b"BZhello", b"ORCA", b"ARROW1", b"PK", b"\x1f", b"\xff", b"("]
)
def test_text_that_begins_like_none_is_text(text: bytes) -> None:
    assert values(text + b"\nb\n") == [text, b"b"]
    assert values(text) == [text]


@pytest.mark.parametrize("cut", [1, 4, 8, 9, 40])
def test_gzip_that_ends_in_the_middle(cut: int) -> None:
    found: list[Pair] = []
    content = gzip.compress(TEXT)
    with pytest.raises(BadInput, match=r"^file: its gzip data ends in the middle\.$"):
        found.extend(read_records(io.BytesIO(content[:-cut]), "file", "lines", None))
    broken = bytearray(content)
    broken[-8] ^= 1  # the checksum
    sent = []
    with pytest.raises(BadInput, match=r"^file: its gzip data is damaged \("):
        sent.extend(read_records(io.BytesIO(broken), "file", "lines", None))


def test_a_record_of_a_pipe_is_read_before_the_next_one_is_written() -> None:
    """Also one that begins as a mark could, and the input that ends without a record."""
    for first in (b"a", b"\xef\xbb\xbf", b"\x1fa"):
        reading, writing = os.pipe()
        with open(reading, "rb") as stream:  # noqa: PTH123
            records = read_records(stream, "stdin", "lines", None)
            got: list[bytes] = []
            came = threading.Event()

            def read(records: object = records, got: list[bytes] = got, came: threading.Event = came) -> None:
                got.append(next(records)[1])  # type: ignore[call-overload]
                came.set()

            reader = threading.Thread(target=read)
            reader.start()
            os.write(writing, first + b"\n")
            assert came.wait(10), first
            os.close(writing)
            reader.join()
            assert got == [first.removeprefix(b"\xef\xbb\xbf")] and not list(records)
