"""Clients that go on sending while daemon and workers are killed, and note what they were told of each record."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from client_stub import Producer
from sidecar.testing.ledger import Ledger, RecordId
from sidecar.testing.reading import ReadRecord, read_topic

BURST = 20
PAUSE_S = 0.004
KEYS = 13


class SteadyClient:
    """One producer and one thread that sends until :meth:`finish`. Every callback is noted."""

    def __init__(self, run_dir: Path, topic: str, name: str, **options: Any) -> None:
        self.name = name
        self.sent = 0
        self.told: list[tuple[int, BaseException | None, tuple[int, int] | None]] = []
        """(number, error, (partition, offset))."""
        self.raised: BaseException | None = None
        self.last_told_s = 0.0
        """When the last delivery was told (monotonic)."""
        self._told_s: list[float] = []
        self._topic = topic
        self._producer = Producer(run_dir=str(run_dir), client_name=name, **options)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for _ in range(BURST):
                    self._send()
                self._stop.wait(PAUSE_S)
        except BaseException as error:
            self.raised = error

    def _send(self) -> None:
        number = self.sent

        def told(error: Any, metadata: Any, number: int = number) -> None:
            place = None if metadata is None else (metadata.partition, metadata.offset)
            self.told.append((number, error, place))
            if error is None:
                self.last_told_s = time.monotonic()
                self._told_s.append(self.last_told_s)

        # Keyed and keyless in turn; order is kept per partition either way.
        key = b"key-%d" % (number % KEYS) if number % 2 else None
        self._producer.send(
            self._topic, value=RecordId(self.name, number).encode(), key=key, on_delivery=told
        )
        self.sent += 1

    def first_told_after(self, moment_s: float) -> float:
        """When the first delivery after a moment was told."""
        return next(told_s for told_s in self._told_s if told_s > moment_s)

    def told_since(self, moment_s: float) -> list[float]:
        """When each delivery was told, from the last one before a moment on."""
        moments = list(self._told_s)
        later = [told_s for told_s in moments if told_s > moment_s]
        return moments[-len(later) - 1 :]

    def finish(self, timeout_s: float = 60.0) -> None:
        """Stop sending, flush, close. Raises what send() or flush() raised."""
        self._stop.set()
        self._thread.join(timeout_s)
        if self.raised is not None:
            raise self.raised
        self._producer.flush(timeout=timeout_s)
        self._producer.close(0)

    def abandon(self) -> None:
        self._stop.set()
        self._thread.join(10.0)
        self._producer.close(0)


class SteadyLoad:
    """Some clients on one topic, and the check of everything they were told against the topic itself."""

    def __init__(
        self, bootstrap_servers: str, run_dir: Path, topic: str, *, clients: int = 2, **options: Any
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self.clients = [SteadyClient(run_dir, topic, f"steady-{i}", **options) for i in range(clients)]

    @property
    def delivered(self) -> int:
        return sum(len(client.told) for client in self.clients)

    def check(self, *, unknown_offsets_max: int = 0) -> list[ReadRecord]:
        """End the clients and raise AssertionError for anything lost, doubled, reordered, or told wrongly.

        ``unknown_offsets_max``: deliveries that may be told without an offset. Returns the topic's records.
        """
        for client in self.clients:
            client.finish()
        ledger = Ledger()
        records = read_topic(self._bootstrap_servers, self._topic)
        places: dict[RecordId, tuple[int, int]] = {}
        for record in records:
            record_id = RecordId.decode(record.value or b"")
            ledger.read(record_id, record.partition)
            places[record_id] = (record.partition, record.offset)
        wrong: list[str] = []
        unknown = 0
        for client in self.clients:
            ledger.sent(client.name, client.sent)
            for number, error, place in client.told:
                record_id = RecordId(client.name, number)
                if error is not None:
                    possibly = int(getattr(error, "persistence", 0)) != 0
                    ledger.failed(record_id, possibly_persisted=possibly)
                    wrong.append(f"{record_id} failed: {error}")
                    continue
                ledger.delivered(record_id)
                if place is None or place[1] is None or place[1] < 0:
                    unknown += 1
                elif place != places.get(record_id):
                    wrong.append(f"{record_id} was told at {place} and is at {places.get(record_id)}")
        ledger.check()
        assert not wrong, f"{len(wrong)} records: {wrong[:5]}"
        assert unknown <= unknown_offsets_max, f"{unknown} deliveries without an offset"
        return records

    def __enter__(self) -> SteadyLoad:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.clients:
            client.abandon()
