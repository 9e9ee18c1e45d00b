"""BatchedOutcomes and EarlyFailures: outcomes of one client, of batches and of records that failed before sending."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeAlias

from client_stub.contract.wire import NO_PARTITION, Outcome, OutcomeKind, Shape, pack_outcome
from sidecar.deadletter.letters import Undelivered, persistence_of
from sidecar.kernel import entry_payload

if TYPE_CHECKING:
    from sidecar.kernel import Chain, Entry
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.shm.client_table import ClientRow
    from sidecar.worker.outcomes.releases import Releases
    from sidecar.worker.streams.client_outcomes import NameOf

log = logging.getLogger(__name__)

_TEXT_BYTES: Final = 512
"""Limit of an outcome's text in bytes; the rest is cut off."""
_DELIVERED: Final = OutcomeKind.DELIVERED
_FAILED: Final = OutcomeKind.FAILED
"""Cached: reading an enum member through its class costs as much as a call, and these are used for each batch."""


class SharedBatch:
    """Counts the slices of a batch that has several. The batch is released when all of them are."""

    __slots__ = ("dead", "remaining")

    def __init__(self, slices: int) -> None:
        self.remaining = slices
        self.dead = 0
        """Number of records that became dead letters."""


Slice: TypeAlias = "tuple[ProducerBatch, int, int, int, SharedBatch | None]"
"""The records of one submission in one batch: (batch, index of the slice, record count, bytes in the client's share,
the batch's SharedBatch or None).
"""


class BatchedOutcomes:
    """Slices of batches that were decided together, all of one client, and all delivered or all failed.

    A failure has one slice, because it waits for the ack of its own outcome.
    """

    __slots__ = ("_releases", "_written", "generation", "is_failure", "row", "slices")

    def __init__(self, releases: Releases, row: int, generation: int, is_failure: bool) -> None:
        self._releases = releases
        self.row = row
        self.generation = generation
        self.is_failure = is_failure
        self.slices: list[Slice] = []
        """Filled by the caller."""
        self._written = 0
        """Number of slices whose outcomes are in the outcome ring."""

    @property
    def outcomes(self) -> int:
        return len(self.slices)

    @property
    def may_be_letter(self) -> bool:
        return self.slices[0][0].queue.transaction is None

    @property
    def topic(self) -> str:
        return self.slices[0][0].topic

    @property
    def record_count(self) -> int:
        return sum(each[2] for each in self.slices)

    def write(self, row: ClientRow) -> bool:
        """Write as many outcomes as the outcome ring has capacity for, with one store."""
        free_bytes = row.ring_free_bytes
        number = row.next_number
        outcomes: list[bytes] = []
        for batch, index, _, _, _ in self.slices[self._written :]:
            data = batch.records.outcomes(
                index,
                number=number,
                kind=_FAILED if self.is_failure else _DELIVERED,
                persistence=batch.persistence,
                code=batch.code,
                partition=batch.partition,
                base_offset=batch.base_offset,
                append_time_ms=batch.append_time_ms,
                text=batch.text.encode()[:_TEXT_BYTES] if batch.text else b"",
            )
            free_bytes -= len(data)
            if free_bytes < 0:
                self._written += len(outcomes)
                break
            number += 1
            outcomes.append(data)
        if outcomes:
            row.ring_append(b"".join(outcomes))
        return free_bytes >= 0

    def undelivered(self, row: ClientRow | None, name_of: NameOf) -> list[Undelivered]:
        return [batch_undelivered(batch, index, row, name_of) for batch, index, _, _, _ in self.slices]

    def release(self, *, dead: bool = False) -> None:
        records = share = 0
        ended: list[ProducerBatch] = []
        for batch, _, its_records, its_share, shared in self.slices:
            records += its_records
            share += its_share
            if shared is not None:
                shared.remaining -= 1
                if dead:
                    shared.dead += its_records
                if shared.remaining:
                    continue
            ended.append(batch)
        self._releases.sessions.records_settled(self.row, self.generation, records, share)
        if not ended:
            return
        if self.is_failure:
            self._releases.release_failed(
                batch, shared.dead if shared is not None else records if dead else 0
            )
        else:
            self._releases.release_delivered(ended)


class EarlyFailures:
    """Records of one entry that failed before sending. Their words already hold the code."""

    __slots__ = (
        "_done_to",
        "_releases",
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
        releases: Releases,
        chain: Chain,
        entry: Entry,
        failures: list[tuple[int, int]],
        text: str,
        topic: str,
    ) -> None:
        """``failures``: (record index, code), sorted by index."""
        self._releases = releases
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
    def may_be_letter(self) -> bool:
        return not self.entry.txn_number

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

    def release(self, *, dead: bool = False) -> None:
        self._releases.release_unsent(
            self.chain, self.entry, [index for index, _ in self.failures], dead=dead
        )


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
