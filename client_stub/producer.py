"""Producer: the public entry of the stub. Thread-safe and fork-safe; no thread or socket exists before the first send.

::

    with Producer() as producer:
        delivery = producer.send("orders", value=b"...", key=b"...")
        delivery.result(timeout=10)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, Self

from client_stub.engine.arrow_call import table_call
from client_stub.engine.engine import DELIVERY_TIMEOUT_MS, ERROR_CLOSE_S, MAX_BLOCK_MS, Engine
from client_stub.engine.rows_call import RowsCall
from client_stub.engine.transaction_calls import TransactionCalls
from client_stub.engine.transactions import TIMEOUT_MS
from client_stub.errors import SidecarError
from client_stub.io.last_record import LastCommitted
from client_stub.io.topic_lookup import PartitionInfo
from client_stub.native.hot import OnDelivery, ProducerCore
from client_stub.outbox.capacity_wait import Full
from client_stub.outbox.delivery import BulkDelivery, Delivery
from client_stub.outbox.failures import OnError
from client_stub.outbox.outbox import CONNECT_TIMEOUT_MS
from client_stub.outbox.stats import ProducerStats
from client_stub.records.arguments import check_on_delivery, list_of_rows
from client_stub.records.habits import no_pickle, unknown_field
from client_stub.records.serializers import Serializer, Serializers, serializers_of
from client_stub.session.tracing import Trace
from client_stub.stage import Stage

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger("client_stub")


class Producer(TransactionCalls, ProducerCore):
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
    - trace(moment, info): called in the io thread for the moments of records and of the connection
      (docs/stub-api.md)
    - transactional_id, transaction_timeout_ms: Kafka's transactional.id and transaction.timeout.ms; with an id, records
      are sent in transactions only (docs/transactions.md)

    acks, linger.ms, compression and all other settings of Kafka are the daemon's.

    Raises ValueError for a negative time, a name of more than 64 bytes, a run directory too long for a socket path,
    and a key file that cannot be used. Raises TypeError for a value of a wrong type and for any other argument.
    """

    _engine_kind: type[Engine] = Engine

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
        trace: Trace | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: float = TIMEOUT_MS,
        **others: Never,
    ) -> None:
        self._engine = self._engine_kind(
            run_dir,
            client_name,
            token=token,
            max_block_ms=max_block_ms,
            connect_timeout_ms=connect_timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            on_error=on_error,
            curve_key_file=curve_key_file,
            trace=trace,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            **others,
        )
        self._serializers = serializers_of(key_serializer, value_serializer)
        # send() is compiled: it takes a plain record into an open submission itself, and calls _send_slow for others.
        if self._serializers is None:
            self._streams = self._engine.streams
            self._send_slow = self._engine.send
        else:
            self._send_slow = partial(_send_serialized, self._engine, self._serializers)

    # --- sending (send() itself is in _native_submission.pxi) ------------------------------------------------

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
        stream = self._engine.stream_of(topic)
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
        return table_call(self._engine, topic, table).run()

    def stage(self, transactional_id: str, number: int, owner: str = "") -> Stage:
        """Open a stage for the producer with this transactional id, which may be another process: see Stage.

        ``number`` and ``owner`` are the caller's: ``drop_stages(up_to=number)`` goes by the first, and where the
        stages' share of the pool is short, sealed stages of other owners go first. Nothing is asked of the daemon
        before the first record. Raises TypeError and ValueError for wrong arguments, and ProducerClosed.
        """
        return Stage(*self._engine.open_stage(transactional_id, number, owner), self._serializers)

    @property
    def takes_records(self) -> bool:
        """False for good once the producer is closed; false while it, or one of its topics, is refused. A new producer
        may be admitted.
        """
        return self._engine.takes_records

    def partitions_for(self, topic: str, timeout: float | None = None) -> tuple[PartitionInfo, ...]:
        """The topic's partitions as the daemon knows them (Kafka's ``partitionsFor``). Opens no stream.

        A known topic is answered at once. Any other is looked up for ``timeout`` seconds (None: max_block_ms); a
        cluster that creates topics on first use creates it. Raises MetadataTimeout, TopicAuthorizationFailed,
        InvalidTopic, AuthenticationFailed, DaemonUnreachable, DaemonRefused, ProducerClosed, and SidecarError in a
        callback, as it waits. Thread-safe.
        """
        return self._engine.lookup(topic, timeout).wait()

    def last_committed(
        self, topic: str, key: bytes, timeout: float | None = None, *, creates: bool = False
    ) -> LastCommitted:
        """The last record of ``key`` in a compacted topic, as a consumer with read_committed would find it, and the
        key's partition. For a program that keeps in Kafka how far it has come. ``creates``: make the topic where it
        is missing.

        Asks the daemon for ``timeout`` seconds (None: max_block_ms). Raises DaemonRefused, which says what to do, for
        a topic that is not compacted, InvalidTopic for one that is missing, TopicAuthorizationFailed,
        DaemonUnreachable, and ProducerClosed. Thread-safe.
        """
        return self._engine.last_record(topic, key, timeout, creates=creates).wait()

    def stats(self) -> ProducerStats:
        """Counts of the records that this producer has sent in this process, and of their outcomes. Cheap;
        thread-safe.
        """
        return self._engine.stats()

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
        return self._engine.flush(timeout, until)

    def close(self, timeout: float | None = None) -> None:
        """Flush and close. After ``timeout`` seconds (0: at once) undecided records fail with DeliveryCancelled: never
        sent, or possibly persisted. A second close does nothing.

        Raises ValueError for a negative timeout, and unwatched errors as flush() does.
        """
        self._engine.close(timeout)

    def size_limit(self, topic: str) -> int:
        """The greatest size in bytes that no record may exceed: the daemon's max.request.size, or what one message
        takes if that is less.

        Waits for the daemon's first WELCOME, and raises as a send that waits for room.
        """
        return self._engine.limits_of(topic).limit(topic)

    @property
    def known_size_limit(self) -> int | None:
        """As :meth:`size_limit`, None until the daemon has sent it."""
        return self._engine.outbox.size_limits.known

    def check_size(self, topic: str, record: tuple[Any, ...]) -> None:
        """Raises RecordTooLarge for a checked record that exceeds max.request.size or does not fit into one message."""
        self._engine.limits_of(topic).check(topic, record)

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
            self._engine.close(ERROR_CLOSE_S, f"after {kind.__name__ if kind else 'an exception'}")
        except SidecarError:
            log.exception("Records failed while closing the producer after another error.")

    def __reduce__(self) -> NoReturn:
        raise no_pickle(type(self).__name__)

    def __repr__(self) -> str:
        return repr_of("Producer", self._engine)


def repr_of(kind: str, engine: Engine) -> str:
    """The ``repr`` of a front."""
    return f"{kind}(run_dir={os.path.dirname(engine.path)!r}, client_name={engine.client_name!r})"  # noqa: PTH120


def _send_serialized(
    engine: Engine, serializers: Serializers, topic: str, value: Any, key: Any, *others: Any
) -> Delivery | Full:
    key, value = serializers.record(topic, key, value)
    return engine.send(topic, value, key, *others)
