"""FakeEngine: the Engine of the fakes. Its daemon is in memory, and it has no thread and no socket."""

from __future__ import annotations

from typing import Any, Final, Self

from client_stub.engine.engine import Engine
from client_stub.fakes.memory_daemon import MemoryDaemon
from client_stub.fakes.staging_memory_daemon import StagingMemoryDaemon
from client_stub.fakes.transactional_memory_daemon import TransactionalMemoryDaemon
from client_stub.io import process_end
from client_stub.io.io_thread import IoThread
from client_stub.io.last_record import LastCommitted, LastRecordQuestion
from client_stub.io.topic_lookup import PartitionInfo, TopicLookup
from client_stub.native.hot import Delivery, OnDelivery
from client_stub.outbox.capacity_wait import Full
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.submission import BulkPart
from client_stub.outbox.transactional_outbox import TransactionalOutbox
from client_stub.outbox.txn_call import TxnCall
from client_stub.records.arguments import checked_wait
from client_stub.records.packer import Headers

REQUEST_BYTES_MAX: Final = 1_048_576
"""The default of the daemon's max.request.size."""
BROKER: Final = 0
"""The id of the broker that leads all partitions."""


class FakeOutbox(Outbox):
    """An Outbox from which the daemon takes records before the call that queued them returns."""

    daemon: MemoryDaemon

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.attached_once = True
        self.connection_count = 1
        self.size_limits.request_bytes_max = REQUEST_BYTES_MAX

    def add(self, *record: Any) -> Delivery | Full:
        delivery = super().add(*record)
        self.daemon.work()
        return delivery

    def add_plain(self, *_: Any) -> None:
        """Leaves all to add_rows()."""

    def add_rows(self, *rows: Any, waits: bool = True) -> BulkPart | Full:
        part = super().add_rows(*rows, waits=waits)
        self.daemon.work()
        return part


class FakeTransactionalOutbox(FakeOutbox, TransactionalOutbox):
    """The same of a producer with a transactional id."""

    def post(self, call: TxnCall) -> None:
        super().post(call)
        self.daemon.work()


class KnownTopic(TopicLookup):
    """The look-up of a topic, which has its answer."""

    def __init__(self, topic: str, partitions: int) -> None:
        super().__init__("", topic, 0.0, 0.0)
        self._known = tuple(
            PartitionInfo(topic, partition, BROKER, (BROKER,), (BROKER,), ())
            for partition in range(partitions)
        )

    def step(self, now_ms: float) -> tuple[PartitionInfo, ...]:
        return self._known


class KnownRecord(LastRecordQuestion):
    """The question for the last record of a key, which has its answer."""

    def __init__(self, found: LastCommitted) -> None:
        super().__init__("", "", b"", 0.0, 0.0, name="", token=None, creates=False)
        self._found = found

    def step(self, now_ms: float) -> LastCommitted:
        return self._found


class FakeEngine(Engine):
    """An Engine with the daemon of its outbox. ``run_dir`` is only checked."""

    outbox: FakeOutbox
    _outbox_kind = FakeOutbox
    _transactional_outbox_kind = FakeTransactionalOutbox

    def __init__(self, run_dir: Any = None, *arguments: Any, **settings: Any) -> None:
        super().__init__("/nobody" if run_dir is None else run_dir, *arguments, **settings)
        # A forked child has a copy of all that there is, and the end of the process waits for nothing.
        process_end.leave(self)

    def staging_twin(self, transactional_id: str) -> Self:
        twin = super().staging_twin(transactional_id)
        daemon = twin.daemon
        assert isinstance(daemon, StagingMemoryDaemon)
        daemon.follow(self.daemon)
        return twin

    def _new_outbox(self) -> Outbox:
        outbox = super()._new_outbox()
        assert isinstance(outbox, FakeOutbox)
        if not isinstance(outbox, FakeTransactionalOutbox):
            outbox.daemon = MemoryDaemon(outbox)
        elif self._stages:
            outbox.daemon = StagingMemoryDaemon(outbox, self.transactional_id)
        else:
            outbox.daemon = TransactionalMemoryDaemon(outbox, self.transactional_id)
        return outbox

    @property
    def daemon(self) -> MemoryDaemon:
        return self.outbox.daemon

    def try_send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Delivery | Full:
        """Without the compiled way, which would not tell the daemon."""
        return self.send(topic, value, key, headers, partition, timestamp_ms, on_delivery, waits=False)

    def lookup(self, topic: str, timeout: float | None) -> TopicLookup:
        super().lookup(topic, timeout)  # checks the arguments
        return KnownTopic(topic, self.daemon.partitions)

    def last_record(
        self, topic: str, key: bytes, timeout: float | None, *, creates: bool
    ) -> LastRecordQuestion:
        super().last_record(topic, key, timeout, creates=creates)  # checks the arguments
        return KnownRecord(self.daemon.last_committed(topic, key))

    def patience(self, timeout: float | None) -> float | None:
        """The timeout of a flush(): none while outcomes are held, as nothing would come."""
        timeout = checked_wait(timeout)
        return 0 if self.daemon.is_held else timeout

    def flush(self, timeout: float | None = None, until: str = "delivered") -> int:
        return super().flush(self.patience(timeout), until)

    def close(self, timeout: float | None = None, occasion: str = "") -> None:
        self.daemon.cancels = timeout == 0
        super().close(timeout, occasion)

    def begin_close(self) -> IoThread | None:
        io = super().begin_close()
        if io is not None and not self.daemon.cancels:
            self.daemon.release()
        return io

    def _new_io(self, outbox: Outbox) -> Any:
        return self.daemon
