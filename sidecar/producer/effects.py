"""Every effect the producer core can ask for. The driver executes them in the order of the list.

Nobody changes one. The two of each record are not frozen, since that makes them three times as dear.
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
    """Something is ready for this broker and its link is not, or its only link is full (``second_of`` it). Repeated
    at each poll while that is so; the links' own backoff decides, and the driver polls again when the link's state
    changes."""

    node_id: int


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close at once (synchronously), and answer with ``on_disconnect``, also when there is no such link any more. Until
    then nothing more is drained for it: what was in flight comes back before anything of it is sent on a successor."""

    node_id: int
    reason: str


@dataclass(slots=True)
class SendProduce:
    """Publish descriptors of batches that have none, encode into the request's buffer, send, give the buffer back,
    report ``on_request_sent``. One that ``ended`` meanwhile is not sent.
    """

    node_id: int
    request: ProduceRequest


@dataclass(frozen=True, slots=True)
class NeedMetadata:
    """These topics' leaders are unknown or were wrong (rule M7)."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class LeaderHints:
    """A broker named the partitions' new leaders (KIP-951): overlay them, poll with the new snapshot."""

    hints: tuple[LeaderHint, ...]


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Ask any broker; answer with ``on_producer_id`` or ``on_producer_id_error``. At most one is
    outstanding."""


@dataclass(frozen=True, slots=True)
class AskBroker:
    """The batch may be in the log, and its broker may have forgotten the producer id since, by the batch's timestamps:
    a copy would not be recognised. Ask (DescribeProducers) at ``at_ms``, then ``resume`` or ``give_up`` it."""

    batch: ProducerBatch
    at_ms: float


@dataclass(frozen=True, slots=True)
class Split:
    """``pieces`` take the place of ``parent``, which has no fate of its own any more.

    After MESSAGE_TOO_LARGE they keep its sequences (if it had any): publish their descriptors pending on the
    parent's, switch, free the parent's. After INVALID_RECORD they have none: free the parent's descriptor; those
    that failed follow as Completed.
    """

    parent: ProducerBatch
    pieces: tuple[ProducerBatch, ...]


@dataclass(frozen=True, slots=True)
class Renumbered:
    """These batches lost their identity and will be drained under a new one: free their descriptors in the
    order given (newest first). Always before the SendProduce that carries one of them again."""

    batches: tuple[ProducerBatch, ...]


@dataclass(slots=True)
class Completed:
    """Fates decided since the last poll, in order per partition. Completed once each."""

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
    | Completed
)
