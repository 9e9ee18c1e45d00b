"""Releases: the last stores of a record in the journal, once its clients have the outcome or it is a dead letter.

Order for a batch: descriptor released → words done → descriptor free. settlement.py has the steps before these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import STAGE_BIT
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

_RELEASE: Final = DescriptorEvent.RELEASE
_FREE: Final = DescriptorEvent.FREE
"""Cached: reading an enum member through its class costs as much as a call, and these are used for each batch."""


class Releases:
    """Releases batches, and records that failed before sending. Belongs to the worker's loop."""

    __slots__ = ("_counters", "_descriptors", "_slot", "released_chains", "sessions", "unreleased")

    def __init__(self, memory: SlotMemory, sessions: Sessions) -> None:
        self._descriptors = memory.descriptors
        self._slot = memory.slot
        self._counters = memory.counters
        self.sessions = sessions
        self.unreleased = 0
        """Number of descriptors whose outcome is stored and not released yet."""
        self.released_chains: set[Chain] = set()
        """Chains in which an entry became done: they may have pages to give back."""

    def take_released_chains(self) -> set[Chain]:
        """Remove and return the chains in which an entry became done."""
        chains, self.released_chains = self.released_chains, set()
        return chains

    @property
    def descriptors_are_scarce(self) -> bool:
        """True if batches whose clients do not read their outcomes hold more than half of the descriptor table. They
        must not take the rest. Batches on their way to a broker do not count: they may use the whole table.
        """
        return self.unreleased > self._descriptors.capacity // 2

    def release_delivered(self, batches: Sequence[ProducerBatch]) -> None:
        """Release delivered batches all of whose clients have their outcomes. They take each step together."""
        indexes: list[int] = []
        for batch in batches:
            indexes.append(batch.descriptor)
        self._descriptors.step(_RELEASE, *indexes)
        for batch in batches:
            is_entry_done = batch.records.mark_done()
            # kill point: words.done
            if is_entry_done:
                assert batch.chain is not None
                self.released_chains.add(batch.chain)
            batch.descriptor = NO_DESCRIPTOR
        self._descriptors.step(_FREE, *indexes)
        self.unreleased -= len(indexes)

    def release_failed(self, batch: ProducerBatch, dead: int) -> None:
        """Mark a failed batch as done: every client has acknowledged it, or its records are letters. ``dead``: its
        records that became dead letters.
        """
        index, failed = batch.descriptor, batch.records.count - dead
        is_of_transaction = batch.queue.transaction is not None
        if index == NO_DESCRIPTOR:
            with WordsThenCounted(self._slot, failed, dead, is_of_transaction):
                is_entry_done = batch.records.mark_done()
                # kill point: words.done
        else:
            self._release_descriptor(index, failed, dead, is_of_transaction)
            is_entry_done = batch.records.mark_done()
            # kill point: words.done
            self._descriptors.step(_FREE, index)
            batch.descriptor = NO_DESCRIPTOR
            self.unreleased -= 1
        if is_entry_done:
            assert batch.chain is not None
            self.released_chains.add(batch.chain)

    def _release_descriptor(self, index: int, failed: int, dead: int, is_of_transaction: bool) -> None:
        """Complete the descriptor and count it in one store: the descriptor holds the counters' new values."""
        counters = self._counters
        row = "records_aborted_total" if is_of_transaction else "records_failed_total"
        self._descriptors.release_failed(
            index,
            failed_counted=counters.get(row) + failed,
            dead_counted=counters.get("records_dead_lettered_total") + dead,
        )
        counters.add(_ended(failed, dead, is_of_transaction))

    def release_unsent(self, chain: Chain, entry: Entry, indexes: list[int], *, dead: bool) -> None:
        """Release records of one entry that failed before sending: the client has acknowledged it, or they are dead
        letters.
        """
        count = len(indexes)
        share = held_bytes(entry.count, entry.payload_bytes) * count // entry.count
        if not entry.txn_number & STAGE_BIT:  # records of stages do not count as their client's
            self.sessions.records_settled(entry.client_row, entry.client_generation, count, share)
        failed, letters = (0, count) if dead else (count, 0)
        with WordsThenCounted(self._slot, failed, letters, entry.txn_number != 0):
            mark_failed_done(chain, entry, indexes)
        self.released_chains.add(chain)


def _ended(failed: int, dead: int, is_of_transaction: bool) -> dict[str, int]:
    """How the counters change when failed records end. A transaction that has some is aborted."""
    return {
        "records_failed_total": 0 if is_of_transaction else failed,
        "records_aborted_total": failed if is_of_transaction else 0,
        "records_dead_lettered_total": dead,
        "records_held": -failed - dead,
    }


class WordsThenCounted:
    """Context for failures that only the words record: the words become done inside it, and are counted at its end.

    If the worker dies in between, the records have ended without being counted. The slot says how many of them are
    dead letters or aborted, and the adoption counts them.
    """

    __slots__ = ("_aborted", "_dead", "_ended", "_slot")

    def __init__(self, slot: SlotView, failed: int, dead: int, is_of_transaction: bool) -> None:
        self._slot = slot
        self._dead = dead
        self._aborted = failed if is_of_transaction else 0
        self._ended = _ended(failed, dead, is_of_transaction)

    def __enter__(self) -> None:
        if self._dead:
            self._slot.dead_lettering = self._dead
        if self._aborted:
            self._slot.ending_aborted = self._aborted

    def __exit__(self, *error: object) -> None:
        self._slot.counters.add(self._ended)
        if self._dead:
            self._slot.dead_lettering = 0
        if self._aborted:
            self._slot.ending_aborted = 0
