"""Publication: what becomes of a batch's descriptor when the batch is split or loses its identity.

The driver calls it for effects of the core, on the worker's loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sidecar.producer.producer_batch import NO_DESCRIPTOR
from sidecar.shm.descriptor_states import DescriptorEvent

if TYPE_CHECKING:
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.shm.descriptors import DescriptorTable


def split(descriptors: DescriptorTable, parent: ProducerBatch, pieces: Sequence[ProducerBatch]) -> None:
    """Replace the descriptor of a batch that the broker refused by those of its pieces.

    Halves keep its sequences, by which a broker recognises batches: it may have the whole from an earlier attempt and
    have checked only the size. So the records are never without a descriptor. If the table has no room for both halves
    (new batches leave some free), they get descriptors when they are sent.
    """
    index = parent.descriptor
    keeps_identity = all(each.has_sequence for each in pieces)
    if index == NO_DESCRIPTOR or not keeps_identity or len(pieces) > descriptors.free_count:
        # Pieces of single records get new sequences; halves without room are published when they are sent.
        _unpublish_behind(descriptors, parent)
        free_descriptor(descriptors, parent)
        return
    descriptors.publish(pieces, descriptors.read(index).published_ms, pending_on=index)
    descriptors.switch(index, [piece.descriptor for piece in pieces])
    parent.descriptor = NO_DESCRIPTOR


def _unpublish_behind(descriptors: DescriptorTable, parent: ProducerBatch) -> None:
    """Free the descriptors of later batches that never left or will be renumbered.

    A successor of this worker sends batches with a descriptor first. So once a batch has none, no batch after it may
    keep one unless it may be in the log. The others are published again when they are sent.
    """
    for batch in reversed(parent.queue.batches):
        if batch.order <= parent.order:
            return
        if batch.drained_to is None and not batch.may_be_in_log:
            free_descriptor(descriptors, batch)


def free_descriptor(descriptors: DescriptorTable, batch: ProducerBatch) -> None:
    """Free the descriptor of a batch that loses its identity: it is renumbered, or was split without its sequences.

    Its records have no descriptor until they are sent again. If the worker dies before that, only the note of a
    withdrawn one tells the successor that they may be in the log.
    """
    if batch.descriptor == NO_DESCRIPTOR:
        return
    if batch.was_in_doubt:
        descriptors.withdraw(batch.descriptor)
    else:
        descriptors.step(DescriptorEvent.FREE, batch.descriptor)
    batch.descriptor = NO_DESCRIPTOR
