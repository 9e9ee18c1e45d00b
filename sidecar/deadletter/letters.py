"""A dead letter: a record that failed, or was never delivered, and has nobody left to be told.

One line of JSON per record, so that an operator can read a spool with ``jq`` and ``base64``. Its identity
(client, stream, seq, index) names one record for all time: a record that was written twice is one record.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from client_stub.error_codes import ERROR_CODES
from client_stub.wire import LocalCode, Persistence

if TYPE_CHECKING:
    from sidecar.kernel import Entry
    from sidecar.shm.client_table import ClientRow

FORMAT_VERSION: Final = 1
POISON: Final = ERROR_CODES[LocalCode.POISON_SUBMISSION].name
"""The error of what killed its worker again and again: kept for who looks for the reason, not to be sent again."""
NOT_SENT_CODE: Final = 0
"""A record without any outcome: its segment was set aside before it was delivered."""

Header = tuple[str, bytes | None]


class Undelivered(NamedTuple):
    """Records of one submission that share a fate. ``payload`` is the whole submission's, as its client sent it."""

    client: str
    """The client id in hex: together with stream, seq and index the record's identity."""
    client_name: str
    pid: int
    topic: str
    partition: int | None
    """Where the daemon had put them; None when it came to none."""
    stream: int
    seq: int
    base_timestamp_ms: int
    record_count: int
    """Records in the payload."""
    payload: bytes
    indexes: list[int]
    """The records meant, ascending."""
    code: int
    text: str
    persistence: int

    @classmethod
    def of(
        cls,
        entry: Entry,
        row: ClientRow | None,
        payload: bytes,
        *,
        client: str,
        topic: str,
        partition: int | None,
        indexes: list[int],
        code: int,
        text: str,
        persistence: int,
    ) -> Undelivered:
        """From the journal's entry and its client's row; ``client`` stands for the id where the row is gone."""
        return cls(
            client=row.client_id.hex() if row is not None else client,
            client_name=row.name if row is not None else "",
            pid=row.pid if row is not None else 0,
            topic=topic,
            partition=partition,
            stream=entry.stream,
            seq=entry.seq,
            base_timestamp_ms=entry.base_timestamp_ms,
            record_count=entry.count,
            payload=payload,
            indexes=indexes,
            code=code,
            text=text,
            persistence=persistence,
        )


class Letter(NamedTuple):
    """One line of a spool, read back."""

    identity: str
    topic: str
    partition: int | None
    """The one its sender asked for; None: any."""
    timestamp_ms: int
    failed_ms: int
    error: str
    text: str
    possibly_persisted: bool
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    is_readable: bool
    """False: ``value`` is the rest of a submission that is no record; it cannot be sent."""

    @property
    def size_bytes(self) -> int:
        return len(self.key or b"") + len(self.value or b"")


def persistence_of(code: int) -> Persistence:
    """Failures by word were never sent; but for those of a batch that was, and cannot be read any more."""
    return Persistence.POSSIBLY_PERSISTED if code == LocalCode.ENCODE_MISMATCH else Persistence.NOT_PERSISTED


def lines(group: Undelivered, failed_ms: int) -> Iterator[bytes]:
    """One line per record of ``group``, each ending in a newline. ``failed_ms``: wall clock of the writing."""
    wanted = set(group.indexes)
    row = ERROR_CODES.get(group.code)
    error = "NOT_DELIVERED" if group.code == NOT_SENT_CODE else row.name if row else f"ERROR_{group.code}"
    for index, record in _records(group):
        if index not in wanted:
            continue
        shown: dict[str, Any] = {
            "v": FORMAT_VERSION,
            "id": f"{group.client}/{group.stream}/{group.seq}/{index}",
            "topic": group.topic,
            "partition": record.partition,
            "tried": group.partition,
            "timestamp_ms": group.base_timestamp_ms if record.timestamp_ms is None else record.timestamp_ms,
            "failed_ms": failed_ms,
            "error": error,
            "text": group.text or (row.text if row else ""),
            "persisted": "possibly" if group.persistence == Persistence.POSSIBLY_PERSISTED else "no",
            "client": group.client_name,
            "pid": group.pid,
            "key": _base64(record.key),
            "value": _base64(record.value),
            "headers": [[name, _base64(value)] for name, value in record.headers],
        }
        if record.raw is not None:
            shown["raw"] = _base64(record.raw)
        yield json.dumps(shown, separators=(",", ":")).encode() + b"\n"


def parse(line: bytes) -> Letter:
    """The letter in one line. Raises ValueError for a line that is none, also one cut short by a crash."""
    try:
        found = json.loads(line)
        if found["v"] != FORMAT_VERSION:
            raise ValueError(f"version {found['v']} of the format is not known here")
        raw = _bytes(found.get("raw"))
        return Letter(
            identity=str(found["id"]),
            topic=str(found["topic"]),
            partition=found["partition"],
            timestamp_ms=int(found["timestamp_ms"]),
            failed_ms=int(found["failed_ms"]),
            error=str(found["error"]),
            text=str(found["text"]),
            possibly_persisted=found["persisted"] == "possibly",
            key=_bytes(found["key"]),
            value=raw if raw is not None else _bytes(found["value"]),
            headers=[(str(name), _bytes(value)) for name, value in found["headers"]],
            is_readable=raw is None,
        )
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


class _Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    partition: int | None
    timestamp_ms: int | None
    raw: bytes | None = None


def _records(group: Undelivered) -> Iterator[tuple[int, _Record]]:
    """(index, record) of the whole payload. From the first unreadable one on nothing can be told apart: all the
    rest stands as raw bytes in that one, and the ones behind it are empty."""
    unpacker = msgpack.Unpacker(
        raw=False,
        unicode_errors="surrogateescape",
        strict_map_key=False,
        max_buffer_size=max(len(group.payload), 1),
    )
    unpacker.feed(group.payload)
    at = 0
    for index in range(group.record_count):
        try:
            record = _record(unpacker.unpack())
        except (ValueError, TypeError, msgpack.UnpackException):
            yield index, _Record(None, None, [], None, None, raw=group.payload[at:])
            for behind in range(index + 1, group.record_count):
                yield behind, _Record(None, None, [], None, None, raw=b"")
            return
        at = unpacker.tell()
        yield index, record


def _record(fields: Any) -> _Record:
    if not isinstance(fields, list) or not 2 <= len(fields) <= 5:
        raise ValueError("not [key, value, headers, partition, timestamp]")
    key, value, headers, partition, timestamp_ms = fields + [None] * (5 - len(fields))
    if not all(isinstance(each, (bytes, type(None))) for each in (key, value)):
        raise TypeError("key and value are bytes or nil")
    if not all(isinstance(each, (int, type(None))) for each in (partition, timestamp_ms)):
        raise TypeError("partition and timestamp are numbers or nil")
    pairs = [(name, content) for name, content in headers or ()]
    if not all(isinstance(name, str) and isinstance(content, (bytes, type(None))) for name, content in pairs):
        raise TypeError("headers are pairs of text and bytes")
    return _Record(key, value, pairs, partition, timestamp_ms)


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)
