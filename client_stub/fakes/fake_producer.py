"""FakeProducer: a Producer for an application's tests; ``client_stub.testing`` shows how to use it.

A test calls it, in any thread.
"""

from __future__ import annotations

import os
from typing import Any

from client_stub.fakes.fake_controls import FakeControls
from client_stub.fakes.fake_engine import FakeEngine
from client_stub.fakes.memory_daemon import FailWith
from client_stub.producer import Producer


class FakeProducer(FakeControls, Producer):
    """The real Producer over a daemon in memory that delivers at once. Thread-safe.

    It can replace the class Producer, as it accepts all its arguments. ``on_error`` is called for failed records
    without a callback; the names of daemon and client, and the times, have no effect.

    - ``records``: all records that were sent, in order
    - ``committed``, ``committed_offsets``: what transactions have committed
    - ``staged``: the records of its sealed stages, by token; any fake of the process may include them
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
        self._set_up(partitions, fail_with)
