"""Producer: the public entry of the stub. Thread-safe and fork-safe; no thread or socket exists before the first send.

::

    with Producer() as producer:
        delivery = producer.send("orders", value=b"...", key=b"...")
        delivery.result(timeout=10)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Never, NoReturn, Self

from client_stub.contract.wire import PARTITIONER_SHIFT, PARTITIONERS, SubmitFlag
from client_stub.engine.flush_wait import FlushWait
from client_stub.engine.producer_core import CheckedSend
from client_stub.engine.rows_call import RowsCall
from client_stub.errors import ProducerClosed, SidecarError
from client_stub.io import process_end
from client_stub.io.daemon_address import control_path, hello_flags, keys_for

# Imported with the package, so that a parent that preloads it pays only once for all its forked children.
from client_stub.io.io_thread import IoThread
from client_stub.io.process_end import LeavingThread
from client_stub.io.topic_lookup import PartitionInfo, TopicLookup
from client_stub.io.topic_question import TopicQuestion, why_no_topic
from client_stub.native.hot import OnDelivery, OpenStream
from client_stub.outbox.delivery import BulkDelivery
from client_stub.outbox.failures import OnError
from client_stub.outbox.outbox import CONNECT_TIMEOUT_MS, Outbox
from client_stub.outbox.stats import ProducerStats, stats_of
from client_stub.records.arguments import (
    check_callable,
    check_name,
    check_on_delivery,
    check_token,
    check_topic,
    check_until,
    checked_timeout,
    checked_wait,
    list_of_rows,
    milliseconds,
    script_name,
)
from client_stub.records.habits import check_run_dir, no_pickle, unknown_argument, unknown_field, with_hints
from client_stub.records.serializers import Serializer, serializers_of
from client_stub.session.client_identity import NOTHING, ClientIdentity
from client_stub.session.session import Session
from client_stub.system.missing_resources import check_interpreter, start_failed
from client_stub.system.originals import get_ident, monotonic

if TYPE_CHECKING:
    import pyarrow

    from client_stub.engine.table_call import TableCall
    from client_stub.records.size_limits import SizeLimits

log = logging.getLogger("client_stub")

MAX_BLOCK_MS: Final = 60_000.0
DELIVERY_TIMEOUT_MS: Final = 120_000.0
ERROR_CLOSE_S: Final = 5.0
"""How long a ``with`` block waits for outcomes after an exception, which includes Ctrl-C and cancellation."""
JOIN_S: Final = 5.0


@with_hints
class Producer(CheckedSend):
    """Sends records to the kafka-sidecar daemon of this host. Thread-safe and fork-safe; nothing is started before a
    send.

    ::

        with Producer(client_name="billing") as producer:
            delivery = producer.send("orders", value=b"...", key=b"customer-7")
            print(delivery.result(timeout=10).offset)

    - run_dir: the daemon's directory, or ``tcp://host:port``; None: KAFKA_SIDECAR_RUN_DIR, else the default
    - client_name, token: an entry of the daemon's [clients] table; None: the name of the script, and no token
    - max_block_ms: how long a send may wait for room (Kafka's max.block.ms)
    - connect_timeout_ms: how long the first send waits for a daemon
    - delivery_timeout_ms: how long records wait for a daemon that went away
    - on_error(error, topic, count): called in the io thread for failed records that had no callback and whose future
      was not asked before; None: the logger ``client_stub`` warns of them
    - key_serializer, value_serializer: functions from an object to bytes, for send() and send_many(); None is passed
      on as Kafka's null without a call
    - curve_key_file: this client's keys for ``tcp://`` (docs/security.md); None: the file named by
      KAFKA_SIDECAR_CURVE_KEY_FILE

    acks, linger.ms, compression and all other settings of Kafka are the daemon's.

    Raises ValueError for a negative time, a name of more than 64 bytes, a run directory too long for a socket path,
    and a key file that cannot be used. Raises TypeError for a value of a wrong type and for any other argument.
    """

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
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        curve_key_file: str | os.PathLike[str] | None = None,
        **others: Never,
    ) -> None:
        if others:
            raise TypeError(unknown_argument("Producer", next(iter(others))))
        self._max_block_ms = milliseconds("max_block_ms", max_block_ms)
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
        check_run_dir(run_dir)
        self._path = control_path(run_dir)
        self._curve_keys = keys_for(self._path, curve_key_file)
        self._name = client_name or script_name()
        self._token = token
        self._asked: Mapping[str, str] = NOTHING
        """The ``bootstrap.servers`` and ``acks`` of a program that was written for another client. Its twin sets this
        before the first send; a daemon of another cluster, or with weaker acks, refuses the producer.
        """
        self._on_error = on_error
        self._serializers = serializers_of(key_serializer, value_serializer)
        self._was_interrupted = False
        """An exception such as Ctrl-C has ended a close(), so the process does not wait for it again at its end."""
        self._fork_generation = 0
        self._outbox = self._new_outbox()
        self._streams = self._outbox.streams if self._serializers is None else None
        process_end.enter(self)

    # --- sending (send() itself stands in producer_core.py and in _native.pyx) ---------------------------------

    _placing = 0

    def _place_by(self, partitioner: str) -> None:
        """For a twin, before the first send: place records by this one of PARTITIONERS, and fail those for a partition
        that does not exist as soon as the topic is known, as other clients do.
        """
        self._placing = PARTITIONERS.index(partitioner) + 1 << PARTITIONER_SHIFT | SubmitFlag.FIXED_PARTITIONS
        self._outbox.placing = self._placing

    def send_many(
        self,
        topic: str,
        records: Iterable[Sequence[Any]],
        on_delivery: OnDelivery | None = None,
        **others: Never,
    ) -> BulkDelivery:
        """Queue many records of one topic; each is (key, value[, headers[, partition[, timestamp_ms]]]).

        This is the fast way: one call in C packs a MiB of records. All types are checked before any record is queued.
        The ``result()`` of the returned future raises the first failure; if it is not asked, the next flush() or
        close() raises it.

        Raises as send() does. A call that gives up waiting for room in the middle has queued the earlier records. The
        error's text says how many, and its ``queued`` is their future.
        """
        if others:
            raise TypeError(
                unknown_field("send_many()", next(iter(others)), ("topic", "records", "on_delivery"))
            )
        if on_delivery is not None:  # saves all other calls a function call
            check_on_delivery(on_delivery)
        stream = self._stream_of(topic)
        if self._serializers is not None:
            records = self._serializers.rows(topic, records)
        rows = records if isinstance(records, list) else list_of_rows(records)
        if not rows:
            return BulkDelivery(())
        whole = stream.outbox.add_plain(stream, rows, on_delivery)
        if whole is not None:
            return BulkDelivery((whole,))
        return RowsCall(stream, rows, on_delivery).run()

    def send_arrow(self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch) -> BulkDelivery:
        """Queue the rows of an Arrow table, with the columns value, key, headers, partition and timestamp by name.

        No row is touched in Python, so serializers are not called. Raises TypeError, which names the column, for a
        wrong type. Raises ValueError without a value column, for two columns of one name, and for a header key or
        number that send() would refuse. Otherwise as send_many(). Needs pyarrow (``pip install
        kafka-sidecar[arrow]``).
        """
        return self._table_call(topic, table).run()

    @property
    def takes_records(self) -> bool:
        """False for good once the producer is closed; false while it, or one of its topics, is refused. A new producer
        may be admitted.
        """
        outbox, io = self._outbox, self._io
        if (
            io is not None and io.is_refused
        ):  # first: the io thread passes it on to the outbox, then forgets it
            return False
        return (
            not outbox.closed
            and outbox.fatal is None
            and all(stream.refusal is None for stream in list(outbox.streams.values()))
        )

    def partitions_for(self, topic: str, timeout: float | None = None) -> tuple[PartitionInfo, ...]:
        """The topic's partitions as the daemon knows them (Kafka's ``partitionsFor``). Opens no stream.

        A known topic is answered at once. Any other is looked up for ``timeout`` seconds (None: max_block_ms); a
        cluster that creates topics on first use creates it. Raises MetadataTimeout, TopicAuthorizationFailed,
        InvalidTopic, AuthenticationFailed, DaemonUnreachable, DaemonRefused, ProducerClosed, and SidecarError in a
        callback, as it waits. Thread-safe.
        """
        return self._lookup(topic, timeout).wait()

    def _lookup(self, topic: str, timeout: float | None) -> TopicLookup:
        check_topic(topic)
        timeout = checked_timeout(timeout)
        self._outbox.waiters.refuse_in_callback("partitions_for()")
        if self._outbox.closed:
            raise ProducerClosed("Cannot perform operation after producer has been closed.")
        timeout_ms = self._max_block_ms if timeout is None else timeout * 1e3
        return TopicLookup(self._path, topic, timeout_ms, monotonic() * 1e3, self._curve_keys, self._asked)

    def _question(self, topic: str, partition: int, now_ms: float) -> TopicQuestion:
        return TopicQuestion(self._path, topic, partition, now_ms, self._curve_keys)

    def stats(self) -> ProducerStats:
        """Counts of the records that this producer has sent in this process, and of their outcomes. Cheap;
        thread-safe.
        """
        return stats_of(self._outbox)

    # --- waiting ------------------------------------------------------------------------------------

    def flush(
        self, timeout: float | None = None, *, until: Literal["delivered", "accepted"] = "delivered"
    ) -> int:
        """Wait until every record sent before this call has an outcome; ends linger for them.

        Returns how many records have failed since the last flush(), including those whose error the caller already
        has.

        ``until="accepted"`` waits only until the daemon has accepted each. Accepted records survive a crash of this
        process and of the daemon, and with pool.sync = accept that of the host, too. Raises ValueError for another
        value, TimeoutError after ``timeout`` seconds, and the first error of a send_many() or send_arrow() whose
        future was not asked. Errors of send() are reported only by their futures and callbacks.
        """
        timeout = checked_wait(timeout)
        check_until(until)
        outbox = self._outbox
        outbox.waiters.refuse_in_callback("flush()")
        wait = FlushWait(outbox, until)
        is_alive = self._io is not None and self._io.has_begun and not outbox.closed
        if is_alive and not outbox.waiters.wait_until(
            wait.is_over, timeout, for_acceptance=wait.for_acceptance
        ):
            oldest = wait.oldest()
            raise wait.timeout_error(timeout, "" if oldest is None else oldest.ask(timeout))
        self._outbox.failures.raise_unobserved()
        return self._outbox.failures.newly_failed()

    def close(self, timeout: float | None = None) -> None:
        """Flush and close. After ``timeout`` seconds (0: at once) undecided records fail with DeliveryCancelled: never
        sent, or possibly persisted. A second close does nothing.

        Raises ValueError for a negative timeout, and unwatched errors as flush() does.
        """
        self._close(timeout)

    def _close(self, timeout: float | None, behind: str = "") -> None:
        """Close as close() does. ``behind`` says what ended the work before its time; the program may then not look at
        its futures any more, so a line logs how many records are left.
        """
        timeout = checked_timeout(timeout)
        outbox = self._outbox
        in_callback = get_ident() == outbox.waiters.io_thread_id
        io = self._begin_close()
        if io is None:
            return
        done = False
        if not in_callback and timeout != 0 and io.has_begun:
            self._was_interrupted = True
            done = outbox.waiters.wait_until(FlushWait(outbox).is_over, timeout)
            self._was_interrupted = False
        if not done and behind:
            io.log_left(behind)
        io.request_close(cancel=not done)
        io.join(JOIN_S)
        self._end_close()
        if done:
            outbox.failures.raise_unobserved()

    def _begin_close(self) -> IoThread | None:
        """Stop taking records. Returns the io thread that has to end, or None.

        A close that an exception ended is done again. A second close from a callback leaves the work to the first.
        """
        is_first = self._outbox.close()
        if self._io is None:
            self._end_close()
        elif not is_first and get_ident() == self._outbox.waiters.io_thread_id:
            return None
        return self._io

    @property
    def _io(self) -> IoThread | None:
        return self._outbox.io.get("thread")

    def _end_close(self) -> None:
        self._outbox.io.clear()
        process_end.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # After an exception do not wait for delivery.timeout.ms: see ERROR_CLOSE_S.
        try:
            self._close(ERROR_CLOSE_S, f"behind {kind.__name__ if kind else 'an exception'}")
        except SidecarError:
            log.exception("Records failed while the producer was closed behind another error.")

    def __del__(self, leave_alone: Callable[[LeavingThread], None] = process_end.leave_alone) -> None:
        # Dropped without close(): the io thread delivers its records and then ends.
        io = getattr(self, "_io", None)
        if io is not None:
            leave_alone(io)

    def __reduce__(self) -> NoReturn:
        raise no_pickle(type(self).__name__)

    def __repr__(self) -> str:
        return f"Producer(run_dir={os.path.dirname(self._path)!r}, client_name={self._name!r})"  # noqa: PTH120

    # --- inside -------------------------------------------------------------------------------------

    def _rows_call(self, topic: str, records: Iterable[Sequence[Any]]) -> RowsCall:
        stream = self._stream_of(topic)
        rows = list_of_rows(records)
        # A copy of the caller's list, which it may change before all rows have found room.
        return RowsCall(stream, rows.copy() if rows is records else rows)

    def _table_call(self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch) -> TableCall:
        try:
            from client_stub.engine.table_call import TableCall
        except OSError as error:  # its file cannot be opened
            raise start_failed(error) from error

        stream = self._stream_of(topic)
        return TableCall(stream, table)

    def _stream_of(self, topic: str) -> OpenStream:
        stream = self._outbox.streams.get(topic) if isinstance(topic, str) else None
        return stream or self._open_stream(topic)

    def _open_stream(self, topic: str) -> OpenStream:
        check_topic(topic)
        # In this order: a stream that exists always has an io thread that sends it.
        outbox = self._outbox
        if not outbox.closed:
            self._start(outbox)
        return outbox.open_stream(topic)

    def _start(self, outbox: Outbox) -> None:
        io = outbox.io.get("thread")
        if io is None:
            identity = ClientIdentity(
                name=self._name,
                pid=os.getpid(),
                fork_generation=self._fork_generation,
                token=self._token,
                hello_flags=hello_flags(self._path),
                asked=self._asked,
            )
            try:
                session = Session(
                    identity, delivery_timeout_ms=self._delivery_timeout_ms, placing=self._placing
                )
                # Of several threads that arrive at once, the first one's thread is used.
                io = outbox.io.setdefault("thread", IoThread(outbox, session, self._curve_keys))
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

    def _new_outbox(self) -> Outbox:
        outbox = Outbox(
            max_block_ms=self._max_block_ms,
            connect_timeout_ms=self._connect_timeout_ms,
            path=self._path,
            on_error=self._on_error,
        )
        outbox.placing = self._placing
        outbox.waiters.reasons.why_no_topic = partial(why_no_topic, self._path, curve_keys=self._curve_keys)
        return outbox

    def size_limit(self, topic: str) -> int:
        """The greatest size in bytes that no record may exceed: the daemon's max.request.size, or what one message
        takes if that is less.

        Waits for the daemon's first WELCOME, and raises as a send that waits for room.
        """
        return self._limits_for(topic).limit(topic)

    @property
    def known_size_limit(self) -> int | None:
        """As :meth:`size_limit`, None until the daemon has sent it."""
        return self._outbox.size_limits.known

    def check_size(self, topic: str, record: tuple[Any, ...]) -> None:
        """Raises RecordTooLarge for a checked record that exceeds max.request.size or does not fit into one message."""
        self._limits_for(topic).check(topic, record)

    def _limits_for(self, topic: str) -> SizeLimits:
        limits = self._outbox.size_limits
        if limits.known is None:
            self._stream_of(topic)  # which starts the io thread
        return limits

    def _forked_child(self) -> None:
        """In a forked child: begin as a new client. The parent keeps its records."""
        inherited = self._outbox
        process_end.inherited.append(inherited)
        inherited.forked = True
        inherited.set_waker(None)
        for io in inherited.io.values():
            io.forked()
        self._fork_generation += 1
        self._outbox = self._new_outbox()
        self._outbox.closed = inherited.closed
        self._streams = self._outbox.streams if self._serializers is None else None
        inherited.waiters.notify()  # wake a call that waited there when a signal handler forked
