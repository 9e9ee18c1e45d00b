"""What the RecordAccumulator answers to append, ready and flush."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sidecar.producer.producer_batch import ProducerBatch


class AppendResult(NamedTuple):
    """The sender must be polled when either is true (rule A1)."""

    batch_is_full: bool
    new_batch: bool


APPEND_RESULTS = (
    (AppendResult(False, False), AppendResult(False, True)),
    (AppendResult(True, False), AppendResult(True, True)),
)
"""By [batch_is_full][new_batch]."""


class ReadyCheck(NamedTuple):
    """``ready()``'s answer: brokers with something to send, when to look again, topics without a known
    leader.
    """

    nodes: frozenset[int]
    next_check_delay_ms: float
    unknown_leader_topics: frozenset[str]


class FlushMark:
    """The batches that were incomplete when a flush began (rule A9); later ones do not delay it."""

    __slots__ = ("_batches",)

    def __init__(self, batches: Iterable[ProducerBatch]) -> None:
        self._batches = list(batches)

    @property
    def is_done(self) -> bool:
        while self._batches and self._batches[-1].is_settled:
            self._batches.pop()
        return not self._batches
