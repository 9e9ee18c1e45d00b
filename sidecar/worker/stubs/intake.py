"""Intake: takes a SUBMIT frame and accepts its records, or says why not.

A submission is accepted only if it is the next of its stream and pages are free for it. Otherwise the stream gets a
message (RESEND, HOLD, HELLO_AGAIN) and the stub keeps the frame. Acceptance is atomic: one store of the chain's tail
makes the copy in the journal valid.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from client_stub.contract.wire import (
    STAGE_BIT,
    SUBMISSION_BYTES_MAX,
    SUBMISSION_RECORDS_MAX,
    Format,
    Kind,
    LocalCode,
    SubmitFlag,
)
from client_stub.zmtp.frames import HEADER_BYTES_MAX, MESSAGE_BYTES_MAX
from sidecar.common.condition import HoldCause
from sidecar.common.pauses import DRAINED_TEXT
from sidecar.common.sparse_log import SparseLog
from sidecar.common.wording import PLEASE_REPORT
from sidecar.kernel import held_bytes, records_from_columns
from sidecar.worker.streams.refusal import MalformedFrame, Refusal
from sidecar.worker.streams.session import ClientSession, StreamState
from sidecar.worker.stubs.staged_intake import StagedIntake

if TYPE_CHECKING:
    from sidecar.kernel import Chain, Entry, Histogram
    from sidecar.shm.buffer_pool import BufferPool
    from sidecar.shm.slots import Counters
    from sidecar.worker.host import Host
    from sidecar.worker.outcomes.settlement import Settlement
    from sidecar.worker.streams.client_limits import ClientLimits
    from sidecar.worker.streams.outboxes import Outboxes
    from sidecar.worker.streams.topic_queue import TopicQueue
    from sidecar.worker.stubs.express import Express
    from sidecar.worker.stubs.group_commit import GroupCommit
    from sidecar.worker.stubs.holds import Holds
    from sidecar.worker.stubs.openings import StreamOpenings
    from sidecar.worker.stubs.shares import Shares
    from sidecar.worker.topics.topics import Topics

log = logging.getLogger(__name__)

SUBMIT_FIELDS: Final = 8
"""Number of fields without the optional ACK at the end."""
_MSGPACK: Final = Format.MSGPACK
_ARROW: Final = Format.ARROW
_FORMATS: Final = (_MSGPACK, _ARROW)
_FLUSH: Final = int(SubmitFlag.FLUSH)
_KEPT_FLAGS: Final = 0xFF & ~_FLUSH
"""Cached: reading an enum member through its class costs as much as a call, and these are used for each submission."""
TIMESTAMP_MS_MAX: Final = 2**63 - 1
ERROR_HOLD_MS: Final = 1_000.0
"""Time in ms after which a stream that was stopped by an internal error tries again."""
_ENTRY_OVERHEAD_BYTES: Final = 256
"""Bytes of header, word and padding of an entry with one record, rounded up."""
_UNREADABLE: Final = b"\xc1"
"""In place of a record that was not accepted. msgpack never uses this byte, so readers recognise it."""


class Intake:
    """Accepts submissions for one worker. Belongs to the worker's loop."""

    def __init__(
        self,
        *,
        worker_epoch: int,
        shares: Shares,
        submission_sizes: Histogram,
        submission_bytes_max: int,
        counters: Counters,
        topics: Topics,
        settlement: Settlement,
        openings: StreamOpenings,
        holds: Holds,
        express: Express,
        outboxes: Outboxes,
        host: Host,
        limits: ClientLimits,
        clock_ahead_ms: float = 0.0,
    ) -> None:
        """``clock_ahead_ms``: milliseconds by which the slot's clock is ahead of the host's monotonic clock."""
        self.worker_epoch = worker_epoch
        self.draining = False
        self._takes_records = True
        self._shares = shares
        self._submission_sizes = submission_sizes
        self._submission_bytes_max = submission_bytes_max
        self._counters = counters
        self._topics = topics
        self._settlement = settlement
        self._outboxes = outboxes
        self._host = host
        self._limits = limits
        self._clock_ahead_ms = clock_ahead_ms
        self.staged = StagedIntake(shares, holds, counters, submission_sizes, clock_ahead_ms)
        """Takes submissions of stages."""
        self.commit: GroupCommit | None = None
        """Commits entries that must be on disk before they are accepted; None if the journal is enough."""
        self._appending: tuple[Chain, int] | None = None
        """Chain of the present submission, and its tail before."""
        self._failed_ms = 0.0
        self._sparse_log = SparseLog(log, lambda: self._failed_ms)
        self._openings = openings
        self._holds = holds
        self._express = express

    def submit(
        self,
        session: ClientSession,
        fields: list[Any],
        payload: Any,
        now_ms: float,
        skipped_bytes: int = 0,
        transaction: int = 0,
    ) -> bool:
        """Accept one SUBMIT, or answer why not. Raises MalformedFrame for a frame that no valid stub sends.

        True if it was accepted; then the FLUSH that it may carry has been carried out.

        ``skipped_bytes``: size of a payload that was too long to be kept, else 0. ``transaction``: the number of the
        client's transaction, or with :data:`STAGE_BIT` of its stage, 0 for none. Records that cannot be accepted fail
        with a sentence. An internal error fails these records only and does not cut off the client.
        """
        if len(fields) != SUBMIT_FIELDS:
            raise MalformedFrame(f"SUBMIT has {len(fields)} fields of {SUBMIT_FIELDS}")
        worker_epoch, stream_id, seq, topic, base_timestamp_ms, format_, flags, count = fields
        if not (
            type(stream_id) is int
            and type(seq) is int
            and type(base_timestamp_ms) is int
            and type(flags) is int
            and type(count) is int
        ):
            raise MalformedFrame("stream, seq, base timestamp, flags or count is not a whole number")
        if worker_epoch != self.worker_epoch:
            self._outboxes.send(session, [Kind.HELLO_AGAIN, self.worker_epoch])
            return False
        if (session.lane is None) is not (transaction == 0):
            if session.lane is None and transaction & STAGE_BIT:
                self._openings.refuse_without_lane(session, stream_id, seq)
                return False
            raise MalformedFrame(_wrong_transaction(session, transaction))
        stream = session.streams.get(stream_id)
        if stream is not None:
            if not self._is_next(stream, seq):
                return False
        elif not self._openings.may_open(session, stream_id, seq):
            return False
        if self.draining and not session.is_in_transaction(transaction):
            return False
        payload_bytes = skipped_bytes or len(payload)
        if not (
            0 < count <= SUBMISSION_RECORDS_MAX
            and count <= payload_bytes
            and format_ in _FORMATS
            and 0 <= base_timestamp_ms <= TIMESTAMP_MS_MAX
            and 0 <= flags <= 0xFF
        ):
            raise MalformedFrame(_what_is_wrong(count, format_, base_timestamp_ms, flags, payload_bytes))
        if stream is None:
            stream = self._openings.open(session, stream_id, topic, now_ms)
            if stream is None:
                self._holds.name_waits()
                return False
        self._appending = None
        refusal = stream.refusal
        if session.lane is not None:
            if (session.stages is None) is not (transaction < STAGE_BIT):
                raise MalformedFrame(
                    "a submission of a stage, or outside of one, of a client that does the other"
                )
            if session.stages is None:
                refusal = session.lane.refusal_of(session, transaction) or refusal
        if payload_bytes > self._submission_bytes_max and refusal is None:
            refusal = self._larger_than_allowed(payload_bytes)
        try:
            if transaction < STAGE_BIT:
                is_accepted = self._accept(stream, fields, payload, refusal, now_ms, transaction)
            else:
                self._appending = stream.topic_queue.chain, stream.topic_queue.chain.tail
                stage = transaction & ~STAGE_BIT
                is_accepted = self.staged.accept(stream, fields, payload, refusal, now_ms, stage)
        except Exception as error:
            is_accepted = self._not_accepted(stream, fields, error, now_ms, transaction)
        if is_accepted:
            session.accepted_bytes += payload_bytes
        return is_accepted

    def _is_next(self, stream: StreamState, seq: int) -> bool:
        """Whether this is the next submission of its stream, and the stream is not held. If not, its stub is answered
        where it needs to know more.
        """
        expected = stream.position + 1
        if seq < expected:
            stream.session.accepted_streams.add(stream)  # a repeat: report the position again
            return False
        if seq > expected:
            self._counters.inc("frames_resent_total")
            if stream.awaited != expected:
                stream.awaited = expected
                if not stream.held:
                    self._outboxes.send(stream.session, [Kind.RESEND, stream.stream, expected])
            return False
        if stream.hold_reason is not None:
            self._counters.inc("frames_resent_total")
            return False
        return True

    def _accept(
        self,
        stream: StreamState,
        fields: list[Any],
        payload: Any,
        refusal: Refusal | None,
        now_ms: float,
        transaction: int,
    ) -> bool:
        """Append a checked SUBMIT to the journal, or hold the stream: then False.

        With a ``refusal``, an entry without content represents the records, which fail.
        """
        _, _, seq, _, base_timestamp_ms, format_, flags, count = fields
        session, queue = stream.session, stream.topic_queue
        if not self._takes_records or (self.commit is not None and self.commit.refusal):
            self._hold_as_closed(stream, now_ms)
            return False
        stream.awaited = None
        has_rate = queue.rate is not None or session.rate is not None
        if has_rate and refusal is None:
            refusal = self._over_rate(stream, count, now_ms)
        is_long = stream.is_passing or queue.chain.page_count >= self._express.backlog_pages
        if is_long and refusal is None and queue.transaction is None:
            queue = self._express.queue_for(stream, len(payload), now_ms)
        if stream.hold_reason is not None:
            return False
        chain = queue.chain
        content, needed, refusal = self._content(chain, payload, format_, count, refusal)
        self._appending = chain, chain.tail
        if needed and not self._holds.link_pages(stream, queue, needed, now_ms):
            return False
        entry = chain.append(
            content,
            count=count,
            client_row=session.row.index,
            client_generation=session.row.generation,
            stream=stream.stream,
            seq=seq,
            base_timestamp_ms=base_timestamp_ms,
            format=_MSGPACK,
            flags=flags & _KEPT_FLAGS,
            txn_number=transaction,
            accepted_ms=now_ms + self._clock_ahead_ms,
        )
        if needed:
            self._shares.count(queue, now_ms)
        self._note_accepted(stream, queue, entry, content, now_ms)
        flushes = flags & _FLUSH != 0
        if refusal is not None:
            self._refuse(queue, entry, refusal, now_ms, flushes=flushes and stream.refusal is None)
            return True
        if has_rate:
            _charge(stream, count, len(content), now_ms)
        if not queue.is_express:
            stream.bulk_ordinal = entry.ordinal
        self._topics.on_entry(queue, entry, now_ms, flushes)
        return True

    def _content(
        self, chain: Chain, payload: Any, format_: Any, count: int, refusal: Refusal | None
    ) -> tuple[Any, int, Refusal | None]:
        """What the journal gets of a submission: (its bytes, the pages needed for it, the refusal if it fails).

        Columns are converted to rows here, once and in native code, so the journal has one format.
        """
        if refusal is None:
            rows = payload if format_ == _MSGPACK else records_from_columns(payload, count)
            needed = chain.pages_needed(count, len(rows))
            if needed <= self._holds.pages_max:
                return rows, needed, None
            refusal = self._larger_than_pool(len(rows))
        return _UNREADABLE * count, chain.pages_needed(count, count), refusal

    def _note_accepted(
        self, stream: StreamState, queue: TopicQueue, entry: Entry, payload: Any, now_ms: float
    ) -> None:
        """Note an entry that is in the journal: the stream's position, what its client holds, the counters."""
        session, count, payload_bytes = stream.session, entry.count, len(payload)
        if queue.chain.live_entries == 1:
            queue.last_settled_ms = now_ms  # it was empty, so its progress is measured from now
        session.unsettled_records += count
        session.unsettled_bytes += held_bytes(count, payload_bytes)
        stream.position = entry.seq
        session.row.store_position(stream.stream, entry.seq)
        # kill point: accept.position
        if self.commit is None or queue.transaction is not None:
            # Records of a transaction end with it at a crash of the host, so they are not written to the disk.
            stream.accepted = entry.seq
            session.accepted_streams.add(stream)
        else:
            # Make a copy: the socket's buffer is re-used before the group is on disk.
            self.commit.add(queue, stream, entry, bytes(payload))
        queue.last_used_ms = now_ms
        self._counters.add(
            {
                "submissions_total": 1,
                "records_accepted_total": count,
                "bytes_accepted_total": payload_bytes,
                "records_held": count,
            }
        )
        self._submission_sizes.observe(payload_bytes)
        # kill point: accept.counted

    def _refuse(
        self, queue: TopicQueue, entry: Entry, refusal: Refusal, now_ms: float, *, flushes: bool
    ) -> None:
        """Fail the records of an accepted entry. ``flushes``: earlier records of the topic no longer linger."""
        self._counters.inc("submissions_refused_total")
        self._settlement.refuse(queue, entry, refusal, now_ms)
        if flushes:
            self._topics.flush(queue, now_ms)

    def _over_rate(self, stream: StreamState, count: int, now_ms: float) -> Refusal | None:
        """Hold the stream while its topic or client is at its rate, or return the refusal if the client's rule
        discards.
        """
        queue, session = stream.topic_queue, stream.session
        over = None if queue.rate is None else queue.rate.refusal(now_ms)
        if over is None and session.rate is not None:
            over = session.rate.refusal(now_ms)
            if over is not None:
                refusal = self._limits.discard(stream, count, over[0])
                if refusal is not None:
                    return refusal
        if over is not None:
            self._holds.hold_until(stream, HoldCause.RATE, over, now_ms)
        return None

    def _larger_than_allowed(self, payload_bytes: int) -> Refusal:
        text = (
            f"A submission of {payload_bytes} bytes is more than the daemon takes ({self._submission_bytes_max}): "
            "raise max.request.size, or buffer.memory if it is small, or send a smaller record."
        )
        return Refusal(LocalCode.RECORD_TOO_LARGE, text)

    def _larger_than_pool(self, payload_bytes: int) -> Refusal:
        return Refusal(
            LocalCode.RECORD_TOO_LARGE,
            f"A submission of {payload_bytes} bytes does not fit into the buffer pool, of which a worker has "
            f"{self._holds.pages_max} pages at most: raise buffer.memory.",
        )

    def _not_accepted(
        self, stream: StreamState, fields: list[Any], error: Exception, now_ms: float, transaction: int
    ) -> bool:
        """Fail the records of a submission after an internal error. If that fails too, hold the stream for a while:
        then False.
        """
        self._counters.inc("accept_errors_total")
        self._failed_ms = now_ms
        self._sparse_log.warning(
            "submit",
            f"A submission for topic %s could not be accepted. {PLEASE_REPORT}",
            fields[3],
            exc_info=error,
        )
        if self._appending is not None:
            chain, tail = self._appending
            if chain.tail != tail:
                # The entry is in the journal, but the state in memory does not have it.
                self._host.give_up("a submission was accepted and not noted")
                return False
            # Its share was claimed, and the failed records may go into the topic's other chain.
            self._shares.count(self._topics.by_chain[chain.chain_id], now_ms)
        refusal = Refusal(LocalCode.ABORTED, "The daemon failed to accept the record; its log says why.")
        try:
            if transaction >= STAGE_BIT:
                return self.staged.accept(stream, fields, b"", refusal, now_ms, transaction & ~STAGE_BIT)
            return self._accept(stream, fields, b"", refusal, now_ms, transaction)
        except Exception as second:
            self._sparse_log.warning("fail", "Its records cannot be failed either.", exc_info=second)
            self._shares.count(stream.topic_queue, now_ms)
            over = "the daemon fails to accept it", now_ms + ERROR_HOLD_MS
            self._holds.hold_until(stream, HoldCause.ERROR, over, now_ms)
            return False

    def _hold_as_closed(self, stream: StreamState, now_ms: float) -> None:
        if not self._takes_records:
            self._holds.hold_closed(stream, HoldCause.PAUSED, DRAINED_TEXT, now_ms)
        elif self.commit is not None:
            self._holds.hold_closed(stream, HoldCause.DISK, self.commit.refusal, now_ms)

    def end_stream(self, session: ClientSession, stream_id: int, last_seq: int) -> None:
        """Give the number of a stream to the client's next topic: its stub has the outcome of each record up to
        ``last_seq`` and uses the number no more.

        A repeat finds nothing. A stream that is not where its stub has it keeps its number, and WELCOME names it again.
        """
        stream = session.streams.get(stream_id)
        if stream is None or stream.held or not last_seq == stream.position == stream.accepted:
            return
        self._holds.give_reserved(stream)
        session.accepted_streams.discard(stream)
        del session.streams[stream_id]
        session.row.end_stream(stream_id)

    def open_to_records(self, takes_records: bool) -> None:
        """Stop accepting records because an operator drains the daemon (streams are held), or accept them again."""
        self._takes_records = self.staged.takes_records = takes_records
        if takes_records:
            self._holds.open_again(HoldCause.PAUSED)

    def committed(self, streams: set[StreamState]) -> None:
        """Report streams whose entries are on disk to their stubs, and resume those that waited for the disk."""
        for stream in streams:
            stream.session.accepted_streams.add(stream)
            if stream.session.attached:
                self._outboxes.pending.add(stream.session)
        if self.commit is not None and not self.commit.refusal:
            self._holds.open_again(HoldCause.DISK)


