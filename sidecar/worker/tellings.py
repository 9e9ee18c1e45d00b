"""Tellings: decided fates on their way into the clients' outcome rings, each step repeatable.

The order is the journal's third fact and must not change: the descriptor is *settled* (with code, base offset
and append time), then the outcomes are written to the rings, then the descriptor is *told*, then the words
become *done*, then the lane's row is stored and the descriptor is free. A crash between any two steps leaves a
state from which the next reader goes on; at worst a client hears an outcome twice and completes it once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from client_stub.wire import NO_PARTITION, LocalCode, Outcome, OutcomeKind, Persistence, Shape, pack_outcome
from sidecar.kernel import mark_failed_done

if TYPE_CHECKING:
    from sidecar.kernel import Chain, Entry
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.shm.client_table import ClientRow
    from sidecar.worker.session import ClientSession

log = logging.getLogger(__name__)


OnRecordsSettled: TypeAlias = Callable[[int, int, int, int], None]
"""(row, generation, count, payload bytes): so many records of that client are told and done."""


def _share_of(entry: Entry, count: int) -> int:
    """The payload bytes that ``count`` of an entry's records stand for."""
    return entry.payload_bytes * count // entry.count


class Part(Protocol):
    """What one client is told of one telling: at most one ring entry at a time, resumable."""

    row: int
    generation: int

    def write(self, row: ClientRow) -> bool:
        """Write to the ring; False when it is full. Repeatable: what was written is not written again."""

    def finish(self) -> None:
        """The client knows (or is gone): one step nearer to the words being done."""


class BatchTelling:
    """A settled ProducerBatch that waits until each of its clients has been told."""

    __slots__ = ("batch", "on_told", "remaining")

    def __init__(self, batch: ProducerBatch, on_told: Callable[[ProducerBatch], None]) -> None:
        self.batch = batch
        self.on_told = on_told
        self.remaining = batch.records.slice_count

    def parts(self, on_records_settled: OnRecordsSettled) -> list[Part]:
        return [BatchPart(self, index, on_records_settled) for index in range(self.batch.records.slice_count)]


class BatchPart:
    """One slice of a batch: the records of one submission, for the one client that sent it."""

    __slots__ = ("_on_records_settled", "generation", "index", "row", "telling")

    def __init__(self, telling: BatchTelling, index: int, on_records_settled: OnRecordsSettled) -> None:
        self.telling = telling
        self._on_records_settled = on_records_settled
        self.index = index
        entry = telling.batch.records.slice_entry(index)
        self.row = entry.client_row
        self.generation = entry.client_generation

    def write(self, row: ClientRow) -> bool:
        batch = self.telling.batch
        failed = batch.code != 0
        data = batch.records.outcomes(
            self.index,
            number=row.next_number,
            kind=OutcomeKind.FAILED if failed else OutcomeKind.DELIVERED,
            persistence=batch.persistence,
            code=batch.code,
            partition=batch.partition,
            base_offset=batch.base_offset,
            append_time_ms=batch.append_time_ms,
            text=batch.text.encode()[:512] if batch.text else b"",
        )
        return row.ring_append(data)

    def finish(self) -> None:
        telling = self.telling
        records = telling.batch.records
        count = records.slice_records(self.index)
        payload_bytes = _share_of(records.slice_entry(self.index), count)
        self._on_records_settled(self.row, self.generation, count, payload_bytes)
        telling.remaining -= 1
        if telling.remaining == 0:
            telling.on_told(telling.batch)


