"""LostLinks: why brokers cannot be reached, for the records that run out of time while they wait for one."""

from __future__ import annotations

from sidecar.common.model import broker_of
from sidecar.metadata.snapshot import MetadataSnapshot
from sidecar.producer.producer_batch import ProducerBatch


class LostLinks:
    """The last cause by broker, until it is connected again. Not thread-safe."""

    def __init__(self) -> None:
        self._causes: dict[int, str] = {}

    def lost(self, node_id: int, cause: str) -> None:
        """A connection has ended or could not be made; without a cause it was ended in good order."""
        if cause:
            self._causes[broker_of(node_id)] = cause

    def found(self, node_id: int) -> None:
        """The broker is connected."""
        self._causes.pop(broker_of(node_id), None)

    def cause(self, batch: ProducerBatch, snapshot: MetadataSnapshot | None) -> str:
        """The sentence about the batch's broker, behind a blank; empty while it is connected."""
        leader = None if snapshot is None else snapshot.leader(batch.topic, batch.partition)
        cause = None if leader is None else self._causes.get(leader.id)
        return f" {cause}" if cause else ""
