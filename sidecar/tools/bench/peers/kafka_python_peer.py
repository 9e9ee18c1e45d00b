"""kafka-python: pure Python in the caller's process."""

from __future__ import annotations

from typing import Any

from sidecar.tools.bench.peers.peer import FLUSH_S, WARM_S, Counter, Peer
from sidecar.tools.bench.workload import Workload


class KafkaPython(Peer):
    """``send()`` with a callback and an errback for each record."""

    def __init__(self, bootstrap_servers: str) -> None:
        from kafka import KafkaProducer

        self._producer: Any = KafkaProducer(
            bootstrap_servers=bootstrap_servers.split(","),
            acks="all",
            enable_idempotence=True,
            linger_ms=5,
        )

    def warm(self, topic: str) -> None:
        self._producer.send(topic, value=b"warm").get(timeout=WARM_S)

    def send_all(self, workload: Workload) -> int:
        counter = Counter()

        def acked(_metadata: object) -> None:
            counter.acked += 1

        records, topic, send, done = workload.make(), workload.topic, self._producer.send, counter.on_delivery
        count = len(records)
        for number in range(workload.records):
            key, value = records[number % count]
            future = send(topic, value=value, key=key)
            future.add_callback(acked)
            future.add_errback(done)
        self._producer.flush(timeout=FLUSH_S)
        return counter.check()

    def close(self) -> None:
        self._producer.close()
