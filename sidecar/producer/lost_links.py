"""LostLinks: why brokers cannot be reached, for the error texts of records that expire while they wait for one.

Sans-IO: the Sender owns it, on the worker's loop.
"""

from __future__ import annotations

from sidecar.common.model import broker_of
from sidecar.metadata.snapshot import MetadataSnapshot
from sidecar.producer.producer_batch import ProducerBatch


class LostLinks:
    """The last cause by broker, until it is connected again. Single-threaded: the worker's loop."""

    def __init__(self) -> None:
        self._causes: dict[int, str] = {}
        self._refusing: set[int] = set()

    def lost(self, node_id: int, cause: str, *, is_refused: bool) -> None:
        """A connection has ended or could not be made. An empty ``cause`` means that it ended normally.

        ``is_refused``: the broker refused the login.
        """
        if cause:
            self._causes[broker_of(node_id)] = cause
            (self._refusing.add if is_refused else self._refusing.discard)(broker_of(node_id))

    def found(self, node_id: int) -> None:
        """The broker is connected."""
        self._causes.pop(broker_of(node_id), None)
        self._refusing.discard(broker_of(node_id))

    def is_refused(self, batch: ProducerBatch, snapshot: MetadataSnapshot | None) -> bool:
        """Whether the batch's broker refuses the login."""
        if not self._refusing or snapshot is None:
            return False
        leader = snapshot.leader(batch.topic, batch.partition)
        return leader is not None and leader.id in self._refusing

    def cause(self, batch: ProducerBatch, snapshot: MetadataSnapshot | None) -> str:
        """A blank and the sentence about the batch's broker; "" while that is connected."""
        leader = None if snapshot is None else snapshot.leader(batch.topic, batch.partition)
        cause = None if leader is None else self.of(leader.id)
        return f" {cause}" if cause else ""

    def of(self, broker: int) -> str | None:
        """The sentence about the broker; None while it is connected."""
        return self._causes.get(broker)
