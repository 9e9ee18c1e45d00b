"""Submission: the records of one topic that are sent together, and their outcomes.

It is the unit of the protocol: one SUBMIT with one sequence number of its stream. A future is (submission, index), so
an outcome creates no object per record unless callbacks wait for it. The callbacks of a whole outcome run in one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import partial
from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import Format, Outcome, OutcomeKind, Persistence, Shape, SubmitFlag
from client_stub.errors import FORKED_TEXT, DeliveryFailed, ForkedProducer, SidecarError, error_for
from client_stub.native.hot import (
    PartCore,
    RecordPacker,
    RecordsOutcome,
    SubmissionCore,
    mask_of_indexes,
    run_callbacks,
)
from client_stub.outbox.callback_log import CallbackLog
from client_stub.record_metadata import RecordMetadata
from client_stub.system.log import log

if TYPE_CHECKING:
    from client_stub.outbox.waiters import Waiters

_MSGPACK: Final = Format.MSGPACK
_FAILED: Final = OutcomeKind.FAILED
_RANGE: Final = Shape.RANGE
_COUNT: Final = Shape.COUNT
WANT_INDEXES: Final = int(SubmitFlag.WANT_INDEXES)
"""Cached: reading an enum member through its class costs as much as a call, and these are used for each outcome."""
_NOWHERE: Final = Outcome(
    kind=_FAILED,
    persistence=0,
    shape=_RANGE,
    number=0,
    stream=0,
    code=0,
    seq=0,
    partition=-1,
    first_index=0,
    count=0,
    base_offset=-1,
    append_time_ms=-1,
    indexes=b"",
    text="",
)
"""An outcome of records that this process fails: they have no position in the log."""
WHOLE: Final = -1
"""Used as a record's index: all records of the submission."""


class BulkPart(PartCore):
    """The records of one send_many() or send_arrow() call in one submission, which may have records of other calls."""

    __slots__ = ("watched",)

    def __init__(self) -> None:
        super().__init__()
        self.watched = False
        """Whether the caller asks for its error; otherwise flush() reports it."""

    @property
    def is_over(self) -> bool:
        """Whether every record has its outcome."""
        return self.submission.completed

    def failures(self) -> tuple[DeliveryFailed | None, int]:
        """(first error, number of failed records) so far."""
        return self.submission.failures_of(self.first, self.count)

    def ranges(self) -> list[tuple[int, int, int]]:
        """(partition, first offset, records) of the records delivered so far, unordered; the offset is -1 when the
        broker gave none.
        """
        return self.submission.ranges_of(self.first, self.count)

    def when_over(self, call: Callable[[], object]) -> None:
        """Run ``call`` once every record has its outcome: in the io thread, or at once if that is so already. Raises
        ForkedProducer.
        """
        self.submission.when_decided(WHOLE, call)


