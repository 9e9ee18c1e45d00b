"""Endings: the last stores of a record in the journal, once its clients have the outcome or it is a dead letter.

Order for a batch: descriptor completed → words done → descriptor free. settlement.py has the steps before these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.kernel import held_bytes, mark_failed_done
from sidecar.producer.producer_batch import NO_DESCRIPTOR
from sidecar.shm.descriptor_states import DescriptorEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.kernel import Chain, Entry
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.shm.slots import SlotView
    from sidecar.worker.slot_memory import SlotMemory
    from sidecar.worker.streams.sessions import Sessions

_COMPLETE: Final = DescriptorEvent.COMPLETE
_FREE: Final = DescriptorEvent.FREE
"""Cached: reading an enum member through its class costs as much as a call, and these are used for each batch."""


class Endings:
    """Ends batches, and records that failed before sending. Belongs to the worker's loop."""

    __slots__ = ("_counters", "_descriptors", "_slot", "finished_chains", "incomplete", "sessions")

    def __init__(self, memory: SlotMemory, sessions: Sessions) -> None:
        self._descriptors = memory.descriptors
        self._slot = memory.slot
        self._counters = memory.counters
        self.sessions = sessions
        self.incomplete = 0
        """Number of descriptors whose batch is settled and not yet complete."""
        self.finished_chains: set[Chain] = set()
        """Chains in which an entry became done: they may have pages to give back."""

    def take_finished_chains(self) -> set[Chain]:
        """Remove and return the chains in which an entry became done."""
        chains, self.finished_chains = self.finished_chains, set()
        return chains

    @property
    def descriptors_are_scarce(self) -> bool:
        """True if batches whose clients do not read their outcomes hold more than half of the descriptor table. They
        must not take the rest. Batches on their way to a broker do not count: they may use the whole table.
        """
        return self.incomplete > self._descriptors.capacity // 2

    def delivered(self, batches: Sequence[ProducerBatch]) -> None:
        """End delivered batches all of whose clients have their outcomes. They take each step together."""
        indexes: list[int] = []
        for batch in batches:
            indexes.append(batch.descriptor)
        self._descriptors.step(_COMPLETE, *indexes)
        for batch in batches:
            finished = batch.records.mark_done()
            # kill point: words.done
            if finished:
                assert batch.chain is not None
                self.finished_chains.add(batch.chain)
            batch.descriptor = NO_DESCRIPTOR
        self._descriptors.step(_FREE, *indexes)
        self.incomplete -= len(indexes)

    def failed(self, batch: ProducerBatch, dead: int) -> None:
        """Mark a failed batch as done: every client has acknowledged it, or its records are letters. ``dead``: its
        records that became dead letters.
        """
        index = batch.descriptor
        if index == NO_DESCRIPTOR:
            with WordsThenCounted(self._slot, batch.records.count, dead):
                finished = batch.records.mark_done()
                # kill point: words.done
        else:
            self._complete_failed(index, batch.records.count - dead, dead)
            finished = batch.records.mark_done()
            # kill point: words.done
            self._descriptors.step(_FREE, index)
            batch.descriptor = NO_DESCRIPTOR
            self.incomplete -= 1
        if finished:
            assert batch.chain is not None
            self.finished_chains.add(batch.chain)

    def _complete_failed(self, index: int, failed: int, dead: int) -> None:
        """Complete the descriptor and count it in one store: the descriptor holds the counters' new values."""
        counters = self._counters
        self._descriptors.complete_failed(
            index,
            failed_counted=counters.get("records_failed_total") + failed,
            dead_counted=counters.get("records_dead_lettered_total") + dead,
        )
        counters.add(
            {
                "records_failed_total": failed,
                "records_dead_lettered_total": dead,
                "records_held": -failed - dead,
            }
        )

    def failed_before_sending(self, chain: Chain, entry: Entry, indexes: list[int], *, dead: bool) -> None:
        """End records of one entry that failed before sending: the client has acknowledged it, or they are dead
        letters.
        """
        count = len(indexes)
        share = held_bytes(entry.count, entry.payload_bytes) * count // entry.count
        self.sessions.records_settled(entry.client_row, entry.client_generation, count, share)
        with WordsThenCounted(self._slot, count, count if dead else 0):
            mark_failed_done(chain, entry, indexes)
        self.finished_chains.add(chain)


class WordsThenCounted:
    """Context for failures that only the words record: the words become done inside it, and are counted at its end.

    If the worker dies in between, the records have ended without being counted. The slot says how many of them are
    dead letters, and the adoption counts them.
    """

    __slots__ = ("_count", "_dead", "_slot")

    def __init__(self, slot: SlotView, count: int, dead: int) -> None:
        self._slot = slot
        self._count = count
        self._dead = dead

    def __enter__(self) -> None:
        if self._dead:
            self._slot.dead_lettering = self._dead

    def __exit__(self, *error: object) -> None:
        self._slot.counters.add(
            {
                "records_failed_total": self._count - self._dead,
                "records_dead_lettered_total": self._dead,
                "records_held": -self._count,
            }
        )
        if self._dead:
            self._slot.dead_lettering = 0
