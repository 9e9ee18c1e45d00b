"""Engine: what every front of the stub is built on: the outbox, the io thread that empties it, and their life.

A front checks and converts arguments and hands out futures; all else is here. Thread-safe and fork-safe. No thread or
socket exists before the first record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Never, Self

from client_stub.contract.wire import PARTITIONER_SHIFT, PARTITIONERS, SubmitFlag
from client_stub.engine.flush_wait import FlushWait
from client_stub.engine.stage_life import STAGE_FORKED, StageLife
from client_stub.engine.staging_clients import StagingClients
from client_stub.engine.transactions import (
    CLOSED,
    FORKED,
    TIMEOUT_MS,
    TIMEOUT_MS_MAX,
    Transactions,
    without_id,
)
from client_stub.errors import ProducerClosed, SidecarError, TransactionStateError
from client_stub.io import process_end
from client_stub.io.daemon_address import control_path, hello_flags, keys_for

# Imported with the package, so that a parent that preloads it pays only once for all its forked children.
from client_stub.io.io_thread import IoThread
from client_stub.io.last_record import LastRecordQuestion, check_key
from client_stub.io.process_end import LeavingThread
from client_stub.io.topic_lookup import TopicLookup
from client_stub.io.topic_question import TopicQuestion, why_no_topic
from client_stub.native.hot import EngineCore
from client_stub.outbox.capacity_wait import FULL, Full
from client_stub.outbox.failures import OnError
from client_stub.outbox.outbox import CONNECT_TIMEOUT_MS, Outbox
from client_stub.outbox.stats import ProducerStats, stats_of
from client_stub.outbox.transactional_outbox import TransactionalOutbox
from client_stub.records.arguments import (
    check_callable,
    check_name,
    check_on_delivery,
    check_token,
    check_topic,
    check_transactional_id,
    check_until,
    checked_timeout,
    checked_wait,
    milliseconds,
    script_name,
)
from client_stub.records.habits import check_run_dir, unknown_argument
from client_stub.records.packer import LARGE_BYTES, PLAIN_OVERHEAD_BYTES, Headers
from client_stub.records.record_fields import full_record
from client_stub.session.client_identity import NOTHING, ClientIdentity
from client_stub.session.session import Session
from client_stub.session.tracing import Trace, TracedSession, Tracer
from client_stub.system.log import log
from client_stub.system.missing_resources import check_interpreter, start_failed
from client_stub.system.originals import get_ident, monotonic

if TYPE_CHECKING:
    from client_stub.native.hot import Delivery, OnDelivery, OpenStream
    from client_stub.outbox.txn_call import TxnCall
    from client_stub.records.size_limits import SizeLimits

MAX_BLOCK_MS: Final = 60_000.0
DELIVERY_TIMEOUT_MS: Final = 120_000.0
ERROR_CLOSE_S: Final = 5.0
"""How long a ``with`` block waits for outcomes after an exception, which includes Ctrl-C and cancellation."""
JOIN_S: Final = 5.0
_LEFT_OPEN: Final = "The transaction that was open at close() has not ended: %s"


class Engine(EngineCore):
    """One producer without a face. Takes the arguments of Producer, but for its serializers, and checks them.

    Raises TypeError for any other argument, in the name of ``front``.
    """

    _outbox_kind: type[Outbox] = Outbox
    _transactional_outbox_kind: type[TransactionalOutbox] = TransactionalOutbox

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        client_name: str | None = None,
        *,
        token: str | None = None,
        max_block_ms: float = MAX_BLOCK_MS,
        connect_timeout_ms: float = CONNECT_TIMEOUT_MS,
        delivery_timeout_ms: float = DELIVERY_TIMEOUT_MS,
        on_error: OnError | None = None,
        curve_key_file: str | os.PathLike[str] | None = None,
        trace: Trace | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: float = TIMEOUT_MS,
        stages: bool = False,
        front: str = "Producer",
        **others: Never,
    ) -> None:
        """``stages``: its records are those of stages for the transactional id."""
        if others:
            raise TypeError(unknown_argument(front, next(iter(others))))
        self.max_block_ms = milliseconds("max_block_ms", max_block_ms)
        self._connect_timeout_ms = milliseconds("connect_timeout_ms", connect_timeout_ms)
        self._delivery_timeout_ms = milliseconds(
            "delivery_timeout_ms", delivery_timeout_ms, may_be_zero=False
        )
        if client_name is not None:
            check_name(client_name)
        if token is not None:
            check_token(token)
        if on_error is not None:
            check_callable("on_error", on_error, "on_error(error, topic, count)")
        if trace is not None:
            check_callable("trace", trace, "trace(moment, info)")
        check_run_dir(run_dir)
        self.path = control_path(run_dir)
        self._curve_keys = keys_for(self.path, curve_key_file)
        self.client_name = client_name or script_name()
        self._token = token
        self._on_error = on_error
        self._trace = trace
        self._asked: Mapping[str, str] = NOTHING
        self._partitioning = 0
        self.was_interrupted = False
        """An exception such as Ctrl-C has ended a close(), so the process does not wait for it again at its end."""
        self._fork_generation = 0
        self.streams: dict[str, OpenStream] = {}
        self._front = front
        self._twin_settings: dict[str, Any] = {
            "run_dir": run_dir,
            "client_name": client_name,
            "token": token,
            "max_block_ms": max_block_ms,
            "connect_timeout_ms": connect_timeout_ms,
            "delivery_timeout_ms": delivery_timeout_ms,
            "curve_key_file": curve_key_file,
            "trace": trace,
            "front": front,
        }
        self._stages = stages
        self._staging: StagingClients[Self] = StagingClients()
        self._transactional: tuple[str, int] | None = None
        if transactional_id is not None:
            check_transactional_id(transactional_id)
            timeout_ms = milliseconds("transaction_timeout_ms", transaction_timeout_ms, may_be_zero=False)
            if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
                raise ValueError(
                    f"transaction_timeout_ms must be from 1 to {TIMEOUT_MS_MAX}, not {transaction_timeout_ms}."
                )
            self._transactional = transactional_id, int(timeout_ms)
        self.outbox = self._new_outbox()
        """That of this process: a forked child gets its own."""
        self._transactions: Transactions | None = None
        if isinstance(self.outbox, TransactionalOutbox) and not stages:
            self._transactions = Transactions(
                self.outbox, partial(self._start, self.outbox), self.max_block_ms
            )
        process_end.enter(self)

    # --- before the first record: what a program written for another client asks for -----------------------

    def ask_for(self, asked: Mapping[str, str]) -> None:
        """Be refused by a daemon of another cluster than these ``bootstrap.servers``, or with weaker ``acks``."""
        self._asked = asked

    def partition_by(self, partitioner: str) -> None:
        """Place records by this one of PARTITIONERS, and fail those for a partition that does not exist as soon as the
        topic is known, as other clients do.
        """
        self._partitioning = (
            PARTITIONERS.index(partitioner) + 1 << PARTITIONER_SHIFT | SubmitFlag.FIXED_PARTITIONS
        )
        self.outbox.partitioning = self._partitioning

    # --- records (EngineCore has the compiled try_send() and stream_of()) ------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
        waits: bool = True,
    ) -> Delivery | Full:
        """As Producer.send(), for any record. Without room it waits or, unless ``waits``, returns FULL."""
        if on_delivery is not None and not callable(on_delivery):
            check_on_delivery(on_delivery)
        stream = self.stream_of(topic)
        if (
            headers is None
            and partition is None
            and timestamp_ms is None
            and (value.__class__ is bytes or value is None)
            and (key.__class__ is bytes or key is None)
        ):
            record: tuple[Any, ...] = (key, value)
            size = PLAIN_OVERHEAD_BYTES
            if value is not None:
                size += len(value)
            if key is not None:
                size += len(key)
        else:
            record, size = full_record(key, value, headers, partition, timestamp_ms)
        outbox = stream.outbox
        if size > LARGE_BYTES:
            if not (waits or outbox.knows_limits(stream)):
                return FULL
            outbox.size_limits.check(topic, record)
        return outbox.add(stream, record, size, on_delivery, timestamp_ms, waits)

    def open_stream(self, topic: str) -> OpenStream:
        """The stream of a topic that has none. Raises the errors of a wrong topic and of a start that failed."""
        check_topic(topic)
        # In this order: a stream that exists always has an io thread that sends it.
        outbox = self.outbox
        if not outbox.closed:
            self._start(outbox)
        return outbox.open_stream(topic)

    @property
    def takes_records(self) -> bool:
        """As Producer.takes_records."""
        outbox, io = self.outbox, self.io
        if (
            io is not None and io.is_refused
        ):  # first: the io thread passes it on to the outbox, then forgets it
            return False
        return (
            not outbox.closed
            and outbox.fatal is None
            and all(stream.refusal is None for stream in list(self.streams.values()))
        )

    def stats(self) -> ProducerStats:
        """As Producer.stats()."""
        return stats_of(self.outbox)

    def limits_of(self, topic: str) -> SizeLimits:
        """The daemon's limits. Until they are known it starts the io thread, as a record of ``topic`` would."""
        limits = self.outbox.size_limits
        if limits.request_bytes_max is None:
            self.stream_of(topic)
        return limits

    # --- questions to the daemon ----------------------------------------------------------------------------

    def lookup(self, topic: str, timeout: float | None) -> TopicLookup:
        """Begin to ask for the partitions of ``topic``. Raises the errors of wrong arguments, and ProducerClosed."""
        check_topic(topic)
        timeout = checked_timeout(timeout)
        self.outbox.waiters.refuse_in_callback("partitions_for()")
        if self.outbox.closed:
            raise ProducerClosed("Cannot perform operation after producer has been closed.")
        timeout_ms = self.max_block_ms if timeout is None else timeout * 1e3
        return TopicLookup(self.path, topic, timeout_ms, monotonic() * 1e3, self._curve_keys, self._asked)

    def last_record(
        self, topic: str, key: bytes, timeout: float | None, *, creates: bool
    ) -> LastRecordQuestion:
        """Begin to ask for the last committed record of ``key``. Raises as ``lookup``."""
        check_topic(topic)
        check_key(key)
        timeout = checked_timeout(timeout)
        self.outbox.waiters.refuse_in_callback("last_committed()")
        if self.outbox.closed:
            raise ProducerClosed("Cannot perform operation after producer has been closed.")
        return LastRecordQuestion(
            self.path,
            topic,
            key,
            self.max_block_ms if timeout is None else timeout * 1e3,
            monotonic() * 1e3,
            self._curve_keys,
            name=self.client_name,
            token=self._token,
            creates=creates,
        )

    def question(self, topic: str, partition: int) -> TopicQuestion:
        """Begin to ask why records of ``topic`` wait."""
        return TopicQuestion(self.path, topic, partition, monotonic() * 1e3, self._curve_keys)

    # --- transactions ---------------------------------------------------------------------------------------

    @property
    def transactions(self) -> Transactions:
        """Raises TransactionStateError for a producer without a transactional id."""
        if self._transactions is None:
            raise without_id(self._front)
        return self._transactions

    def open_stage(
        self, transactional_id: str, number: int, owner: str
    ) -> tuple[StagingClients[Self], Self, StageLife]:
        """Open a stage. Returns those to whom its client is given back, the client, and the stage. Raises TypeError,
        ValueError and ProducerClosed.
        """
        if self.outbox.closed:
            raise ProducerClosed(CLOSED)
        return self._staging, *self._staging.open(self.staging_twin, transactional_id, number, owner)

    @property
    def transactional_id(self) -> str:
        """Raises TransactionStateError for a producer without one."""
        if self._transactional is None:
            raise without_id(self._front)
        return self._transactional[0]

    def staging_twin(self, transactional_id: str) -> Self:
        """An engine with the same settings whose records are those of stages for this transactional id."""
        return type(self)(**self._twin_settings, transactional_id=transactional_id, stages=True)

    # --- waiting and the end --------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None, until: str = "delivered") -> int:
        """As Producer.flush(). An event loop waits for ``flush_wait`` itself and then calls ``flushed``."""
        timeout = checked_wait(timeout)
        check_until(until)
        outbox = self.outbox
        outbox.waiters.refuse_in_callback("flush()")
        wait = self.flush_wait(until)
        if wait is not None and not outbox.waiters.wait_until(
            wait.is_over, timeout, for_acceptance=wait.for_acceptance
        ):
            oldest = wait.oldest()
            raise wait.timeout_error(timeout, "" if oldest is None else oldest.ask(timeout))
        return self.flushed()

    def flush_wait(self, until: str) -> FlushWait | None:
        """End linger for all records. Returns what to wait for; None if nothing will happen any more."""
        wait = FlushWait(self.outbox, until)
        io = self.io
        return wait if io is not None and io.has_begun and not self.outbox.closed else None

    def flushed(self) -> int:
        """The end of a flush(): raise the errors that nobody watched, or return how many records failed."""
        self.outbox.failures.raise_unobserved()
        return self.outbox.failures.newly_failed()

    def close(self, timeout: float | None = None, occasion: str = "") -> None:
        """Close as Producer.close() does. ``occasion`` says what ended the work before its time; the program may then
        not look at its futures any more, so a line logs how many records are left.

        An event loop waits itself, between ``begin_close`` and ``end_close``.
        """
        timeout = checked_timeout(timeout)
        outbox = self.outbox
        in_callback = get_ident() == outbox.waiters.io_thread_id
        if not in_callback and (abort := self.abort_at_close(timeout)) is not None:
            transactions, call, timeout_s = abort
            try:
                outbox.waiters.wait_until(partial(transactions.is_over, call), timeout_s)
            finally:
                transactions.release()
            self.aborted_at_close(call, timeout_s)
        io = self.begin_close()
        if io is None:
            self._staging.join(JOIN_S)
            return
        done = False
        if not in_callback and timeout != 0 and io.has_begun:
            self.was_interrupted = True
            done = outbox.waiters.wait_until(FlushWait(outbox).is_over, timeout)
            self.was_interrupted = False
        if not done and occasion:
            io.log_left(occasion)
        io.request_close(cancel=not done)
        io.join(JOIN_S)
        self.end_close()
        self._staging.join(JOIN_S)
        if done:
            outbox.failures.raise_unobserved()

    def abort_at_close(self, timeout: float | None) -> tuple[Transactions, TxnCall, float] | None:
        """Begin to abort the transaction that is open at a close(), or wait for the end that was asked for, as Kafka's
        producer does. Returns what to wait for, and how many seconds; None if nothing is open. The daemon aborts it as
        well, once its client has left.
        """
        transactions = self._transactions
        if transactions is None or timeout == 0 or self.outbox.closed:
            return None
        timeout_s = transactions.timeout_s(timeout)
        asked = transactions.unanswered_end
        if asked is not None:
            return transactions, asked, timeout_s
        if not transactions.is_open:
            return None
        try:
            return transactions, transactions.abort(), timeout_s
        except SidecarError as error:
            log.warning(_LEFT_OPEN, error)
            return None

    def aborted_at_close(self, call: TxnCall, timeout_s: float) -> None:
        """Log an end of a transaction at a close() that has failed."""
        try:
            self.transactions.conclude(call, timeout_s)
        except SidecarError as error:
            log.warning(_LEFT_OPEN, error)

    def begin_close(self) -> IoThread | None:
        """Stop taking records. Returns the io thread that has to end, or None.

        A close that an exception ended is done again. A second close from a callback leaves the work to the first.
        """
        self._staging.begin_close()
        is_first = self.outbox.close()
        if self.io is None:
            self.end_close()
        elif not is_first and get_ident() == self.outbox.waiters.io_thread_id:
            return None
        return self.io

    def end_close(self) -> None:
        """Forget the io thread, which ends."""
        self.outbox.io.clear()
        process_end.leave(self)

    def __del__(self, leave_alone: Callable[[LeavingThread], None] = process_end.leave_alone) -> None:
        # Dropped without close(): the io thread delivers its records and then ends.
        io = self.io if hasattr(self, "outbox") else None
        if io is not None:
            leave_alone(io)

    def forked_child(self) -> None:
        """In a forked child: begin as a new client. The parent keeps its records."""
        inherited = self.outbox
        process_end.inherited.append(inherited)
        inherited.forked = True
        inherited.set_waker(None)
        for io in inherited.io.values():
            io.forked()
        self._fork_generation += 1
        inherited.streams = self.streams.copy()
        self.streams.clear()
        self.outbox = self._new_outbox()
        self.outbox.closed = inherited.closed
        if isinstance(self.outbox, TransactionalOutbox):
            self.outbox.leave(TransactionStateError(STAGE_FORKED if self._stages else FORKED, fatal=True))
        inherited.waiters.notify()  # wake a call that waited there when a signal handler forked

    # --- the io thread --------------------------------------------------------------------------------------

    @property
    def io(self) -> IoThread | None:
        """The io thread of this process, once the first record has made it."""
        return self.outbox.io.get("thread")

    def start(self) -> None:
        """Start the io thread unless it runs."""
        self._start(self.outbox)

    def _start(self, outbox: Outbox) -> None:
        io = outbox.io.get("thread")
        if io is None:
            try:
                # Of several threads that arrive at once, the first one's thread is used.
                io = outbox.io.setdefault("thread", self._new_io(outbox))
            except (OSError, MemoryError) as error:
                raise start_failed(error) from error
        if not io.has_begun:
            check_interpreter()
            try:
                io.start()
            except (RuntimeError, MemoryError) as error:
                raise start_failed(error) from error
        process_end.watch()
        if outbox.closed:
            io.request_close(cancel=False)  # closed meanwhile by a thread that found no io thread to end

    def _new_io(self, outbox: Outbox) -> IoThread:
        identity = ClientIdentity(
            name=self.client_name,
            pid=os.getpid(),
            fork_generation=self._fork_generation,
            token=self._token,
            hello_flags=hello_flags(self.path),
            asked=self._asked,
            transactional_id=None if self._transactional is None else self._transactional[0],
        )
        make_session = Session if self._trace is None else partial(TracedSession, Tracer(self._trace))
        session = make_session(
            identity,
            delivery_timeout_ms=self._delivery_timeout_ms,
            partitioning=self._partitioning,
            transactional=None if self._stages else self._transactional,
            stages=self._stages,
        )
        return IoThread(outbox, session, self._curve_keys)

    def _new_outbox(self) -> Outbox:
        make_outbox = self._outbox_kind if self._transactional is None else self._transactional_outbox_kind
        outbox = make_outbox(
            max_block_ms=self.max_block_ms,
            connect_timeout_ms=self._connect_timeout_ms,
            path=self.path,
            on_error=self._on_error,
        )
        outbox.streams = self.streams
        outbox.partitioning = self._partitioning
        outbox.waiters.reasons.why_no_topic = partial(why_no_topic, self.path, curve_keys=self._curve_keys)
        return outbox