class Submission(SubmissionCore):
    """Callers fill it, and the io thread owns it once it is closed. Any thread may call ``find``."""

    __slots__ = (
        "_counted",
        "_done_mask",
        "base_timestamp_ms",
        "failed_count",
        "first_error",
        "flags",
        "format",
        "listeners",
        "payload",
        "queued_ms",
        "remaining",
        "sealed",
        "sent",
        "seq",
        "topic",
        "waiters",
        "was_accepted",
        "watched",
        "why_slow",
    )

    def __init__(
        self,
        waiters: Waiters,
        topic: str,
        packer: RecordPacker | None,
        free_bytes: int,
        base_timestamp_ms: int,
    ) -> None:
        super().__init__()
        self.waiters = waiters
        self.outbox = waiters.outbox
        self.transaction = waiters.outbox.transaction
        self.topic = topic
        self.parts = []
        self.packer = packer
        self.free_bytes = free_bytes
        self.base_timestamp_ms = base_timestamp_ms
        self.format: int = _MSGPACK
        self.flags = 0
        self.seq = 0
        self.queued_ms = 0.0
        """When the io thread took it over (monotonic clock, ms)."""
        self.sealed = False
        self.sent = False
        """Whether it was written to a socket at least once, so that the daemon may have it."""
        self.remaining = 0
        self.first_error: DeliveryFailed | None = None
        self.failed_count = 0
        self.watched = False
        """Whether a caller has asked for the outcome of one of its records."""
        self.why_slow = ""
        """The reason that a warning has given for its wait."""
        self.outcomes = []
        self.payload: Sized | None = None
        """The frame to send, of a sealed submission that the daemon has not accepted yet. A view keeps its packer from
        being used again.
        """
        self._done_mask = 0
        self._counted: dict[int, tuple[int, bool, int, int]] = {}
        """Outcomes given by count alone: first index → (records, whether they failed, partition, first offset). See
        ``_count``.
        """
        self.was_accepted = False
        """Whether the daemon has said that it has the records."""
        self.listeners: dict[int, list[list[Callable[[], object]]]] = {}
        """Index (or WHOLE) → lists of one call each. The thread that makes the call removes it from its list."""

    def seal(self, payload: Sized) -> None:
        """Close it: it takes no more records, and its payload has its final size."""
        self.is_closed = True
        self.remaining = self.count
        self.payload = payload
        self.payload_bytes = len(payload)
        self.sealed = True  # last: until then it counts neither as accepted nor as completed

    @property
    def is_accepted(self) -> bool:
        """Whether the daemon has accepted it, or it has its outcome already."""
        return self.completed or (self.sealed and self.payload is None)

    @property
    def completed(self) -> bool:
        return self.remaining <= 0 and self.sealed

    @property
    def undecided_count(self) -> int:
        return max(0, self.remaining) if self.sealed else self.count

    def failures_of(self, first: int, count: int) -> tuple[DeliveryFailed | None, int]:
        """(first error, number of failed records) of the ``count`` records from ``first`` on, so far."""
        if self.first_error is None or not self.flags & WANT_INDEXES:
            return self.first_error, self.failed_count  # without indexes the submission belongs to one call
        error, failed, left = None, 0, (1 << count) - 1
        for outcome in self.outcomes:
            hit = outcome.mask >> first & left
            left &= ~hit  # a record keeps its first outcome
            if hit and outcome.error is not None:
                error = error or outcome.error
                failed += hit.bit_count()
        return error, failed

    def ranges_of(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """(partition, first offset, records) of the delivered ones among the ``count`` records from ``first`` on."""
        ranges = [
            (partition, offset, records)
            for records, has_failed, partition, offset in list(self._counted.values())
            if not has_failed
        ]
        left = (1 << count) - 1
        for outcome in self.outcomes:
            hit = outcome.mask >> first & left
            left &= ~hit  # a record keeps its first outcome
            if hit and outcome.error is None:
                rank = outcome.rank(first + (hit & -hit).bit_length() - 1)
                offset = outcome.base_offset + rank if outcome.base_offset >= 0 else -1
                ranges.append((outcome.partition, offset, hit.bit_count()))
        return ranges

    def when_decided(self, index: int, call: Callable[[], object]) -> None:
        """Run ``call`` once the record has its outcome (WHOLE: all have): in the io thread, or at once if known. Any
        thread.

        No lock is needed: the caller notes the call and then looks for the outcome, and the io thread notes the
        outcome and then looks for calls. The thread that removes the call from its list makes it. Raises
        ForkedProducer.
        """
        if self.outbox.forked:
            raise ForkedProducer(FORKED_TEXT)
        if index != WHOLE:
            self.watched = True
        entry = [call]
        self.listeners.setdefault(index, []).append(entry)
        if self.completed if index == WHOLE else self.find(index) is not None:
            make_call(entry, self.waiters.callback_log)

    def call_listeners(self, outcome: RecordsOutcome | None) -> None:
        """Make the calls that wait for the records of ``outcome``, or with None for the whole submission. Io thread."""
        due = [WHOLE] if outcome is None else sorted(i for i in list(self.listeners) if outcome.rank(i) >= 0)
        for index in due:
            for entry in self.listeners.pop(index, ()):
                try:
                    make_call(entry, self.waiters.callback_log)
                except BaseException:
                    self._callback_failed("A done")

    def describe(self, index: int) -> str:
        """The ``repr`` of one record's Delivery."""
        found = self.find(index)
        if found is None:
            return f"<Delivery to {self.topic}: no outcome yet>"
        error, metadata = found
        if error is not None:
            return f"<Delivery to {self.topic}: failed, {error.name}>"
        assert metadata is not None
        return f"<Delivery to {self.topic}: partition {metadata.partition}, offset {metadata.offset}>"

    def unobserved_failures(self) -> tuple[DeliveryFailed | None, int]:
        """(error, count) of failed records that have no callback and whose caller did not ask; (None, 0) for none."""
        callbacks = self.callbacks
        if self.callback is not None or (callbacks is not None and None not in callbacks):
            return None, 0
        if self.watched:
            count = sum(part.failures()[1] for part in self.parts if not part.watched)
        else:
            count = self.failed_count - sum(part.failures()[1] for part in self.parts if part.watched)
        return (self.first_error, count) if count > 0 else (None, 0)

    def wait_for(
        self, index: int, timeout: float | None
    ) -> tuple[SidecarError | None, RecordMetadata | None]:
        """Wait at most ``timeout`` seconds for the result of ``find``. Raises TimeoutError and ForkedProducer."""
        if self.outbox.forked:
            raise ForkedProducer(FORKED_TEXT)
        self.watched = True
        found = self.find(index)
        if found is None:
            found = self.waiters.wait_until(partial(self.find, index), timeout, for_outcome=True)
        if found is None:
            raise self.no_outcome(timeout)
        return found

    def no_outcome(self, timeout: float | None) -> TimeoutError:
        """The TimeoutError of a caller that waited for one record. It may ask the daemon for the cause."""
        why = self.why_no_outcome(self.ask(timeout))
        return TimeoutError(f"The record for topic {self.topic} has no outcome after {timeout} s yet{why}.")

    def may_ask(self, timeout: float | None) -> bool:
        """Whether the daemon may know why it has no outcome, and the caller's timeout was long enough to ask."""
        return self.is_accepted and self.waiters.reasons.may_ask(timeout)

    def ask(self, timeout: float | None) -> str:
        """The daemon's answer about its topic, if it has one. The question may take some 100 ms."""
        return (
            self.waiters.reasons.why_no_topic(self.topic, self.partition_max) if self.may_ask(timeout) else ""
        )

    def why_no_outcome(self, said: str = "", *, of_many: bool = False) -> str:
        """Why it has no outcome, as the end of a sentence. ``said`` is the daemon's answer, if it was asked."""
        return self.waiters.reasons.why_no_outcome(
            self.topic, is_accepted=self.is_accepted, why_slow=self.why_slow, said=said, of_many=of_many
        )

    def apply(self, outcome: Outcome, error: DeliveryFailed | None = None) -> None:
        """Complete the records that ``outcome`` covers, except those completed before, and run their callbacks.

        ``error``: the one to complete them with, instead of one made from a failed outcome.
        """
        if error is None and outcome.kind == _FAILED:
            error = error_for(outcome.code, outcome.text, outcome.persistence)
        # The records as a mask over their indexes, or only their number if nobody asks for single ones.
        if outcome.shape == _COUNT and not self.flags & WANT_INDEXES:
            self._count(outcome, error)
            return
        mask = _mask_of(outcome)
        if self._counted:
            self._uncount(mask)
        repeated = mask & self._done_mask
        news = mask ^ repeated  # one operation only: each walks over all bits of a large mask
        if mask.bit_length() > self.count:
            news &= (1 << self.count) - 1
        if not news:
            return
        base_offset, append_time_ms = outcome.base_offset, outcome.append_time_ms
        if repeated and base_offset >= 0 and error is None:
            # Offsets count along the completed records, so a partial repeat cannot be cut.
            log.warning(
                "An outcome for topic %s repeats some of its records; they keep their first outcome.",
                self.topic,
            )
        # From here on any thread finds the outcome.
        self._done_mask |= news
        appended = append_time_ms >= 0
        applied = RecordsOutcome(
            mask,
            self.topic,
            outcome.partition,
            base_offset,
            append_time_ms if appended else self.base_timestamp_ms,
            None if appended else self.timestamps,
            error,
        )
        self.outcomes.append(applied)
        if error is not None:
            self._note(error, news.bit_count())
        try:
            if self.callbacks is not None or self.callback is not None:
                run_callbacks(self, applied, news, self._callback_failed)
            if self.listeners:
                self.call_listeners(applied)
        finally:
            # Last, because flush() returns when this is set; the callbacks have then run.
            self.remaining -= news.bit_count()

    def _count(self, outcome: Outcome, error: DeliveryFailed | None) -> None:
        """Complete ``outcome.count`` records, of which only the first index is known.

        They are the part of the submission that went into one batch, and the first record identifies it. A repeat
        after a crash names the same first record, whether it gives the part by count again or record by record.
        """
        first_index, count = outcome.first_index, outcome.count
        if first_index in self._counted or self._done_mask >> first_index & 1:
            return
        self._counted[first_index] = (count, error is not None, outcome.partition, outcome.base_offset)
        self.remaining -= count
        if error is not None:
            self._note(error, count)

    def _uncount(self, mask: int) -> None:
        """Switch to counting single records: an adopter reports the records of a failed batch by index, the first
        record of a part first.
        """
        for first_index in [first for first in self._counted if mask >> first & 1]:
            count, failed, _, _ = self._counted.pop(first_index)
            self.remaining += count
            if failed:
                self.failed_count -= count

    def fail(self, error: DeliveryFailed) -> None:
        """Complete every record that is still undecided with ``error``."""
        if self.completed:
            return
        if self.flags & WANT_INDEXES:
            self.apply(_NOWHERE._replace(count=self.count), error)
        else:
            self._note(error, self.remaining)
            self.remaining = 0

    def _callback_failed(self, what: str = "An on_delivery") -> None:
        """Handle the exception of a callback. Not even SystemExit may end the io thread, as no record would then get
        an outcome. Only a child that a callback has forked may end.
        """
        if self.outbox.forked:
            raise  # noqa: PLE0704  in the calling handler
        self.waiters.callback_log.failed(what)

    def _note(self, error: DeliveryFailed, count: int) -> None:
        self.failed_count += count
        if self.first_error is None:
            self.first_error = error
        if self.transaction is not None:
            self.transaction.fail(error)


def make_call(entry: list[Callable[[], object]], callback_log: CallbackLog) -> None:
    """Make the call in ``entry`` unless another thread does. An exception of the call is logged."""
    try:
        call = entry.pop()
    except IndexError:
        return
    try:
        call()
    except Exception:
        callback_log.failed("A done")


def _mask_of(outcome: Outcome) -> int:
    shape, first = outcome.shape, outcome.first_index
    if shape in (_RANGE, _COUNT):
        return ((1 << outcome.count) - 1) << first
    if shape == Shape.BITMAP:
        return int.from_bytes(outcome.indexes, "little") << first
    return mask_of_indexes(outcome.indexes[: 2 * outcome.count])


def lost_error(text: str, *, maybe: bool) -> DeliveryFailed:
    """The error when the daemon, or its record of this client, is gone. ``maybe``: the records may be in the log;
    otherwise they are not.
    """
    from client_stub.contract.wire import LocalCode

    persistence = Persistence.POSSIBLY_PERSISTED if maybe else Persistence.NOT_PERSISTED
    return error_for(LocalCode.DISCONNECTED, text, persistence)
