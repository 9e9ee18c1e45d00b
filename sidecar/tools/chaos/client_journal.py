"""ClientJournal: one client's records and outcomes, in a mapped file, so that its SIGKILL loses nothing of them.

::

    0      header, u64 words: see :class:`Head`
    1 KiB  the text of what the client raised
    4 KiB  one u64 word per record, its outcome: 0 none, else kind << 60 | partition << 44 | offset + 1
           one u64 word per record, its place in the topic: 0 not found, else as that of a delivered one

The client stores ``SENT`` before it sends and a record's outcome when it completes. The parent stores ``STOP`` and
``RATE``, and the place of each record that it reads. One writer per word. The kernel keeps the file, whichever process
is killed.
"""

from __future__ import annotations

import mmap
from enum import IntEnum
from pathlib import Path

HEADER_BYTES = 4096
TEXT_OFFSET = 1024
TEXT_BYTES_MAX = 2048

DELIVERED, FAILED, POSSIBLY = 1, 2, 3
"""Kinds of a word: delivered, failed for certain, failed and possibly persisted."""

_KIND_SHIFT = 60
_PARTITION_SHIFT = 44
_OFFSET_MASK = (1 << _PARTITION_SHIFT) - 1
_PARTITION_MASK = 0xFFFF


class Head(IntEnum):
    SENT = 0
    """Records 0 ... SENT-1 may have been sent; never fewer than really were."""
    NEWEST = 1
    """One more than the highest number delivered."""
    DECIDED_TWICE = 2
    STATE = 3
    STOP = 4
    RATE = 5
    """Records per second to send; 0: as fast as they are accepted."""
    RAISED_BYTES = 6
    VISIT_RECORDS = 7
    """After this many records the client closes its producer and opens another; 0: only one."""
    PLACE = 8
    """Clients of one place have one transactional id, one after the other."""
    TRANSACTIONS = 9
    COMMITTED = 10
    ABORTED_BY_FAULT = 11
    """Transactions that an error ended."""
    PRODUCERS_LOST = 12
    """Fatal errors."""


class ClientState(IntEnum):
    STARTING = 0
    SENDING = 1
    ENDED = 2
    """flush() and close() have returned."""
    RAISED = 3


def delivered_word(partition: int, offset: int) -> int:
    """The word of a delivered record. ``offset`` -1: the broker did not give it."""
    return DELIVERED << _KIND_SHIFT | (partition & _PARTITION_MASK) << _PARTITION_SHIFT | offset + 1


def failed_word(*, possibly_persisted: bool) -> int:
    return (POSSIBLY if possibly_persisted else FAILED) << _KIND_SHIFT


def word_kind(word: int) -> int:
    return word >> _KIND_SHIFT


def word_place(word: int) -> tuple[int, int]:
    """(partition, offset) of a word of kind DELIVERED."""
    return word >> _PARTITION_SHIFT & _PARTITION_MASK, (word & _OFFSET_MASK) - 1


class ClientJournal:
    """One file, mapped. Made by the parent, opened by the client."""

    def __init__(self, path: Path, records_max: int, map_: mmap.mmap) -> None:
        self.path = path
        self.records_max = records_max
        self._map = map_
        self._view = memoryview(map_)
        self.head = self._view[:TEXT_OFFSET].cast("Q")
        self.words = self._view[HEADER_BYTES : HEADER_BYTES + 8 * records_max].cast("Q")
        self.found = self._view[HEADER_BYTES + 8 * records_max :].cast("Q")

    @classmethod
    def create(cls, path: Path, records_max: int) -> ClientJournal:
        """Create a sparse file; its pages are allocated as records complete."""
        with path.open("w+b") as file:
            file.truncate(HEADER_BYTES + 2 * 8 * records_max)
            return cls(path, records_max, mmap.mmap(file.fileno(), 0))

    @classmethod
    def open(cls, path: Path) -> ClientJournal:
        with path.open("r+b") as file:
            map_ = mmap.mmap(file.fileno(), 0)
        return cls(path, (len(map_) - HEADER_BYTES) // 16, map_)

    @property
    def sent(self) -> int:
        return self.head[Head.SENT]

    @property
    def state(self) -> ClientState:
        return ClientState(self.head[Head.STATE])

    def raised(self, text: str) -> None:
        """Note the error that the client raised, and that it has ended."""
        data = text.encode()[:TEXT_BYTES_MAX]
        self._view[TEXT_OFFSET : TEXT_OFFSET + len(data)] = data
        self.head[Head.RAISED_BYTES] = len(data)
        self.head[Head.STATE] = ClientState.RAISED

    @property
    def raised_text(self) -> str:
        size = self.head[Head.RAISED_BYTES]
        return bytes(self._view[TEXT_OFFSET : TEXT_OFFSET + size]).decode("utf-8", "replace")

    def close(self) -> None:
        """Unmap; the file stays."""
        self.words.release()
        self.found.release()
        self.head.release()
        self._view.release()
        self._map.close()
