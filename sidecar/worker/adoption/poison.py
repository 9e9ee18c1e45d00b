"""Poison: an entry or batch that was in work at three deaths of a worker is set aside at the next adoption.

Adoption calls it, before the worker's first turn.

A submission that kills its reader fails as a whole without being read again: its header is enough to fail each record.
A batch that kills its encoder fails as possibly persisted. It has a descriptor, so an earlier attempt may have reached
the broker.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from client_stub.contract.wire import WORD_DONE, WORD_FAILED_MIN, WORD_UNPARTITIONED, LocalCode, Persistence
from sidecar.kernel import entry_words, fail_records
from sidecar.shm.in_work import KILLS_MAX, NUMBER_BITS, batch_word, entry_word, name_of
from sidecar.worker.outcomes.batched_outcomes import batch_undelivered, records_undelivered
from sidecar.worker.outcomes.failure_texts import POISON_TEXT

if TYPE_CHECKING:
    from sidecar.deadletter.letters import Undelivered
    from sidecar.kernel import Chain, Entry
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.shm.client_table import ClientRow
    from sidecar.shm.descriptors import Descriptor
    from sidecar.worker.slot_memory import SlotMemory

log = logging.getLogger(__name__)

Failures: TypeAlias = list[tuple[int, int]]
"""(record index, code), all of one code."""


class Poison:
    """Entries and batches that were in work at several deaths of this slot's workers."""

    def __init__(self, memory: SlotMemory) -> None:
        self._submission_name = memory.name_of
        self._suspects = memory.suspects
        self._counters = memory.counters
        for what, deaths in memory.deaths.items():
            log.warning(
                "Slot %d: %s was being processed when the worker died, for the %s time%s.",
                memory.index,
                name_of(what),
                {1: "first", 2: "second", 3: "third"}.get(deaths, f"{deaths}th"),
                ": it is set aside" if deaths >= KILLS_MAX else "",
            )
        self._found = self._suspects.poison()

    def entries_of(self, chain: Chain) -> set[int]:
        """Ordinals of the chain's poisonous submissions."""
        first = entry_word(chain.chain_id, 0)
        return {what ^ first for what in self._found if what >> NUMBER_BITS == first >> NUMBER_BITS}

    def is_batch(self, descriptor: Descriptor) -> bool:
        return bool(self._found) and batch_word(descriptor.serial) in self._found

    def set_aside(
        self, chain: Chain, topic: str, entry: Entry, descriptors: Sequence[Descriptor]
    ) -> list[Failures]:
        """Mark the records of a poisonous submission as failed without reading its payload. Returns failures grouped
        by code.

        A record inside one of the chain's live ``descriptors`` may be in its broker's log. Such a batch cannot be sent
        again, so the record is possibly persisted.
        """
        by_code: dict[int, list[int]] = {}
        has_changed = False
        for index, word in enumerate(entry_words(chain, entry)):
            if word == WORD_DONE:
                continue
            code = word
            if word < WORD_FAILED_MIN or word == WORD_UNPARTITIONED:
                cursor = (entry.ordinal, index)
                was_sent = any(
                    each.partition == word and each.first_cursor <= cursor <= each.last_cursor
                    for each in descriptors
                )
                code = int(LocalCode.ENCODE_MISMATCH if was_sent else LocalCode.POISON_SUBMISSION)
                has_changed = True
            by_code.setdefault(code, []).append(index)
        if has_changed:
            self._counters.inc("poison_submissions_total")
            log.error(
                "A submission of %d records to topic %s (client row %d, stream %d, seq %d) was being "
                "processed at %d deaths of "
                "this slot's worker: it fails with POISON_SUBMISSION and is not read again.",
                entry.count,
                topic,
                entry.client_row,
                entry.stream,
                entry.seq,
                KILLS_MAX,
            )
        for code, indexes in by_code.items():
            fail_records(chain, entry, indexes, code)
        return [[(index, code) for index in indexes] for code, indexes in by_code.items()]

    def give_up(
        self,
        batches: Iterable[ProducerBatch],
        fail: Callable[[ProducerBatch, int, str], None],
        row_of: Callable[[int, int], ClientRow | None],
    ) -> list[Undelivered]:
        """Fail poisonous batches by ``fail(batch, code, text)``. Returns their records as dead letters; those of a
        transaction end with it.
        """
        letters: list[Undelivered] = []
        for batch in batches:
            self._counters.inc("poison_submissions_total")
            log.error(
                "%r was being encoded at %d deaths of this slot's worker: it fails with POISON_SUBMISSION and "
                "is not sent again.",
                batch,
                KILLS_MAX,
            )
            batch.in_doubt = True
            fail(batch, int(LocalCode.POISON_SUBMISSION), POISON_TEXT)
            assert batch.persistence == Persistence.POSSIBLY_PERSISTED
            if batch.queue.transaction is not None:
                continue
            for index in range(batch.records.slice_count):
                row, generation, *_ = batch.records.slice_share(index)
                letters.append(
                    batch_undelivered(batch, index, row_of(row, generation), self._submission_name)
                )
        return letters

    def letters_of(
        self, chain: Chain, topic: str, entry: Entry, failures: Failures, row: ClientRow | None
    ) -> list[Undelivered]:
        """The set-aside records as dead letters; those of a transaction end with it. Each adoption yields the same
        letters until the submission has ended.
        """
        if entry.txn_number:
            return []
        return records_undelivered(
            chain, entry, failures, row, self._submission_name, topic=topic, text=POISON_TEXT
        )

    def forget_ended(self, chains: Iterable[Chain], descriptors: Iterable[Descriptor]) -> None:
        """Forget suspects that have ended, which frees their rows."""
        if not self._found:
            return
        live = {
            entry_word(chain.chain_id, ordinal)
            for chain in chains
            for ordinal in self.entries_of(chain)
            if chain.ordinals(ordinal, 1) == ordinal.to_bytes(8, sys.byteorder)
        }
        live |= {batch_word(each.serial) for each in descriptors}
        for what in self._found - live:
            self._suspects.forget(what)
            log.info("%s, which was set aside, is settled.", name_of(what))
