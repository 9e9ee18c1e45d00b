"""confluent-kafka: librdkafka in the caller's own process."""

from __future__ import annotations

import time
from typing import Any

from sidecar.tools.bench.peers.peer import FLUSH_S, WARM_S, Counter, Done, Peer, TimedPeer
from sidecar.tools.bench.workload import Workload

POLL_EVERY = 1_000
LINGER_MS = 5.0
QUEUE_RECORDS = 1_000_000


def _producer(target: str, linger_ms: float = LINGER_MS) -> Any:
    """``target``: bootstrap servers, followed by settings, each as ``|name=value``."""
    from confluent_kafka import Producer

    from sidecar.tools.testing.kafka_topics import quiet_config

    bootstrap_servers, *words = target.split("|")
    return Producer(
        quiet_config(
            bootstrap_servers,
            {
                **dict(word.split("=", 1) for word in words),
                "enable.idempotence": "true",
                "linger.ms": str(linger_ms),
                "queue.buffering.max.messages": QUEUE_RECORDS,
            },
        )
    )


class _Confluent(Peer):
    def __init__(self, bootstrap_servers: str) -> None:
        self.producer = _producer(bootstrap_servers)
        self.counter = Counter()

    def warm(self, topic: str) -> None:
        self.producer.produce(topic, value=b"warm", on_delivery=self.counter.on_delivery)
        self.producer.flush(WARM_S)
        if self.counter.check() != 1:
            raise RuntimeError("confluent-kafka did not deliver its first record")

    def close(self) -> None:
        self.producer.flush(FLUSH_S)


class ConfluentCallbacks(_Confluent):
    """``produce()`` with a callback for each record, polled every 1,000."""

    poll_every = POLL_EVERY

    def send_all(self, workload: Workload) -> int:
        records, topic, on_delivery = workload.make(), workload.topic, self.counter.on_delivery
        produce, poll, poll_every = self.producer.produce, self.producer.poll, self.poll_every
        count = len(records)
        for number in range(workload.records):
            key, value = records[number % count]
            while True:
                try:
                    produce(topic, value=value, key=key, on_delivery=on_delivery)
                    break
                except BufferError:
                    poll(0.05)
            if number % poll_every == 0:
                poll(0)
        self.producer.flush(FLUSH_S)
        return self.counter.check()


class ConfluentPolled(ConfluentCallbacks):
    """``produce()`` with a callback, and ``poll(0)`` behind each record, as its documentation shows."""

    poll_every = 1


class TwinPolled(ConfluentPolled):
    """The same program with our twin in its place."""

    def __init__(self, run_dir: str) -> None:
        from client_stub.compat.confluent import Producer

        self.producer = Producer({"sidecar.run_dir": run_dir, "client.id": "bench"})
        self.counter = Counter()


class ConfluentBatch(_Confluent):
    """``produce_batch()`` of up to 1,000 records a call, with one callback function for all of them.

    Its dictionaries are made before the clock starts, as for a caller that has them already.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers)
        self._batches: list[list[dict[str, bytes]]] = []
        self._made_of: Workload | None = None

    def prepare(self, workload: Workload) -> None:
        self._batches = [
            [{"key": key, "value": value} for key, value in batch] for batch in workload.batches()
        ]
        self._made_of = workload

    def send_all(self, workload: Workload) -> int:
        if self._made_of != workload:
            self.prepare(workload)
        topic, on_delivery = workload.topic, self.counter.on_delivery
        produce_batch, poll = self.producer.produce_batch, self.producer.poll
        sent = number = 0
        while sent < workload.records:
            batch = self._batches[number % len(self._batches)]
            taken = produce_batch(topic, batch, on_delivery=on_delivery)
            while taken < len(batch):  # its queue was full: records left out are marked in their dictionaries
                poll(0.05)
                batch = [row for row in batch if row.pop("_error", None) is not None]
                sent += taken
                taken = produce_batch(topic, batch, on_delivery=on_delivery)
            sent += taken
            number += 1
            poll(0)
        self.producer.flush(FLUSH_S)
        return self.counter.check()


class ConfluentTimed(TimedPeer):
    def __init__(self, bootstrap_servers: str, linger_ms: float) -> None:
        self._producer = _producer(bootstrap_servers, linger_ms)

    def warm(self, topic: str) -> None:
        self._producer.produce(topic, value=b"warm")
        self._producer.flush(WARM_S)

    def send(self, topic: str, key: bytes, value: bytes, done: Done) -> None:
        while True:
            try:
                self._producer.produce(topic, value=value, key=key, on_delivery=done)
                return
            except BufferError:
                self._producer.poll(0.01)

    def serve(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._producer.poll(left)

    def flush(self) -> None:
        self._producer.flush(FLUSH_S)

    def close(self) -> None:
        self._producer.flush(FLUSH_S)
