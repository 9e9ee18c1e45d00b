"""The input of ``produce`` as text: opens gzip by its first bytes, drops a byte order mark, refuses what is no text.

What is read is handed on at once, so that records of a pipe are sent while its writer still thinks about the next one.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Sequence
from typing import IO, Any, Final

from sidecar.cli.bad_input import BadInput

CHUNK_BYTES: Final = 1 << 16
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_GZIP: Final = b"\x1f\x8b"
_PIPE: Final = "is compressed by {0}: write `{1} | kafka-sidecar produce ...`"
_ICONV: Final = "is UTF-16 or UTF-32 and not UTF-8: `iconv -f {0} -t UTF-8` changes it"
NO_TEXT: Final = {
    b"\x28\xb5\x2f\xfd": _PIPE.format("zstd", "zstd -dc FILE"),
    b"\xfd7zXZ\0": _PIPE.format("xz", "xz -dc FILE"),
    **{b"BZh%d1AY&SY" % level: _PIPE.format("bzip2", "bzip2 -dc FILE") for level in range(1, 10)},
    b"\x04\x22\x4d\x18": _PIPE.format("lz4", "lz4 -dc FILE"),
    b"\x1f\x9d": _PIPE.format("compress", "zcat FILE"),
    b"PK\x03\x04": "is a zip archive (or a workbook): write `unzip -p FILE | kafka-sidecar produce ...`",
    b"\xff\xfe\0\0": _ICONV.format("UTF-32"),
    b"\0\0\xfe\xff": _ICONV.format("UTF-32"),
    b"\xff\xfe": _ICONV.format("UTF-16"),
    b"\xfe\xff": _ICONV.format("UTF-16"),
    b"PAR1\x15": "is Parquet: take --format parquet",
    b"Obj\x01": "is Avro: change it to JSON lines first (`avro-tools tojson FILE`)",
    b"ARROW1\0\0": "is Arrow IPC: change it to Parquet first",
}
"""First bytes that no text has → what the file is, and what to do. Of two that begin alike the longer is first."""
_MARK_BYTES: Final = max(map(len, NO_TEXT))


def opened(stream: IO[bytes], name: str) -> IO[bytes]:
    """``stream``, or what it holds in gzip."""
    head, stream = _peeked(stream, (_GZIP,))
    return io.BufferedReader(_Gunzipped(stream, name)) if head.startswith(_GZIP) else stream


def text_of(stream: IO[bytes], name: str) -> IO[bytes]:
    """``stream`` as ``opened`` gives it, without a byte order mark. Raises BadInput for what is no text."""
    head, stream = _peeked(opened(stream, name), (*NO_TEXT, BYTE_ORDER_MARK))
    for mark, why in NO_TEXT.items():
        if head.startswith(mark):
            raise BadInput(f"{name}: {why}.")
    if head.startswith(BYTE_ORDER_MARK):
        stream.read(len(BYTE_ORDER_MARK))
    return stream


def _peeked(stream: IO[bytes], marks: Sequence[bytes]) -> tuple[bytes, IO[bytes]]:
    """(the first bytes, a stream that still begins with them). Of a pipe no byte is waited for once none of ``marks``
    can be there.
    """
    if stream.seekable():
        begin = stream.tell()
        head = stream.read(_MARK_BYTES)
        stream.seek(begin)
        return head, stream
    head, read = b"", _reader_of(stream)
    while any(mark.startswith(head[: len(mark)]) and len(head) < len(mark) for mark in marks):
        more = read(CHUNK_BYTES)
        if not more:  # a terminal would give more after its end
            return head, io.BytesIO(head)
        head += more
    return head, io.BufferedReader(_Joined(head, stream), CHUNK_BYTES)


def _reader_of(stream: IO[bytes]) -> Callable[[int], bytes]:
    """The read() that returns what is there."""
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    return read


class _Raw(io.RawIOBase):
    """A raw stream of what ``more()`` returns; b"" is the end."""

    _rest = memoryview(b"")

    def more(self) -> bytes:
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any, /) -> int:
        if not self._rest:
            self._rest = memoryview(self.more())
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class _Joined(_Raw):
    """The bytes that were read already, and those after them."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self._rest = memoryview(head)
        self._read = _reader_of(stream)

    def more(self) -> bytes:
        return self._read(CHUNK_BYTES)


class _Gunzipped(_Raw):
    """The contents of gzip's members, one after the other. Zeros after the last one are padding, as gzip has it."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._read = _reader_of(stream)
        self._name = name
        self._member = _member()
        self._left = b""
        """What was read after the end of a member."""
        self._is_between = False

    def more(self) -> bytes:
        while True:
            if self._member.eof:
                self._left, self._is_between = self._member.unused_data, True
                self._member = _member()
            given = self._member.unconsumed_tail or self._left or self._read(CHUNK_BYTES)
            self._left = b""
            if self._is_between:
                if not given:
                    return b""
                given = given.lstrip(b"\0")
                self._is_between = not given
            found = self._decompressed(given)
            if found:
                return found
            if not given and not self._is_between and not self._member.eof:
                raise BadInput(f"{self._name}: its gzip data ends in the middle.")

    def _decompressed(self, given: bytes) -> bytes:
        try:
            return bytes(self._member.decompress(given, CHUNK_BYTES))
        except zlib.error as error:
            raise BadInput(f"{self._name}: its gzip data is damaged ({error}).") from None


def _member() -> Any:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)
