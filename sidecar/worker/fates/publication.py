"""Publication: which records go out under which identity, in the slot's table before their first byte leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sidecar.producer.producer_batch import NO_DESCRIPTOR

if TYPE_CHECKING:
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.shm.descriptors import DescriptorTable


def publish_all(descriptors: DescriptorTable, batches: Sequence[ProducerBatch], published_ms: int) -> bool:
    """A descriptor for each batch that has none (a retry has the same range under the same identity).

    False when there are not enough: then none is taken. A batch that held one while it waits would keep it from all
    others.
    """
    missing = 0
    for batch in batches:
        missing += batch.descriptor == NO_DESCRIPTOR
    if missing > len(descriptors.free_indexes):
        return False
    if missing:
        _publish(descriptors, batches, published_ms)
    return True


def _publish(
    descriptors: DescriptorTable,
    batches: Sequence[ProducerBatch],
    published_ms: int,
    *,
    pending_on: int | None = None,
) -> None:
    """Write the range and identity of each batch without a descriptor into a free one, of which there are enough."""
    for batch in batches:
        if batch.descriptor != NO_DESCRIPTOR:
            continue
        index = descriptors.free_indexes.pop()
        assert batch.chain is not None
        records = batch.records
        descriptors.publish(
            index,
            chain_id=batch.chain.chain_id,
            lane=batch.lane,
            partition=batch.partition,
            first_cursor=records.first_cursor,
            last_cursor=records.last_cursor,
            count=records.count,
            producer_id=batch.producer_id,
            epoch=batch.epoch,
            base_sequence=batch.base_sequence,
            published_ms=published_ms,
            pending_on=pending_on,
            whole_in_doubt=batch.doubtful_parent is not None,
        )
        batch.descriptor = index


def split(descriptors: DescriptorTable, parent: ProducerBatch, pieces: Sequence[ProducerBatch]) -> None:
    """The pieces take the place of a batch that the broker refused.

    Halves keep its sequences, and by them a broker recognises what it has: it may still have the whole,
    from an earlier attempt, and have looked at the size only. So there is no moment without a descriptor.
    Where the table has no room for both (new batches leave some free) the halves get theirs when they are sent.
    """
    index = parent.descriptor
    keeps_identity = all(each.has_sequence for each in pieces)
    if index == NO_DESCRIPTOR or not keeps_identity or len(pieces) > descriptors.free_count:
        # Set apart record by record, what is left gets new numbers; else the halves are published when they are sent.
        _unpublish_behind(descriptors, parent)
        free_descriptor(descriptors, parent)
        return
    _publish(descriptors, pieces, descriptors.read(index).published_ms, pending_on=index)
    descriptors.switch(index, [piece.descriptor for piece in pieces])
    parent.descriptor = NO_DESCRIPTOR


def _unpublish_behind(descriptors: DescriptorTable, parent: ProducerBatch) -> None:
    """A successor sends what has a descriptor first. Once a batch has none any more, no half behind it that never left
    may keep one: it is published again when it is sent. Nor may what is renumbered for the batch's sake."""
    for batch in reversed(parent.queue.batches):
        if batch.order <= parent.order:
            return
        if batch.failed_node is None and not batch.may_be_in_log:
            free_descriptor(descriptors, batch)


def free_descriptor(descriptors: DescriptorTable, batch: ProducerBatch) -> None:
    """A batch that loses its identity: it is renumbered, or its records were set apart."""
    if batch.descriptor != NO_DESCRIPTOR:
        descriptors.free(batch.descriptor)
        batch.descriptor = NO_DESCRIPTOR
