"""BulkCall: one call of many records on its way into the outbox, a step at a time."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from client_stub.delivery import BulkDelivery
from client_stub.errors import SidecarError

if TYPE_CHECKING:
    from client_stub.submission import BulkPart


class BulkCall:
    """Checks all records before it queues any, a submission's worth in each step. Not thread-safe."""

    parts: list[BulkPart]
    """The records queued so far. Each kind of call sets it itself: a constructor here would be one call more."""

    def step(self) -> bool:
        """Do some more of it; True when all is queued. After an error for want of room it may be called again."""
        raise NotImplementedError

    def run(self) -> BulkDelivery:
        """All steps, each waiting for room as Producer.send() does. Raises what the caller of many records gets."""
        try:
            while not self.step():
                pass
        except SidecarError as error:
            raise self.explain(error) from error.__cause__
        return self.delivery

    @property
    def delivery(self) -> BulkDelivery:
        return BulkDelivery(self.parts)

    def explain(self, error: SidecarError) -> SidecarError:
        """``error`` says how many records of this call are queued, and has their future."""
        return with_queued(error, self._queued_parts())

    def _queued_parts(self) -> Sequence[BulkPart]:
        return self.parts


def with_queued(error: SidecarError, parts: Sequence[BulkPart]) -> SidecarError:
    """``error`` of a call that has queued ``parts`` before: says how many records, and has their future."""
    if not parts:
        return error
    queued = BulkDelivery(parts)
    # A copy: a fatal error of the producer or the topic is raised in every call, each with its own number.
    raised = copy.copy(error)
    raised.args = (f"{error} (The first {queued.count} records of this call are queued.)",)
    raised.queued = queued
    return raised
