"""Words every room shares. No I/O."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Node(NamedTuple):
    """A broker endpoint as metadata names it. ``id`` is negative for a bootstrap address not yet identified, and
    ``second_of`` the broker's for the second connection to it.
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
"""Brokers' ids are 32 bits wide, so those of their second connections lie above them."""


def second_of(node_id: int) -> int:
    """The id under which the second connection to a broker goes: what is in flight, its backoff, its deadlines."""
    return node_id | _SECOND


def broker_of(node_id: int) -> int:
    """The broker at the other end, of either connection."""
    return node_id & ~_SECOND if node_id > 0 else node_id


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int

    @property
    def is_valid(self) -> bool:
        """InitProducerId may answer an error together with id -1; a batch is never drained under such an id."""
        return self.producer_id >= 0


NO_PRODUCER_ID = ProducerIdAndEpoch(-1, -1)


class ExitStatus(IntEnum):
    """Exit codes of the CLI and meaning of a worker's exit to the controller."""

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
