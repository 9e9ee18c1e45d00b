"""A worker's condition, as reported to the controller: its brokers, its part of the pool, and waiting records."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

SILENT_MS: Final = 5_000.0
"""A broker is silent if it has answered nothing for this many ms with requests on the wire."""
TROUBLE_MS: Final = 5_000.0
"""The daemon is degraded if records have waited this many ms for a broker that does not work."""


SPOOL_ADVICE: Final = (
    "Make room there or fix its permissions, raise dead_letters.max_bytes, or run `kafka-sidecar replay`."
)


class BrokerState(StrEnum):
    """State of a broker. ``KNOWN``: metadata has it, there is no connection, and none is needed."""

    UP = "up"
    KNOWN = "known"
    CONNECTING = "connecting"
    DOWN = "down"
    SILENT = "silent"


class HoldCause(StrEnum):
    """Why a stream is held."""

    POOL = "pool"
    SHARE = "share"
    RING = "ring"
    UNKNOWN_TOPIC = "unknown_topic"
    RATE = "rate"
    EXPRESS = "express"
    PAUSED = "paused"
    DISK = "disk"
    ERROR = "error"


class WaitCause(StrEnum):
    """Why the oldest held record is still here. ``REFUSED`` is the broker's word alone. ``LOST``: the connection ended
    before the answer came, by either side. ``ADOPTED``: the worker that had sent it died.
    """

    BROKER = "broker"
    NO_LEADER = "no_leader"
    REFUSED = "refused"
    THROTTLED = "throttled"
    UNKNOWN_TOPIC = "unknown_topic"
    OUT_OF_RANGE = "out_of_range"
    METADATA = "metadata"
    PRODUCER_ID = "producer_id"
    LOST = "lost"
    ADOPTED = "adopted"
    UNANSWERED = "unanswered"
    LINGER = "linger"
    PAUSED = "paused"
    QUEUED = "queued"


DELIBERATE: Final = frozenset({WaitCause.PAUSED, WaitCause.LINGER})
"""Waits that an operator or linger.ms has asked for. They must not hide others, which began later."""


class BrokerRow(NamedTuple):
    """One broker as one worker sees it. Times are of the monotonic clock, which all processes of a host share.

    ``since_ms``: when it entered this state. ``oldest_held_ms``: when the oldest record that waits for it was
    accepted; 0 if none waits. ``throttle_ms``: its last throttle, 0 if that was long ago.
    """

    id: int
    state: str
    since_ms: float
    last_error: str = ""
    in_flight: int = 0
    throttle_ms: int = 0
    held_records: int = 0
    held_bytes: int = 0
    oldest_held_ms: float = 0.0


class ShareRow(NamedTuple):
    """Use of the pool by one topic or client at one worker.

    ``share``: 1 is all that it may use at all workers. ``is_full``: a stream is held because of it.
    """

    name: str
    share: float
    pages: int
    is_full: bool = False


class HoldRow(NamedTuple):
    """Streams of one client and topic held for one reason. ``since_ms``: start of the longest hold (monotonic).

    ``text``: the rate that is used up, the client's or the topic's; empty for other causes.
    """

    client: str
    cause: str
    topic: str
    since_ms: float
    streams: int
    text: str = ""


class WaitRow(NamedTuple):
    """The oldest held record. ``partition`` and ``broker`` are -1 if there is none. ``accepted_ms`` is monotonic."""

    topic: str
    partition: int
    broker: int
    accepted_ms: float
    cause: str
    error: str = ""


class LettersRow(NamedTuple):
    """Failures of gone clients that the spool does not take: since when (monotonic ms), and why."""

    submissions: int
    since_ms: float
    reason: str
