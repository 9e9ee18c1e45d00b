"""A dead letter: a record that failed or was never delivered, and has no client left to inform.

A worker writes them in its thread for files; `replay` and `recover` read them.

Each record is one line of JSON, so that an operator can read a spool with ``jq`` and ``base64``. Its identity is the
name of its submission and its index in it. The identity is permanent: a record that was written twice is recognised as
one (sidecar/deadletter/same_record.py).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from client_stub.contract.error_codes import ERROR_CODES
from client_stub.contract.wire import (
    PARTITIONER_MASK,
    PARTITIONER_SHIFT,
    PARTITIONERS,
    LocalCode,
    Persistence,
)

if TYPE_CHECKING:
    from sidecar.kernel import Entry
    from sidecar.shm.client_table import ClientRow

FORMAT_VERSION: Final = 1
POISON: Final = ERROR_CODES[LocalCode.POISON_SUBMISSION].name
"""Error of a submission that killed its worker several times: kept for investigation, and not sent again."""
NOT_SENT_CODE: Final = 0
"""Code of a record without an outcome: its segment was set aside before it was delivered."""

_WALL_MS_MAX: Final = 253_402_300_799_999
"""End of the year 9999, the last one that a date can show."""

Header = tuple[str, bytes | None]


class Undelivered(NamedTuple):
    """Records of one submission that share an outcome."""

    name: bytes
    """Name of the submission; with the index it is the record's identity."""
    sender: str
    """Client id, stream and seq, by which its client knew the submission; "" if the client is not known."""
    client_name: str
    pid: int
    topic: str
    partition: int | None
    """Partition chosen by the daemon; None if it had chosen none."""
    base_timestamp_ms: int
    payload: bytes
    """Records as their client sent them: the whole submission, or only the selected ones."""
    numbers: Sequence[int]
    """Index in the submission of each record in the payload, ascending."""
    indexes: list[int]
    """Indexes of the selected records, ascending."""
    code: int
    text: str
    persistence: int
    partitioner: str | None = None
    """The one that its client has named for records without a partition."""

    @classmethod
    def of(
        cls,
        entry: Entry,
        row: ClientRow | None,
        payload: bytes,
        *,
        numbers: Sequence[int],
        name: bytes,
        topic: str,
        partition: int | None,
        indexes: list[int],
        code: int,
        text: str,
        persistence: int,
    ) -> Undelivered:
        """Build from the journal's entry and its client's row; ``row`` None: the client no longer has it."""
        number = entry.flags >> PARTITIONER_SHIFT & PARTITIONER_MASK
        return cls(
            name=name,
            sender=f"{row.client_id.hex()}/{entry.stream}/{entry.seq}" if row is not None else "",
            client_name=row.name if row is not None else "",
            pid=row.pid if row is not None else 0,
            topic=topic,
            partition=partition,
            base_timestamp_ms=entry.base_timestamp_ms,
            payload=payload,
            numbers=numbers,
            indexes=indexes,
            code=code,
            text=text,
            persistence=persistence,
            partitioner=PARTITIONERS[number - 1] if number else None,
        )


class Letter(NamedTuple):
    """One line of a spool, read back."""

    identity: str
    sender: str | None
    """Name by which its client knew the record; None if not known, and in letters of earlier versions."""
    topic: str
    partition: int | None
    """Partition requested by its sender; None for any."""
    timestamp_ms: int
    failed_ms: int
    error: str
    text: str
    possibly_persisted: bool
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    is_readable: bool
    """False if ``value`` is the unreadable rest of a submission, which cannot be sent."""
    partitioner: str | None = None
    """The one that its sender has named for a record without a partition; None: the daemon's."""

    @property
    def size_bytes(self) -> int:
        return len(self.key or b"") + len(self.value or b"")


