"""Every effect the producer core can ask for. The driver executes them in the order of the list.

Effects are never changed. SendProduce and Decided are not frozen, because a frozen dataclass costs three times as
much to build and these are built most often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.metadata.snapshot import LeaderHint
    from sidecar.producer.in_flight import ProduceRequest
    from sidecar.producer.producer_batch import ProducerBatch


@dataclass(frozen=True, slots=True)
class Connect:
    """A batch is ready for this broker, but its link is not connected, or its only link is full (then ``node_id`` is
    ``second_of`` the broker). Repeated at each poll while that is so: the link's own backoff decides when to connect,
    and the driver polls again when the link's state changes.
    """

    node_id: int


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close the link at once (synchronously) and answer with ``on_disconnect``, even if there is no such link any
    more. Until then nothing more is drained for it, so batches in flight return before a new connection sends any.
    """

    node_id: int
    reason: str


@dataclass(slots=True)
class SendProduce:
    """Publish descriptors for batches that have none, encode the batches into the request's buffer, send it, give the
    buffer back, and report ``on_request_sent``. A request that has ``ended`` meanwhile is not sent.
    """

    node_id: int
    request: ProduceRequest


@dataclass(frozen=True, slots=True)
class NeedMetadata:
    """The leaders of these topics are unknown, or turned out to be wrong (rule M7)."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class LeaderHints:
    """A broker named new leaders of partitions (KIP-951): overlay them on the snapshot and poll with the new one."""

    hints: tuple[LeaderHint, ...]


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Ask any broker; answer with ``on_producer_id`` or ``on_producer_id_error``. At most one is
    outstanding."""


@dataclass(frozen=True, slots=True)
class AskBroker:
    """The batch may be in the log. By its timestamps, its broker may have forgotten the producer id and would not
    recognise a copy. Ask the broker (DescribeProducers) at ``at_ms``, then call ``resume`` or ``give_up``.
    """

    batch: ProducerBatch
    at_ms: float


@dataclass(frozen=True, slots=True)
class Split:
    """``pieces`` replace ``parent``, which gets no outcome of its own any more.

    After MESSAGE_TOO_LARGE the pieces keep its sequences, if it had any: publish their descriptors as pending on the
    parent's, switch over, then free the parent's. After INVALID_RECORD they have no sequences: free the parent's
    descriptor. The failed pieces follow in Decided.
    """

    parent: ProducerBatch
    pieces: tuple[ProducerBatch, ...]


@dataclass(frozen=True, slots=True)
class Renumbered:
    """These batches lost their identity and will be drained under a new one: free their descriptors in the
    order given (newest first). Always before the SendProduce that carries one of them again."""

    batches: tuple[ProducerBatch, ...]


@dataclass(slots=True)
class Decided:
    """Batches whose outcomes were decided since the last poll, in order within a partition. Each batch appears once."""

    batches: tuple[ProducerBatch, ...]


Effect = (
    Connect
    | CloseLink
    | SendProduce
    | NeedMetadata
    | LeaderHints
    | InitProducerId
    | AskBroker
    | Split
    | Renumbered
    | Decided
)
