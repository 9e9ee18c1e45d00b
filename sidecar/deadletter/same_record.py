"""Recognises letters that are the same record written twice: a duplicate is removed without being sent.

`replay` uses it, in the command's process.

Two letters are the same record if they share a name **and** all content that would be sent. A record has two names:
the submission's own, and the one that its client knew it by, each with the record's index. Letters of earlier versions
had a third kind, made from a row of the client table, which different records could share. There a duplicate has the
same content in another write to the spool, because one write never contains a record twice.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from sidecar.deadletter.letters import Letter

CONTENT_BYTES: Final = 16
_OF_ONE_RECORD: Final = re.compile(r"[0-9a-f]{32}/\d+|[0-9a-f]{40}/\d+/\d+/\d+")
"""Names that belong to one record: submission and index; or client, stream, seq and index."""


class Delivered(NamedTuple):
    """A record that a note reports as delivered."""

    name: str
    content: bytes | None
    """None in notes of earlier versions, which had names only."""


def names_one_record(name: str) -> bool:
    """False for earlier versions' names, which different records can share."""
    return _OF_ONE_RECORD.fullmatch(name) is not None


def content_of(letter: Letter) -> bytes:
    """Digest of all content that a replay would send."""
    found = hashlib.blake2b(digest_size=CONTENT_BYTES)
    for part in (
        letter.topic.encode("utf-8", "surrogatepass"),
        letter.key,
        letter.value,
        *(part for name, value in letter.headers for part in (name.encode("utf-8", "surrogatepass"), value)),
        b"%d" % letter.timestamp_ms,
        None if letter.partition is None else b"%d" % letter.partition,
    ):
        found.update(b"-" if part is None else b"%d:" % len(part))
        found.update(part or b"")
    return found.digest()


class KnownRecords:
    """Records that a replay has seen in any file, and those delivered by it or an earlier one."""

    def __init__(self) -> None:
        self._met: set[bytes] = set()
        self._met_copies: Counter[bytes] = Counter()
        self._delivered: set[bytes] = set()
        self._delivered_names: set[str] = set()

    def note_delivered(self, noted: Delivered) -> None:
        """Note a delivered record. A name that several records may share is ignored here; it counts in its own file
        (OneFile).
        """
        if not names_one_record(noted.name):
            return
        if noted.content is None:
            self._delivered_names.add(noted.name)
        else:
            self._delivered.add(_key(noted.name, noted.content))

    def was_delivered(self, letter: Letter, content: bytes) -> bool:
        return any(
            name in self._delivered_names or _key(name, content) in self._delivered
            for name in _names(letter)
            if names_one_record(name)
        )

    def meet(self, letter: Letter, content: bytes, copy: int) -> bool:
        """Note a record. True if it was seen before. ``copy``: from OneFile."""
        named = [_key(name, content) for name in _names(letter) if names_one_record(name)]
        if named:
            is_known = not self._met.isdisjoint(named)
            self._met.update(named)
            return is_known
        key = _key(letter.identity, content)
        if copy <= self._met_copies[key]:
            return True
        self._met_copies[key] = copy
        return False


class OneFile:
    """Distinguishes letters of one spool file that share an earlier version's name."""

    def __init__(self, delivered: list[Delivered]) -> None:
        """``delivered``: the notes of this file. It does not matter which of several copies was delivered."""
        self._delivered = Counter(
            _key(each.name, each.content)
            for each in delivered
            if each.content is not None and not names_one_record(each.name)
        )
        self._failed_ms: int | None = None
        self._copies: Counter[bytes] = Counter()

    def take_delivered(self, letter: Letter, content: bytes) -> bool:
        """True for as many copies of the letter as were delivered."""
        if names_one_record(letter.identity):
            return False
        key = _key(letter.identity, content)
        if not self._delivered[key]:
            return False
        self._delivered[key] -= 1
        return True

    def copy_number(self, letter: Letter, content: bytes) -> int:
        """Number of this copy within one write to the file, from 1: one write never contains a record twice."""
        if names_one_record(letter.identity):
            return 1
        if letter.failed_ms != self._failed_ms:
            self._failed_ms = letter.failed_ms
            self._copies.clear()
        key = _key(letter.identity, content)
        self._copies[key] += 1
        return self._copies[key]


def _names(letter: Letter) -> tuple[str, ...]:
    return (letter.identity,) if letter.sender is None else (letter.identity, letter.sender)


def _key(name: str, content: bytes) -> bytes:
    return hashlib.blake2b(
        name.encode("utf-8", "surrogatepass") + content, digest_size=CONTENT_BYTES
    ).digest()
