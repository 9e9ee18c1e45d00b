"""Clients that record a :class:`History`: callers while they send, and readers while they read."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from client_stub import Producer
from client_stub.errors import BufferExhausted
from sidecar.tools.testing.history import History
from sidecar.tools.testing.kafka_topics import quiet_config

KEYS: Final = 12
OUTSTANDING_MAX: Final = 200
PAUSE_S: Final = 0.002
"""Pause between two records, so that faults meet many small batches instead of a few large ones."""
CONSUME_BATCH: Final = 1_000


class _Thread:
    """A thread that runs until stop(), which raises the thread's own error, if any."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error

    def _run(self) -> None:
        raise NotImplementedError

    def stop(self, timeout_s: float) -> None:
        """Stop the thread. Raises the error that it ended with, or TimeoutError when it does not end in time."""
        self._stopping.set()
        self._thread.join(timeout_s)
        if self.error is not None:
            raise self.error
        if self._thread.is_alive():
            raise TimeoutError(f"{self.name} did not end within {timeout_s:g} s.")

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()


class HistoryCaller(_Thread):
    """Sends through one producer to a few keys. :meth:`stop` flushes: afterwards every record has its outcome."""

    def __init__(self, history: History, run_dir: Path, topic: str, name: str) -> None:
        super().__init__(name)
        self._history = history
        self._run_dir = run_dir
        self._topic = topic
        self._room = threading.Semaphore(OUTSTANDING_MAX)

    def _run(self) -> None:
        with Producer(run_dir=str(self._run_dir), client_name=self.name, max_block_ms=10_000) as producer:
            number = 0
            while not self._stopping.is_set():
                if self._room.acquire(timeout=0.1):
                    self._send(producer, number)
                    number += 1
                    self._stopping.wait(PAUSE_S)
            producer.flush(timeout=60)

    def _send(self, producer: Producer, number: int) -> None:
        value = f"{self.name}/{number}".encode()
        key = b"key-%d" % (number % KEYS)

        def on_delivery(error: Any, metadata: Any) -> None:
            self._room.release()
            if error is None:
                self._history.delivered(value, metadata.partition, metadata.offset)
            else:
                self._history.failed(value, possibly_persisted=int(error.persistence) != 0)

        self._history.sent(self.name, key, value)
        try:
            producer.send(self._topic, value, key=key, on_delivery=on_delivery)
        except BufferExhausted:
            self._room.release()
            self._history.failed(value, possibly_persisted=False)


class HistoryReader(_Thread):
    """Reads a topic from its beginning until stop(), with librdkafka's consumer, which checks CRCs."""

    def __init__(
        self, history: History, bootstrap_servers: str, topic: str, partitions: int, name: str
    ) -> None:
        super().__init__(name)
        self._history = history
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._partitions = partitions
        self.positions: Mapping[int, int] = {}
        """Partition → offset that is read next."""

    def _run(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            quiet_config(
                self._bootstrap_servers,
                {
                    "group.id": self.name,
                    "enable.auto.commit": "false",
                    "auto.offset.reset": "earliest",
                    "check.crcs": "true",
                    "fetch.wait.max.ms": 50,
                    "reconnect.backoff.max.ms": 1_000,
                    "topic.metadata.refresh.interval.ms": 1_000,
                },
            )
        )
        positions: dict[int, int] = {}
        try:
            consumer.assign([TopicPartition(self._topic, index, 0) for index in range(self._partitions)])
            while not self._stopping.is_set():
                for message in consumer.consume(CONSUME_BATCH, timeout=0.2):
                    partition, offset = message.partition(), message.offset()
                    # Errors of a cluster under faults are temporary: librdkafka goes on.
                    if message.error() is None and partition is not None and offset is not None:
                        self._history.read(self.name, partition, offset, message.value() or b"")
                        positions[partition] = offset + 1
                self.positions = dict(positions)
        finally:
            consumer.close()
