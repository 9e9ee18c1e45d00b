"""A worker's condition as it reports it to the controller: its brokers, its part of the pool, who waits for what."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

SILENT_MS: Final = 5_000.0
"""A broker that has answered nothing for so long, with requests on the wire, is silent."""
TROUBLE_MS: Final = 5_000.0
"""Records that have waited so long for a broker that is no good make the daemon degraded."""


SPOOL_ADVICE: Final = (
    "Make room there or mend its rights, raise dead_letters.max_bytes, or run `kafka-sidecar replay`."
)


class BrokerState(StrEnum):
    """``KNOWN``: metadata names it, no connection stands, and nothing needs one."""

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
    """Why the oldest held record is still here."""

    BROKER = "broker"
    NO_LEADER = "no_leader"
    REFUSED = "refused"
    THROTTLED = "throttled"
    UNKNOWN_TOPIC = "unknown_topic"
    METADATA = "metadata"
    UNANSWERED = "unanswered"
    LINGER = "linger"
    PAUSED = "paused"
    QUEUED = "queued"


class BrokerRow(NamedTuple):
    """One broker as one worker sees it. Times are of the monotonic clock, which all processes of a host share.

    ``since_ms``: since when it is in this state. ``oldest_held_ms``: when the oldest record that waits for it was
    accepted; 0 while none waits. ``throttle_ms``: the last that it asked for, 0 when that is long ago.
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
    """Room in the pool of one topic or client at one worker.

    ``share``: of 1, which is all that it may have at all workers. ``is_full``: a stream is held because of it.
    """

    name: str
    share: float
    pages: int
    is_full: bool = False


class HoldRow(NamedTuple):
    """Streams of one client and topic that are held for one reason, the longest since ``since_ms`` (monotonic)."""

    client: str
    cause: str
    topic: str
    since_ms: float
    streams: int


class WaitRow(NamedTuple):
    """The oldest held record. ``partition`` and ``broker`` are -1 where there is none; ``accepted_ms`` is monotonic."""

    topic: str
    partition: int
    broker: int
    accepted_ms: float
    cause: str
    error: str = ""


class LettersRow(NamedTuple):
    """Failures of gone clients that the spool cannot take, since ``since_ms`` (monotonic), and why not."""

    submissions: int
    since_ms: float
    reason: str
