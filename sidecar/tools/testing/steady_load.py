"""Clients that send while daemon and workers are killed, and note the outcome of each record."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from client_stub import Producer
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.reading import ReadRecord, read_topic
from sidecar.tools.testing.waiting import wait_until

BURST = 20
PAUSE_S = 0.004
KEYS = 13


def keyed_and_keyless(name: str, number: int) -> dict[str, Any]:
    """Return the arguments of send(), with and without a key in turn. Order is kept per partition either way."""
    key = b"key-%d" % (number % KEYS) if number % 2 else None
    return {"value": RecordId(name, number).encode(), "key": key}


class SteadyClient:
    """One producer and one thread that sends until :meth:`finish`. It notes the result of every callback.

    ``producer``: an existing producer, or an object with its methods; by default a new one of the daemon in
    ``run_dir``. ``record(name, number)`` gives the arguments of each send(); its value must begin with the record's
    id.
    """

    def __init__(
        self,
        run_dir: Path | str | None,
        topic: str,
        name: str,
        *,
        producer: Producer | None = None,
        record: Callable[[str, int], Mapping[str, Any]] = keyed_and_keyless,
        burst: int = BURST,
        pause_s: float = PAUSE_S,
        **options: Any,
    ) -> None:
        self.name = name
        self.topic = topic
        self._record, self._burst, self._pause_s = record, burst, pause_s
        self.sent = 0
        self.outcomes: list[tuple[int, BaseException | None, tuple[int, int] | None]] = []
        """(number, error, (partition, offset)) of each record."""
        self.raised: BaseException | None = None
        self.last_delivered_s = 0.0
        """Time when the last record was delivered (monotonic)."""
        self._delivered_s: list[float] = []
        self._producer = producer or Producer(run_dir=str(run_dir), client_name=name, **options)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for _ in range(self._burst):
                    self._send()
                self._stop.wait(self._pause_s)
        except BaseException as error:
            self.raised = error

    def _send(self) -> None:
        number = self.sent

        def on_delivery(error: Any, metadata: Any, number: int = number) -> None:
            place = None if metadata is None else (metadata.partition, metadata.offset)
            self.outcomes.append((number, error, place))
            if error is None:
                self.last_delivered_s = time.monotonic()
                self._delivered_s.append(self.last_delivered_s)

        self._producer.send(self.topic, **self._record(self.name, number), on_delivery=on_delivery)
        self.sent += 1

    def first_delivered_after(self, moment_s: float) -> float:
        """Return when the first record after a moment was delivered."""
        return next(at_s for at_s in self._delivered_s if at_s > moment_s)

    def delivered_since(self, moment_s: float) -> list[float]:
        """Return when each record was delivered, starting with the last one before a moment."""
        moments = list(self._delivered_s)
        later = [at_s for at_s in moments if at_s > moment_s]
        return moments[-len(later) - 1 :]

    def finish(self, timeout_s: float = 60.0) -> None:
        """Stop sending, flush and close. Raises the error that send() or flush() raised."""
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


def judge(
    bootstrap_servers: str,
    topic: str,
    clients: Iterable[SteadyClient],
    *,
    unknown_offsets_max: int = 0,
    may_fail: Callable[[RecordId], bool] = lambda record: False,
) -> list[ReadRecord]:
    """Compare the outcomes of finished clients of a topic with the topic itself.

    Raises AssertionError for a record that was lost, duplicated or reordered, has a second or wrong outcome, or failed
    without ``may_fail`` naming it. Returns the topic's records.
    """
    ledger = Ledger()
    records = read_topic(bootstrap_servers, topic)
    places: dict[RecordId, tuple[int, int]] = {}
    for record in records:
        record_id = RecordId.decode(record.value or b"")
        ledger.read(record_id, record.partition)
        places[record_id] = (record.partition, record.offset)
    wrong: list[str] = []
    unknown = 0
    for client in clients:
        ledger.sent(client.name, client.sent)
        for number, error, place in client.outcomes:
            record_id = RecordId(client.name, number)
            if error is not None:
                possibly = int(getattr(error, "persistence", 0)) != 0
                ledger.failed(record_id, possibly_persisted=possibly)
                if not may_fail(record_id):
                    wrong.append(f"{record_id} failed: {error}")
                continue
            ledger.delivered(record_id)
            if place is None or place[1] is None or place[1] < 0:
                unknown += 1
            elif place != places.get(record_id):
                wrong.append(f"{record_id} was acked at {place} and is at {places.get(record_id)}")
    ledger.check()
    assert not wrong, f"{len(wrong)} records: {wrong[:5]}"
    assert unknown <= unknown_offsets_max, f"{unknown} deliveries without an offset"
    return records


class SteadyLoad:
    """Some clients on one topic, and the check of all their outcomes against the topic itself."""

    def __init__(
        self, bootstrap_servers: str, run_dir: Path | str, topic: str, *, clients: int = 2, **options: Any
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self.clients = [SteadyClient(run_dir, topic, f"steady-{i}", **options) for i in range(clients)]

    @property
    def delivered(self) -> int:
        return sum(len(client.outcomes) for client in self.clients)

    def wait_more(self, records: int = 500, describe: Callable[[], str] | None = None) -> None:
        """Wait until the clients have that many more outcomes than now."""
        before = self.delivered
        wait_until(lambda: self.delivered > before + records, "records to flow", describe=describe)

    def check(self, *, unknown_offsets_max: int = 0) -> list[ReadRecord]:
        """End the clients. Raises AssertionError for records lost, duplicated or reordered, and for wrong outcomes.

        ``unknown_offsets_max``: deliveries that may have no offset. Returns the topic's records.
        """
        for client in self.clients:
            client.finish()
        return judge(
            self._bootstrap_servers, self._topic, self.clients, unknown_offsets_max=unknown_offsets_max
        )

    def __enter__(self) -> SteadyLoad:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.clients:
            client.abandon()
