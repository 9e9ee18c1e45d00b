"""Rows of an explanation: which records and clients of a worker wait, and for what."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

WAITING_ROWS_MAX: Final = 50
"""Partitions, topics and held streams in one explanation: those that wait longest."""
CLIENT_ROWS_MAX: Final = 20
"""Clients in one explanation: those with most records without an outcome."""
EVERY_USER: Final = -1
"""In place of a uid."""
NAME_CHARACTERS_MAX: Final = 300
"""Of a question: a topic's name and a partition, or a client's name."""


class OwnCause(StrEnum):
    """Causes beside those of WaitCause and HoldCause."""

    OUT_OF_RANGE = "out_of_range"
    DISK_SYNC = "disk_sync"
    SPOOL = "spool"


class WaitingRow(NamedTuple):
    """Records that wait for one cause. Times are of the monotonic clock; 0 where there is none.

    ``client`` is empty for records of any client, ``partition`` and ``broker`` are -1 where there is none. ``records``:
    -1 where only submissions are counted. ``since_ms``: since when the oldest waits, ``deadline_ms``: when it fails.
    """

    topic: str
    partition: int
    client: str
    cause: str
    text: str
    broker: int
    records: int
    submissions: int
    size_bytes: int
    since_ms: float
    deadline_ms: float
    last_error: str = ""


class ClientAccount(NamedTuple):
    """A client of a worker: its records without an outcome, and its streams (topics) of which some are held."""

    client: str
    pid: int
    is_attached: bool
    records: int
    size_bytes: int
    streams: int
    held_streams: int
    silent_ms: float