def _charge(stream: StreamState, count: int, payload_bytes: int, now_ms: float) -> None:
    """Charge the rates. Records that fail at once are not charged: they use nothing of the topic's rate."""
    for rate in filter(None, (stream.topic_queue.rate, stream.session.rate)):
        rate.charge(count, payload_bytes, now_ms)


def _wrong_transaction(session: ClientSession, transaction: int) -> str:
    """Error text for a SUBMIT of a client whose records should be in transactions, or should not."""
    if session.lane is None:
        return f"transaction {transaction!r} of a client that has initialized no transactional id"
    return "a submission outside of a transaction, of a client that has initialized a transactional id"


def _what_is_wrong(count: int, format_: Any, base_timestamp_ms: int, flags: int, payload_bytes: int) -> str:
    """Error text for a SUBMIT with a field out of its bounds."""
    if not 0 < count <= SUBMISSION_RECORDS_MAX:
        return f"record count {count!r} is not between 1 and {SUBMISSION_RECORDS_MAX}"
    if count > payload_bytes:
        return f"{count} records do not fit into {payload_bytes} payload bytes"
    if format_ not in _FORMATS:
        return f"payload format {format_!r} is not known"
    if not 0 <= base_timestamp_ms <= TIMESTAMP_MS_MAX:
        return f"base timestamp {base_timestamp_ms!r} is negative or over 63 bits"
    return f"flags {flags!r} are not a byte"


def largest_submission(max_request_size: int, pool: BufferPool) -> int:
    """Largest payload of one SUBMIT: a record of max.request.size in any encoding, if the pool can hold it.

    msgpack takes up to twice as many bytes as Kafka for empty headers.
    """
    wanted = max(SUBMISSION_BYTES_MAX, 2 * max_request_size + HEADER_BYTES_MAX)
    return min(wanted, MESSAGE_BYTES_MAX - HEADER_BYTES_MAX, pool.entry_bytes_max - _ENTRY_OVERHEAD_BYTES)


def full_submission(pool: BufferPool) -> int:
    """Payload bytes at which a stub begins a new submission: a quarter of the pool, at most 1 MiB.

    A topic may hold half of the pool, and the smallest rows of columns take up to twice as much in the journal.
    """
    return min(SUBMISSION_BYTES_MAX, pool.entry_bytes_max // 4 - _ENTRY_OVERHEAD_BYTES)
