"""A caller that never stops sending numbered records, while something is done to the cluster."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from client_stub import Producer
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

PATIENCE_S = 60.0
OUTSTANDING_MAX = 100
"""Records without an outcome at most: a cluster that stands still stops the caller, not its memory."""
KEYS = 97
"""Enough that every partition of a small topic has some."""

_serial = itertools.count(1)


def some_keys(number: int) -> dict[str, Any]:
    return {"key": b"key-%d" % (number % KEYS)}


class Flow:
    """Sends from a thread of its own while the ``with`` block runs; leaving it waits for every outcome.

    ``where(number)`` gives send()'s key or partition for each record.
    """

    def __init__(
        self,
        run_dir: Path,
        topic: str,
        where: Callable[[int], dict[str, Any]] = some_keys,
    ) -> None:
        self.name = f"flow-{next(_serial)}"
        self.topic = topic
        self.sent = 0
        self.delivered: list[int] = []
        self.failed: list[tuple[int, bool, str]] = []
        self._run_dir = run_dir
        self._where = where
        self._room = threading.Semaphore(OUTSTANDING_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name=self.name, daemon=True)
        self._error: BaseException | None = None

    def wait_more(self, count: int = 2_000, what: str = "") -> None:
        """Wait until ``count`` more records are delivered than now."""
        goal = len(self.delivered) + count
        wait_until(
            lambda: len(self.delivered) >= goal or self._error,
            f"{count} more records of {self.topic} to be delivered {what}",
            timeout_s=PATIENCE_S,
            describe=lambda: f"{len(self.delivered)} of {self.sent} are, failed: {self.failed[:3]}.",
        )
        if self._error is not None:
            raise self._error

    def enter(self, ledger: Ledger) -> None:
        """Book what was sent and told."""
        ledger.sent(self.name, self.sent)
        for number in self.delivered:
            ledger.delivered(RecordId(self.name, number))
        for number, possibly, _ in self.failed:
            ledger.failed(RecordId(self.name, number), possibly_persisted=possibly)

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._room.release()  # it may wait for room
        self._thread.join(2 * PATIENCE_S)
        if error is None:
            assert not self._thread.is_alive(), f"{self.name} waits for the outcomes of its last records"
            if self._error is not None:
                raise self._error

    def _send_all(self) -> None:
        try:
            with Producer(run_dir=str(self._run_dir), client_name=self.name) as producer:
                while not self._stopping.is_set():
                    self._send(producer, self.sent)
                    self.sent += 1
                    self._room.acquire()
                producer.flush(timeout=PATIENCE_S)
        except BaseException as error:
            self._error = error

    def _send(self, producer: Producer, number: int) -> None:
        def told(error: Any, _metadata: object) -> None:
            self._room.release()
            if error is None:
                self.delivered.append(number)
            else:
                possibly = int(getattr(error, "persistence", 0)) != 0
                self.failed.append((number, possibly, f"{type(error).__name__}: {error}"))

        value = RecordId(self.name, number).encode()
        producer.send(self.topic, value=value, on_delivery=told, **self._where(number))


def check(ledger: Ledger, bootstrap_servers: str, topic: str, *flows: Flow) -> None:
    """Read the topic back and compare it with what the flows were told: all delivered, once, in order."""
    for flow in flows:
        assert not flow.failed, flow.failed[:3]
        flow.enter(ledger)
    ledger.read_all(
        (RecordId.decode(record.value or b""), record.partition)
        for record in read_topic(bootstrap_servers, topic)
    )
    ledger.check()
