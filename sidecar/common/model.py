"""Types that all packages share. No I/O.

Constants and plain types, for every process.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Node(NamedTuple):
    """A broker's address from metadata. ``id`` is negative for a bootstrap address that is not identified yet, and
    ``second_of`` the broker's id for the second connection to it.
    """

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        if self.id < 0:
            return f"{self.host}:{self.port}"
        second = "" if broker_of(self.id) == self.id else ", second connection"
        return f"{self.host}:{self.port} (id {broker_of(self.id)}{second})"


_SECOND: Final = 1 << 32
"""Broker ids have 32 bits, so the ids of second connections are above them."""


def second_of(node_id: int) -> int:
    """The id of the second connection to a broker, for its requests, backoff and deadlines."""
    return node_id | _SECOND


def broker_of(node_id: int) -> int:
    """The broker's id, for either of its connections."""
    return node_id & ~_SECOND if node_id > 0 else node_id


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int

    @property
    def is_valid(self) -> bool:
        """False for id -1, which InitProducerId returns with an error: a batch is never drained under such an id."""
        return self.producer_id >= 0


NO_PRODUCER_ID = ProducerIdAndEpoch(-1, -1)


class ExitStatus(IntEnum):
    """Exit codes of the CLI, and of a worker, as its controller reads them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    WORKER_BAD_CONFIG = 3  # restarting would fail again: the daemon stops
    WORKER_SEGMENT_VERSION = 4  # likewise
    WORKER_CONTROLLER_GONE = 5
    NEEDS_TAKEOVER = 6  # of `reload`: only another daemon can take these settings on
    DAEMON_UNREACHABLE = 69
    TIMED_OUT = 75
    INTERRUPTED = 130  # Ctrl-C, as shells say it
