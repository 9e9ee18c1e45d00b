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

from client_stub.wire import NO_PARTITION, LocalCode, Outcome, OutcomeKind, Shape, pack_outcome
from sidecar.deadletter.letters import Undelivered, persistence_of
from sidecar.kernel import entry_payload, held_bytes
from sidecar.shm.in_work import KILLS_MAX

if TYPE_CHECKING:
    from sidecar.kernel import Chain, Entry
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.shm.client_table import ClientRow
    from sidecar.worker.outboxes import Outboxes
    from sidecar.worker.session import ClientSession
    from sidecar.worker.sessions import Sessions

log = logging.getLogger(__name__)


POISON_TEXT = (
    f"The submission this record was in was being worked on when the daemon's worker died, {KILLS_MAX} times; "
    "it was set aside."
)
NameOf: TypeAlias = Callable[["Entry"], bytes]
"""The name of the submission that an entry is (sidecar/shm/submission_name.py)."""
OnRecordsSettled: TypeAlias = Callable[[int, int, int, int], None]
"""(row, generation, count, bytes of its share): so many records of that client are told and done."""


def _share_of(entry: Entry, count: int) -> int:
    """The part of its client's share that ``count`` of an entry's records stand for."""
    return held_bytes(entry.count, entry.payload_bytes) * count // entry.count


class Part(Protocol):
    """What one client is told of one telling: at most one ring entry at a time, resumable.

    A delivery is told when it stands in the ring. A failure is told when the client has acknowledged it: until
    then its records keep their pages, so that they can go to the dead letters if the client never does.
    """

    row: int
    generation: int

    @property
    def is_failure(self) -> bool: ...

    def write(self, row: ClientRow) -> bool:
        """Write to the ring; False when it is full. Repeatable: what was written is not written again."""

    def undelivered(self, row: ClientRow | None, name_of: NameOf) -> list[Undelivered]:
        """The records as dead letters; ``row`` None: it belongs to somebody else by now, or to nobody."""

    def finish(self, *, dead: bool = False) -> None:
        """The client knows, or its records are ``dead`` letters: one step nearer to the words being done."""


class BatchTelling:
    """A settled ProducerBatch that waits until each of its clients has been told."""

    __slots__ = ("batch", "dead", "on_told", "remaining")

    def __init__(self, batch: ProducerBatch, on_told: Callable[[BatchTelling], None]) -> None:
        self.batch = batch
        self.on_told = on_told
        self.remaining = batch.records.slice_count
        self.dead = 0
        """Records that went to the dead letters."""

    def parts(self, on_records_settled: OnRecordsSettled) -> list[Part]:
        return [BatchPart(self, index, on_records_settled) for index in range(self.batch.records.slice_count)]


class BatchPart:
    """One slice of a batch: the records of one submission, for the one client that sent it."""

    __slots__ = (
        "_on_records_settled",
        "_share",
        "count",
        "generation",
        "index",
        "is_failure",
        "row",
        "telling",
    )

    def __init__(self, telling: BatchTelling, index: int, on_records_settled: OnRecordsSettled) -> None:
        self.telling = telling
        self._on_records_settled = on_records_settled
        self.index = index
        self.is_failure = telling.batch.code != 0
        self.row, self.generation, self.count, self._share = telling.batch.records.slice_share(index)

    def undelivered(self, row: ClientRow | None, name_of: NameOf) -> list[Undelivered]:
        batch = self.telling.batch
        entry = batch.records.slice_entry(self.index)
        indexes = batch.records.slice_indexes(self.index)
        try:
            payload = batch.records.slice_payload(self.index)
        except ValueError as error:
            payload = _not_readable(batch.topic, error)
        return [
            Undelivered.of(
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
        ]

    def write(self, row: ClientRow) -> bool:
        batch = self.telling.batch
        data = batch.records.outcomes(
            self.index,
            number=row.next_number,
            kind=OutcomeKind.FAILED if self.is_failure else OutcomeKind.DELIVERED,
            persistence=batch.persistence,
            code=batch.code,
            partition=batch.partition,
            base_offset=batch.base_offset,
            append_time_ms=batch.append_time_ms,
            text=batch.text.encode()[:512] if batch.text else b"",
        )
        return row.ring_append(data)

    def finish(self, *, dead: bool = False) -> None:
        telling = self.telling
        telling.dead += self.count if dead else 0
        self._on_records_settled(self.row, self.generation, self.count, self._share)
        telling.remaining -= 1
        if telling.remaining == 0:
            telling.on_told(telling)


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
        "topic",
    )

    def __init__(
        self,
        chain: Chain,
        entry: Entry,
        failures: list[tuple[int, int]],
        text: str,
        topic: str,
        on_told: Callable[[FailurePart, bool], None],
        on_records_settled: OnRecordsSettled,
    ) -> None:
        self._on_records_settled = on_records_settled
        self.chain = chain
        self.entry = entry
        self.row = entry.client_row
        self.generation = entry.client_generation
        self.failures = failures
        self.text = text
        self.topic = topic
        self.on_told = on_told
        self._done_to = 0

    @property
    def is_failure(self) -> bool:
        return True

    def undelivered(self, row: ClientRow | None, name_of: NameOf) -> list[Undelivered]:
        by_code: dict[int, list[int]] = {}
        for index, code in self.failures:
            by_code.setdefault(code, []).append(index)
        try:
            payload = entry_payload(self.chain, self.entry)
        except ValueError as error:
            payload = _not_readable(self.topic, error)
        return [
            Undelivered.of(
                self.entry,
                row,
                payload,
                numbers=range(self.entry.count),
                name=name_of(self.entry),
                topic=self.topic,
                partition=None,
                indexes=indexes,
                code=code,
                text=self.text,
                persistence=persistence_of(code),
            )
            for code, indexes in by_code.items()
        ]

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

    def finish(self, *, dead: bool = False) -> None:
        count = len(self.failures)
        self._on_records_settled(self.row, self.generation, count, _share_of(self.entry, count))
        self.on_told(self, dead)