def persistence_of(code: int) -> Persistence:
    """Persistence of a failure that a word records: not sent, except for a batch that was sent and cannot be read any
    more.
    """
    return Persistence.POSSIBLY_PERSISTED if code == LocalCode.ENCODE_MISMATCH else Persistence.NOT_PERSISTED


def lines(groups: Iterable[Undelivered], failed_ms: int) -> Iterator[bytes]:
    """One line per selected record, each ending in a newline. ``failed_ms``: wall-clock ms of the writing.

    Adjacent groups with the same payload share one read of it.
    """
    payload: bytes | None = None
    numbers: Sequence[int] = ()
    records: dict[int, _Record] = {}
    for group in groups:
        if group.payload is not payload or group.numbers != numbers:
            payload, numbers = group.payload, group.numbers
            records = dict(zip(numbers, _records(payload, len(numbers)), strict=True))
        for index in group.indexes:
            yield _line(group, index, records[index], failed_ms)


def _line(group: Undelivered, index: int, record: _Record, failed_ms: int) -> bytes:
    row = ERROR_CODES.get(group.code)
    error = "NOT_DELIVERED" if group.code == NOT_SENT_CODE else row.name if row else f"ERROR_{group.code}"
    shown: dict[str, Any] = {
        "v": FORMAT_VERSION,
        "id": f"{group.name.hex()}/{index}",
        "sender": f"{group.sender}/{index}" if group.sender else None,
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
    if group.partitioner is not None:
        shown["partitioner"] = group.partitioner
    if record.raw is not None:
        shown["raw"] = _base64(record.raw)
    return json.dumps(shown, separators=(",", ":")).encode() + b"\n"


def parse(line: bytes) -> Letter:
    """Parse one line. Raises ValueError if it is no letter, for instance cut short by a crash."""
    try:
        found = json.loads(line)
        if found["v"] != FORMAT_VERSION:
            raise ValueError(f"version {found['v']} of the format is not known here")
        raw = _bytes(found.get("raw"))
        return Letter(
            identity=_name(found["id"]),
            sender=None if found.get("sender") is None else _name(found["sender"]),
            topic=_text(found["topic"]),
            partition=None if found["partition"] is None else _number(found["partition"]),
            timestamp_ms=_number(found["timestamp_ms"]),
            failed_ms=min(max(_number(found["failed_ms"]), 0), _WALL_MS_MAX),
            error=_text(found["error"]),
            text=str(found["text"]),
            possibly_persisted=found["persisted"] == "possibly",
            key=_bytes(found["key"]),
            value=raw if raw is not None else _bytes(found["value"]),
            headers=[(str(name), _bytes(value)) for name, value in found["headers"]],
            is_readable=raw is None,
            partitioner=found["partitioner"] if found.get("partitioner") in PARTITIONERS else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, binascii.Error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


class _Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    partition: int | None
    timestamp_ms: int | None
    raw: bytes | None = None


def _records(payload: bytes, count: int) -> Iterator[_Record]:
    """Records of a payload. The first unreadable one holds all the remaining bytes, because its end is not known;
    those after it are empty.
    """
    unpacker = msgpack.Unpacker(
        raw=False,
        unicode_errors="surrogateescape",
        strict_map_key=False,
        max_buffer_size=max(len(payload), 1),
    )
    unpacker.feed(payload)
    at = 0
    for number in range(count):
        try:
            record = _record(unpacker.unpack())
        except (ValueError, TypeError, msgpack.UnpackException):
            yield _Record(None, None, [], None, None, raw=payload[at:])
            yield from [_Record(None, None, [], None, None, raw=b"")] * (count - number - 1)
            return
        at = unpacker.tell()
        yield record


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


def _name(text: Any) -> str:
    """Check a record's name: it must be one word, because the notes of a replay have one per line."""
    if _text(text).split() != [text]:
        raise ValueError(f"{text!r} is not the name of a record")
    return str(text)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    value.encode()  # an unpaired surrogate can be neither sent nor shown
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)
