"""Completions of records that failed before sending, and the dead letters of all failed records.

Completions of batches, which are sent: :mod:`sidecar.worker.fates.settlement`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from client_stub.contract.wire import NO_PARTITION, Outcome, OutcomeKind, Shape, pack_outcome
from sidecar.deadletter.letters import Undelivered, persistence_of
from sidecar.kernel import entry_payload, held_bytes, mark_failed_done

if TYPE_CHECKING:
    from sidecar.kernel import Chain, Entry
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.shm.client_table import ClientRow
    from sidecar.shm.slots import SlotView
    from sidecar.worker.fates.settlement import Settlement
    from sidecar.worker.streams.completion import NameOf

log = logging.getLogger(__name__)


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


class RecordsCompletion:
    """Records of one entry that failed before sending. Their words already hold the code."""

    __slots__ = (
        "_done_to",
        "_settlement",
        "chain",
        "entry",
        "failures",
        "generation",
        "outcomes",
        "row",
        "text",
        "topic",
    )

    def __init__(
        self,
        settlement: Settlement,
        chain: Chain,
        entry: Entry,
        failures: list[tuple[int, int]],
        text: str,
        topic: str,
    ) -> None:
        """``failures``: (record index, code), sorted by index."""
        self._settlement = settlement
        self.chain = chain
        self.entry = entry
        self.row = entry.client_row
        self.generation = entry.client_generation
        self.failures = failures
        self.outcomes = len(failures)
        self.text = text
        self.topic = topic
        self._done_to = 0

    @property
    def is_failure(self) -> bool:
        return True

    @property
    def record_count(self) -> int:
        return len(self.failures)

    def write(self, row: ClientRow) -> bool:
        """Write one outcome per run of adjacent indexes with the same code: a frame that is all bad is one outcome."""
        failures = self.failures
        while self._done_to < len(failures):
            start = self._done_to
            first_index, code = failures[start]
            stop = start + 1
            while stop < len(failures) and failures[stop] == (first_index + stop - start, code):
                stop += 1
            data = pack_outcome(
                Outcome(
                    kind=OutcomeKind.FAILED,
                    persistence=persistence_of(code),
                    shape=Shape.RANGE,
                    number=row.next_number,
                    stream=self.entry.stream,
                    code=code,
                    seq=self.entry.seq,
                    partition=NO_PARTITION,
                    first_index=first_index,
                    count=stop - start,
                    base_offset=-1,
                    append_time_ms=-1,
                    indexes=b"",
                    text=self.text,
                )
            )
            if not row.ring_append(data):
                return False
            self._done_to = stop
        return True

    def undelivered(self, row: ClientRow | None, name_of: NameOf) -> list[Undelivered]:
        return records_undelivered(
            self.chain, self.entry, self.failures, row, name_of, topic=self.topic, text=self.text
        )

    def finish(self, *, dead: bool = False) -> None:
        entry, count = self.entry, len(self.failures)
        share = held_bytes(entry.count, entry.payload_bytes) * count // entry.count
        settlement = self._settlement
        settlement.sessions.records_settled(self.row, self.generation, count, share)
        with WordsThenCounted(settlement.slot, count, count if dead else 0):
            mark_failed_done(self.chain, entry, [index for index, _ in self.failures])
        settlement.finished_chains.add(self.chain)


def batch_undelivered(
    batch: ProducerBatch, index: int, row: ClientRow | None, name_of: NameOf
) -> Undelivered:
    """One slice of a failed batch as dead letters."""
    records = batch.records
    entry = records.slice_entry(index)
    indexes = records.slice_indexes(index)
    try:
        payload = records.slice_payload(index)
    except ValueError as error:
        payload = _not_readable(batch.topic, error)
    return Undelivered.of(
        entry,
        row,
        payload,
        numbers=indexes,
        name=name_of(entry),
        topic=batch.topic,
        partition=batch.partition,
        indexes=indexes,
        code=batch.code,
        text=batch.text,
        persistence=batch.persistence,
    )


def records_undelivered(
    chain: Chain,
    entry: Entry,
    failures: list[tuple[int, int]],
    row: ClientRow | None,
    name_of: NameOf,
    *,
    topic: str,
    text: str,
) -> list[Undelivered]:
    """Records of an entry that failed before sending, as dead letters, one per code. ``failures``: (index, code)."""
    by_code: dict[int, list[int]] = {}
    for index, code in failures:
        by_code.setdefault(code, []).append(index)
    try:
        payload = entry_payload(chain, entry)
    except ValueError as error:
        payload = _not_readable(topic, error)
    return [
        Undelivered.of(
            entry,
            row,
            payload,
            numbers=range(entry.count),
            name=name_of(entry),
            topic=topic,
            partition=None,
            indexes=indexes,
            code=code,
            text=text,
            persistence=persistence_of(code),
        )
        for code, indexes in by_code.items()
    ]


def _not_readable(topic: str, error: ValueError) -> bytes:
    log.error("ALARM: a failed submission to topic %s cannot be read back: %s", topic, error)
    return b""
