"""FakeProducer: a Producer for an application's tests; ``client_stub.testing`` shows how to use it."""

from __future__ import annotations

import os
from typing import Any

from client_stub.fakes.fake_engine import FakeEngine
from client_stub.fakes.memory_daemon import FailWith, FakeRecord
from client_stub.producer import Producer
from client_stub.records.arguments import check_callable, check_count


class FakeProducer(Producer):
    """The real Producer over a daemon in memory that delivers at once. Thread-safe.

    It can replace the class Producer, as it accepts all its arguments. ``on_error`` is called for failed records
    without a callback; the names of daemon and client, and the times, have no effect.

    - ``records``: all records that were sent, in order
    - ``fail_with(record)``: returns the error of a record that should fail, or None; it can be set at any time
    - ``hold()`` keeps outcomes back, and ``release()`` lets them go
    - ``partitions``: the number per topic; records with a key go by its hash, others in turns

    Callbacks run in the thread that sends or releases. flush() raises TimeoutError at once while outcomes are held.
    close() delivers held records, or with ``close(0)`` fails them with DeliveryCancelled.
    """

    _engine: FakeEngine
    _engine_kind = FakeEngine

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        client_name: str | None = None,
        *,
        partitions: int = 1,
        fail_with: FailWith | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(run_dir, client_name, **settings)
        self._streams = None  # not the compiled way, which would not tell the daemon
        check_count("partitions", partitions)
        if fail_with is not None:
            check_callable("fail_with", fail_with, "fail_with(record)")
        self._engine.daemon.partitions = partitions
        self._engine.daemon.fail_with = fail_with

    @property
    def records(self) -> list[FakeRecord]:
        """All records that were sent, in order."""
        return self._engine.daemon.records

    @property
    def fail_with(self) -> FailWith | None:
        return self._engine.daemon.fail_with

    @fail_with.setter
    def fail_with(self, function: FailWith | None) -> None:
        self._engine.daemon.fail_with = function

    @property
    def closed(self) -> bool:
        return self._engine.outbox.closed

    def hold(self) -> None:
        """Hold back the outcomes of records sent from now on, like a broker that does not answer."""
        self._engine.daemon.hold()

    def release(self) -> None:
        """Give all held records their outcomes, in order, and stop holding."""
        self._engine.daemon.release()