class FailurePart:
    """Records of one entry that failed before sending: their words already carry the code."""

    __slots__ = (
        "_done_to",
        "_on_records_settled",
        "chain",
        "entry",
        "failures",
        "generation",
        "on_told",
        "row",
        "text",
    )

    def __init__(
        self,
        chain: Chain,
        entry: Entry,
        failures: list[tuple[int, int]],
        text: str,
        on_told: Callable[[Chain], None],
        on_records_settled: OnRecordsSettled,
    ) -> None:
        self._on_records_settled = on_records_settled
        self.chain = chain
        self.entry = entry
        self.row = entry.client_row
        self.generation = entry.client_generation
        self.failures = failures
        self.text = text
        self.on_told = on_told
        self._done_to = 0

    def write(self, row: ClientRow) -> bool:
        """One outcome per run of equal codes and adjacent indexes: a frame that is all bad is one outcome."""
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
                    persistence=Persistence.NOT_PERSISTED,
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

    def finish(self) -> None:
        mark_failed_done(self.chain, self.entry, [index for index, _ in self.failures])
        count = len(self.failures)
        self._on_records_settled(self.row, self.generation, count, _share_of(self.entry, count))
        self.on_told(self.chain)


class Teller:
    """Writes tellings to rings and keeps, per client, what found its ring full.

    A part waits only behind parts of its own client: a client that does not read its acks delays nobody else.
    """

    def __init__(
        self,
        *,
        row_of: Callable[[int, int], ClientRow | None],
        session_of: Callable[[int], ClientSession | None],
        on_ring_written: Callable[[ClientSession], None],
    ) -> None:
        self._row_of = row_of
        self._session_of = session_of
        self._on_ring_written = on_ring_written

    def tell(self, parts: list[Part], now_ms: float) -> None:
        """Tell each part's client, or queue the part behind its client's earlier ones."""
        for part in parts:
            row = self._row_of(part.row, part.generation)
            if row is None:
                part.finish()  # the row was given to somebody else: its first owner is long gone
                continue
            session = self._session_of(part.row)
            if session is not None and session.untold:
                session.untold.append(part)
            elif part.write(row):
                if session is not None:
                    self._on_ring_written(session)
                part.finish()
            elif session is None:
                part.finish()  # nobody reads this ring any more: told, and counted by the batch's own outcome
            else:
                session.untold.append(part)
                if session.ring_full_since_ms is None:
                    session.ring_full_since_ms = now_ms

    def resume(self, session: ClientSession, now_ms: float) -> None:
        """The client has ACKed: go on with what waited for room in its ring."""
        while session.untold:
            part = session.untold[0]
            if not part.write(session.row):
                session.ring_full_since_ms = now_ms  # it has read something: the time begins anew
                self._on_ring_written(session)
                return
            session.untold.popleft()
            self._on_ring_written(session)
            part.finish()
        session.ring_full_since_ms = None

    def abandon(self, session: ClientSession) -> None:
        """The client is cut: what it was not told counts as told, so that shared batches are freed."""
        if session.untold:
            log.warning("client %s was cut with %d outcomes it never read", session.name, len(session.untold))
        while session.untold:
            session.untold.popleft().finish()
        session.ring_full_since_ms = None


def local_failure_text(code: int, topic: str, partition_count: int, config: ProducerConfig) -> str:
    """One sentence per failure before sending, naming the topic and the setting that bounds it."""
    texts = {
        LocalCode.MALFORMED_RECORD: (
            "The record could not be read: it is not [key, value, headers, partition, timestamp]."
        ),
        LocalCode.RECORD_TOO_LARGE: (
            f"The record is larger than max.request.size ({config.max_request_size} bytes) when serialized."
        ),
        LocalCode.INVALID_TIMESTAMP: "The record's timestamp is negative.",
        # Kafka: KafkaProducer.waitOnMetadata; the partition itself is known where the record is.
        LocalCode.INVALID_PARTITION: (
            f"Invalid partition given with record: it is not in the range [0...{partition_count}) of topic {topic}."
        ),
        LocalCode.METADATA_TIMEOUT: (
            f"Topic {topic} not present in metadata after {config.max_block_ms:.0f} ms (max.block.ms)."
        ),
        LocalCode.ABORTED: "The daemon was closed before the record could be delivered.",
        LocalCode.TOPIC_UNAUTHORIZED: f"Not authorized to access topic {topic}.",
        LocalCode.INVALID_TOPIC: f"Topic name {topic} is not valid.",
    }
    return texts.get(LocalCode(code), "")
