"""Rows of an explanation: which records and clients of a worker wait, and for what."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

WAITING_ROWS_MAX: Final = 50
"""Limit of partitions, topics and held streams in one explanation: those that wait longest."""
CLIENT_ROWS_MAX: Final = 20
"""Limit of clients in one explanation: those with most records without an outcome."""
STAGE_ROWS_MAX: Final = 1_024
"""Limit of stages in one explanation: those that wait longest."""
EVERY_USER: Final = -1
"""Stands for a uid: all users."""
NAME_CHARACTERS_MAX: Final = 300
"""Limit of a question's name: of a topic with a partition, or of a client."""


class OwnCause(StrEnum):
    """Causes other than those of WaitCause and HoldCause."""

    DISK_SYNC = "disk_sync"
    SPOOL = "spool"


class WaitingRow(NamedTuple):
    """Records that wait for one cause. Times are monotonic ms; 0 for none.

    ``client`` is empty for records of any client; ``partition`` and ``broker`` are -1 for none. ``records`` is -1 if
    only submissions are counted. ``since_ms``: since when the oldest waits. ``deadline_ms``: when it fails.
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
    """A client of a worker: its records without an outcome, and its streams (topics), some of which may be held."""

    client: str
    pid: int
    is_attached: bool
    records: int
    size_bytes: int
    streams: int
    held_streams: int
    silent_ms: float


class StageAccount(NamedTuple):
    """A stage of a worker: records that wait for a transaction to include them.

    ``owner`` and ``client`` are as the client gave them, and empty where only their digests outlived a worker.
    ``age_ms``: since it was opened, or once sealed since then; -1 if not known. ``left_ms``: until it is dropped; -1
    while it is open.
    """

    transactional_id: str
    number: int
    owner: str
    client: str
    is_sealed: bool
    records: int
    size_bytes: int
    age_ms: float
    left_ms: float
    token: str
