"""ProducerBatch: records of one partition that are sent together and succeed or fail together (rule A6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NoReturn

from client_stub.contract.wire import Persistence
from sidecar.common.condition import WaitCause
from sidecar.producer.batch_states import (
    AFTER_CLOSE,
    AFTER_DECIDE,
    AFTER_LEAVE,
    AFTER_SPLIT,
    BatchEvent,
    BatchState,
)
from sidecar.producer.lanes import NO_SEQUENCE, SEQUENCE_MASK

if TYPE_CHECKING:
    from sidecar.kernel import BatchRecords, Chain
    from sidecar.producer.partition_queue import PartitionQueue

NO_DESCRIPTOR = -1
NOT_DRAINED: Final = 1 << 62
"""The order of a batch that was never in a request: after all that were."""
IN_DEQUE: Final = (BatchState.OPEN, BatchState.QUEUED)
_ENDED = (BatchState.DECIDED, BatchState.GIVEN_UP)
_OPEN = BatchState.OPEN
_PERSISTED = Persistence.PERSISTED
_NOT_PERSISTED = Persistence.NOT_PERSISTED
"""Cached: reading an enum member through its class costs as much as a call, and these are used for each batch."""


class ProducerBatch:
    """A range of journal records for one partition. Single-threaded: the worker's loop.

    ``state`` moves by the table in batch_states.py, and always together with the change that it names. ``full`` and
    ``expedited`` are reasons to send the batch; they say nothing about where it is.

    ``producer_id``, ``epoch`` and ``base_sequence`` are given at the first drain and do not change over retries (rule
    S4). Only a *renumbering* withdraws them, when the broker surely has none of the records and nothing of the
    partition is on the wire.

    ``order`` is the batch's rank among the drained batches of its (lane, partition). It is given at the first drain
    and never re-used, so batches sort by it whatever happens to their sequences. Until then it is NOT_DRAINED, and
    records of other clients may still pass the batch.

    ``is_express``: its records passed those of a backlog. ``in_doubt``: an earlier attempt may have been appended (its
    answer never came, or was ambiguous). ``descriptor``: index in the slot's table, set by the driver; a drain sees
    from it that the batch needs no new one.
    """

    __slots__ = (
        "append_time_ms",
        "appended",
        "attempts",
        "base_offset",
        "base_sequence",
        "cause",
        "chain",
        "children",
        "code",
        "created_ms",
        "deadline_ms",
        "descriptor",
        "doubt_refuted",
        "doubtful_parent",
        "drained_to",
        "epoch",
        "expedited",
        "full",
        "goes_alone",
        "in_doubt",
        "is_express",
        "lane",
        "last_chance",
        "last_error",
        "lifetime_ms",
        "load",
        "order",
        "partition",
        "persistence",
        "producer_id",
        "queue",
        "records",
        "recreations",
        "retry_at_ms",
        "retry_cause",
        "serial",
        "state",
        "text",
        "topic",
        "was_absent",
        "was_in_doubt",
    )

    def __init__(
        self,
        queue: PartitionQueue,
        records: BatchRecords,
        chain: Chain | None,
        created_ms: float,
        deadline_ms: float,
        order: int = NOT_DRAINED,
        is_express: bool = False,
        state: BatchState = _OPEN,
    ) -> None:
        self.queue = queue
        self.topic = queue.topic
        self.partition, self.lane = queue.partition, queue.lane
        self.records = records
        self.chain = chain
        self.order, self.is_express = order, is_express
        self.created_ms, self.deadline_ms = created_ms, deadline_ms
        self.state = state
        self.lifetime_ms = queue.settings.delivery_timeout_ms
        """The topic's delivery.timeout.ms when the batch was made; the setting may have changed since."""

        self.full = False
        """batch.size is reached, so it may be sent. It takes more records until it is drained or fully grown."""
        self.load = 0
        """Its size in units of batch.size, rounded up, as its partition's queue counts it."""
        self.expedited = False
        """A flush or close asked for it: linger does not apply."""
        self.attempts = 0
        """Number of attempts that ended and counted, as Kafka's ``ProducerBatch.attempts``."""
        self.retry_at_ms = 0.0
        self.drained_to: int | None = None
        self.last_error: str | None = None
        self.retry_cause: WaitCause | None = None
        """Why it was sent and is to be sent again; ``last_error`` has the words."""
        self.last_chance: tuple[int, str] | None = None
        """The (code, text) with which it fails instead of being retried: its partition was deleted while it was on the
        wire.
        """
        self.in_doubt = False
        self.doubt_refuted = False
        """It was in doubt, and its broker then said that it lacks it. Valid unless a later batch turns out to be in
        the log.
        """
        self.appended = False
        """The broker reported that it has the batch: it is sent again only to learn the offset."""
        self.doubtful_parent: ProducerBatch | None = None
        """The batch of which this is a half, if that may have been appended whole. The broker would not recognise the
        half.
        """
        self.was_in_doubt = False
        """It may be renumbered, but is never reported as surely not persisted. Either its broker said that it lacks
        the batch, or the other half of a batch in doubt was appended, which shows that the whole is not in the log.
        Both conclusions are wrong if the broker had lost the producer id.
        """
        self.was_absent = False
        """When asked after a worker's death, the broker knew the producer id and did not have the batch. So a refusal
        for its size means that it is not in the log. Reset when an attempt of this worker goes unanswered.
        """
        self.children: tuple[ProducerBatch, ...] = ()

        self.producer_id = self.epoch = -1
        self.base_sequence = NO_SEQUENCE
        self.serial = -1
        self.recreations = -1
        """Recreations of its topic when it was last sent; -1 if the log of that time did not judge its sequence."""
        self.goes_alone = False
        """Its timestamps are so old that the broker may forget the producer id after appending it."""

        self.code = 0
        self.persistence: int = _NOT_PERSISTED
        self.base_offset = -1
        self.append_time_ms = -1
        self.text = ""

        self.descriptor = NO_DESCRIPTOR

    @property
    def count(self) -> int:
        return self.records.count

    @property
    def size_bytes(self) -> int:
        """Exact encoded size, uncompressed, with the 61-byte header."""
        return self.records.size_bytes

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence != NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        """The sequence of the batch's last record."""
        return (self.base_sequence + self.records.count - 1) & SEQUENCE_MASK

    @property
    def may_be_in_log(self) -> bool:
        """True if an attempt of the batch, or of the whole of which it is a half, may have been appended. A refusal
        that a broker gives before it looks for duplicates does not change that (docs/broker-facts.md).
        """
        return self.in_doubt or self.doubtful_parent is not None or self.doubt_refuted

    @property
    def has_open_doubt(self) -> bool:
        """True if it must be sent again unchanged, to learn its outcome, before it may be renumbered."""
        return self.in_doubt or self.doubtful_parent is not None

    @property
    def is_decided(self) -> bool:
        """Its outcome is decided, even if its request has not ended."""
        return self.state in _ENDED

    @property
    def is_all_decided(self) -> bool:
        """Done, and so are all batches it was split into."""
        if self.children:
            return all(child.is_all_decided for child in self.children)
        return self.is_decided

    def refuse(self, event: BatchEvent) -> NoReturn:
        """Raise AssertionError: the table has no such event in this state, which is a bug."""
        raise AssertionError(f"{self!r} is {self.state.name}, which has no {event.name}")

    def decide(
        self,
        *,
        base_offset: int = -1,
        append_time_ms: int = -1,
        code: int = 0,
        persistence: int = _PERSISTED,
        text: str = "",
        cause: str = "",
    ) -> None:
        """Decide the outcome of all its records, once. A waiting batch leaves its partition's deque. ``cause``: for
        what it waited until its time was over, a WaitCause or the name of a broker's error.
        """
        follows = AFTER_DECIDE.get(self.state) or self.refuse(BatchEvent.DECIDE)
        if self.state in IN_DEQUE:
            self.queue.remove(self)
        self.state = follows
        self.code = code
        self.persistence = persistence
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self.text = text
        self.cause = cause

    def leave_wire(self) -> None:
        """Take the batch off the wire: its request has ended, or goes without it."""
        self.state = AFTER_LEAVE.get(self.state) or self.refuse(BatchEvent.LEAVE)
        self.queue.wire_count -= 1

    def close(self) -> None:
        """Close the batch: it takes no more records."""
        self.state = AFTER_CLOSE.get(self.state) or self.refuse(BatchEvent.CLOSE)

    def identify(self, producer_id: int, epoch: int, base_sequence: int) -> None:
        """Set the identity under which the records are sent, at the first drain."""
        assert self.base_sequence == NO_SEQUENCE, "a batch keeps its identity over retries"
        self.producer_id = producer_id
        self.epoch = epoch
        self.base_sequence = base_sequence

    def doubt_whole(self) -> None:
        """Mark it as half of a batch that may be in the log as a whole. A worker that has died since made the split,
        and nothing else remembers the whole.
        """
        whole = ProducerBatch(
            queue=self.queue,
            records=self.records,
            chain=self.chain,
            order=self.order,
            is_express=self.is_express,
            created_ms=self.created_ms,
            deadline_ms=self.deadline_ms,
            state=BatchState.DECIDED,
        )
        whole.in_doubt = True
        self.doubtful_parent = whole

    def clear_identity(self) -> None:
        """Take its producer id and sequence, to be numbered again. Only after a definite refusal of the broker."""
        assert self.state is not BatchState.ON_WIRE and not self.has_open_doubt, (
            "only records the broker surely lacks may be renumbered"
        )
        self.producer_id = -1
        self.epoch = -1
        self.base_sequence = NO_SEQUENCE
        # A broker that has lost the producer id gives the same answer, so the batch may still be in the log.
        self.was_in_doubt = self.was_in_doubt or self.doubt_refuted
        self.doubt_refuted = False

    def split(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Split the batch into halves (rule A7), which keep its deadline, attempts and sequences."""
        assert self.records.count > 1, "one record cannot be split"
        self.state = AFTER_SPLIT.get(self.state) or self.refuse(BatchEvent.SPLIT)
        halves = self.records.split()
        first = self._piece(halves[0], 0, keep_identity=True)
        second = self._piece(halves[1], halves[0].count, keep_identity=True)
        self.children = (first, second)
        return first, second

    def isolate(
        self, texts: Mapping[int, str]
    ) -> tuple[list[tuple[ProducerBatch, str]], ProducerBatch | None]:
        """Separate the records at the given indexes from the others, after the broker refused the whole batch.

        Returns (pieces to fail, one per distinct text; the other records in order, or None). No piece has an identity.
        """
        self.state = AFTER_SPLIT.get(self.state) or self.refuse(BatchEvent.SPLIT)
        indexes_of: dict[str, list[int]] = {}
        for index in sorted(texts):
            indexes_of.setdefault(texts[index], []).append(index)
        bad = [(self._selected(indexes), text) for text, indexes in indexes_of.items()]
        rest = [index for index in range(self.records.count) if index not in texts]
        good = self._selected(rest) if rest else None
        pieces = [piece for piece, _ in bad]
        self.children = (*pieces, good) if good is not None else tuple(pieces)
        return bad, good

    def _selected(self, indexes: list[int]) -> ProducerBatch:
        return self._piece(self.records.select(indexes), indexes[0], keep_identity=False)

    def _piece(self, records: BatchRecords, offset: int, *, keep_identity: bool) -> ProducerBatch:
        piece = ProducerBatch(
            queue=self.queue,
            records=records,
            chain=self.chain,
            order=self.order + offset,
            is_express=self.is_express,
            created_ms=self.created_ms,
            deadline_ms=self.deadline_ms,
            state=BatchState.BETWEEN,
        )
        piece.expedited = True
        piece.load = -(-records.size_bytes // self.queue.settings.batch_size)
        piece.attempts = self.attempts
        piece.last_error, piece.retry_cause = self.last_error, self.retry_cause
        piece.was_in_doubt = self.was_in_doubt
        if keep_identity:
            if self.may_be_in_log and not self.was_absent:
                piece.doubtful_parent = self
            piece.goes_alone = self.goes_alone
            piece.recreations = self.recreations
        if keep_identity and self.has_sequence:
            piece.identify(self.producer_id, self.epoch, (self.base_sequence + offset) & SEQUENCE_MASK)
        return piece

    @property
    def was_never_in_doubt(self) -> bool:
        """Whether each of its attempts got an answer that says that it was not appended."""
        return not (
            self.may_be_in_log or self.doubt_refuted or self.was_in_doubt or self.doubtful_parent is not None
        )

    def where(self) -> str:
        """Where the batch is, as part of an error text for one that expired."""
        if self.state is BatchState.ON_WIRE:
            return f"sent to broker {self.drained_to} and not answered"
        if self.last_error:
            # What a broker says is a name; what happened to its answer is a sentence.
            is_name = self.retry_cause is not WaitCause.LOST
            return f"waiting to be sent again{' after' if is_name else ':'} {self.last_error}"
        return self.queue.waiting_for()

    @property
    def is_paused(self) -> bool:
        """Whether it waits for an operator alone. A batch that was sent before its topic was paused is sent again."""
        return self.queue.settings.is_paused and self.order == NOT_DRAINED

    def __repr__(self) -> str:
        identity = f" id={self.producer_id}/{self.epoch}#{self.base_sequence}" if self.has_sequence else ""
        return (
            f"<ProducerBatch {self.topic}-{self.partition} lane={self.lane} n={self.records.count}{identity}>"
        )
