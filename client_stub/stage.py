"""Stage: records that a transaction of another process may include; ``producer.stage()`` opens one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from client_stub.engine.arrow_call import table_call
from client_stub.engine.rows_call import RowsCall
from client_stub.engine.stage_core import EXIT_DROP_S, StageCore
from client_stub.errors import SidecarError
from client_stub.outbox.capacity_wait import FULL
from client_stub.records.arguments import list_of_rows
from client_stub.records.packer import Headers
from client_stub.system.log import log

if TYPE_CHECKING:
    import pyarrow


class Stage(StageCore):
    """Records of any topics that wait at the daemon, and of which nothing is sent to Kafka until the producer with the
    transactional id includes the stage's token. Thread-safe; not for forked children.

    ::

        with producer.stage("import", number=7) as stage:
            stage.send_many("orders", rows)
            return stage.seal()

    A ``with`` block that ends by an exception, or without seal(), drops the stage. So does the daemon when the process
    ends before seal().
    """

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Put one record into the stage. As Producer.send(), but without a future: a record is safe once seal() has
        returned, and has its offset once a transaction with this stage has committed.
        """
        self._enter()
        try:
            if self._serializers is not None:
                key, value = self._serializers.record(topic, key, value)
            engine = self._engine
            if engine.try_send(topic, value, key, headers, partition, timestamp_ms, None) is FULL:
                engine.send(topic, value, key, headers, partition, timestamp_ms, None)
        finally:
            self._inside.pop()

    def send_many(self, topic: str, records: Iterable[Sequence[Any]]) -> int:
        """Put many records of one topic into the stage, as Producer.send_many(). Returns how many."""
        self._enter()
        try:
            if self._serializers is not None:
                records = self._serializers.rows(topic, records)
            rows = list_of_rows(records)
            if rows:
                RowsCall(self._engine.stream_of(topic), rows).run()
            return len(rows)
        finally:
            self._inside.pop()

    def send_arrow(self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch) -> int:
        """Put the rows of an Arrow table into the stage, as Producer.send_arrow(). Returns how many."""
        self._enter()
        try:
            return table_call(self._engine, topic, table).run().count
        finally:
            self._inside.pop()

    def seal(self, timeout: float | None = None) -> bytes:
        """End the stage, wait until the daemon has all its records, and return its token for include().

        From then on it belongs to no process: it survives this one, and the daemon. Raises TransactionTimeout after
        ``timeout`` seconds (None: max_block_ms); the same call again waits for the same token. Raises an ``abortable``
        TransactionError if a record was refused: the stage is then lost as a whole.
        """
        life = self._life
        token: bytes = life.run(life.seal, timeout)
        self._give_back()
        return token

    def drop(self, timeout: float | None = None) -> None:
        """Forget the stage, sealed or not. One that was included stays so."""
        life = self._life
        life.run(life.drop, timeout)
        self._give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drops_at_exit(error):
            try:
                self.drop(EXIT_DROP_S)
            except SidecarError as failed:
                log.warning("%r was not dropped at the end of its block: %s", self, failed)