class Teller:
    """Writes tellings to rings and keeps, per client, what found its ring full.

    A part waits only behind parts of its own client: a client that does not read its acks delays nobody else.
    Failures of a client that is gone are handed to ``on_gone``, which finishes them as dead letters.
    """

    def __init__(
        self,
        *,
        sessions: Sessions,
        outboxes: Outboxes,
        on_gone: Callable[[list[Part]], None],
    ) -> None:
        self._on_gone = on_gone
        self._sessions = sessions
        self._outboxes = outboxes

    def tell(self, parts: list[Part], now_ms: float) -> None:
        """Tell each part's client, or queue the part behind its client's earlier ones."""
        gone: list[Part] = []
        for part in parts:
            session = self._sessions.of_row(part.row)
            if (
                session is None
                or session.row.generation != part.generation
                or (session.is_gone and part.is_failure)
            ):
                # Nobody reads that ring any more, or it is somebody else's: a delivery counts as told.
                if part.is_failure and not (session is not None and session.has_cancelled):
                    gone.append(part)
                else:
                    part.finish()
            elif session.untold:
                session.untold.append(part)
            elif part.write(session.row):
                self._outboxes.pending.add(session)
                self._written(session, part, now_ms)
            else:
                session.untold.append(part)
                if session.ring_full_since_ms is None:
                    session.ring_full_since_ms = now_ms
        if gone:
            self._on_gone(gone)

    def acked(self, session: ClientSession, now_ms: float) -> None:
        """The client has ACKed: its failures up to there are told; go on with what waited for room in its ring."""
        acked_number = session.row.acked_number
        while session.unacked and session.unacked[0][0] <= acked_number:
            session.unacked.popleft()[1].finish()
        while session.untold:
            part = session.untold[0]
            if not part.write(session.row):
                session.ring_full_since_ms = now_ms  # it has read something: the time begins anew
                self._outboxes.pending.add(session)
                return
            session.untold.popleft()
            self._outboxes.pending.add(session)
            self._written(session, part, now_ms)
        session.ring_full_since_ms = None

    def abandon(self, session: ClientSession) -> None:
        """The client is gone: deliveries that it was not told count as told, so that shared batches are freed;
        its failures become dead letters, unless it said itself that it does not wait for them."""
        session.is_gone = True
        if session.untold:
            log.warning("client %s is gone with %d outcomes it never read", session.name, len(session.untold))
        parts = [part for _, part, _ in session.unacked] + list(session.untold)
        session.unacked.clear()
        session.untold.clear()
        session.ring_full_since_ms = None
        dead = [part for part in parts if part.is_failure and not session.has_cancelled]
        for part in parts:
            if not part.is_failure or session.has_cancelled:
                part.finish()
        if dead:
            self._on_gone(dead)

    def _written(self, session: ClientSession, part: Part, now_ms: float) -> None:
        if part.is_failure and not session.has_cancelled:
            session.unacked.append((session.row.next_number - 1, part, now_ms))
        else:
            part.finish()


def _not_readable(topic: str, error: ValueError) -> bytes:
    log.error("ALARM: a failed submission to topic %s cannot be read back: %s", topic, error)
    return b""


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
        LocalCode.POISON_SUBMISSION: POISON_TEXT,
        LocalCode.ENCODE_MISMATCH: "The record's batch was sent, and what became of it cannot be found out any more.",
    }
    return texts.get(LocalCode(code), "")
