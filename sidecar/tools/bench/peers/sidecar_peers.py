"""Our producer, by each of its calls."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sidecar.tools.bench.peers.peer import FLUSH_S, WARM_S, Counter, Done, Peer, TimedPeer
from sidecar.tools.bench.workload import Workload

if TYPE_CHECKING:
    import pyarrow

    from client_stub.outbox.delivery import Delivery


class _Sidecar(Peer):
    def __init__(self, run_dir: str) -> None:
        from client_stub import Producer

        self.producer = Producer(run_dir=run_dir, client_name="bench")

    def warm(self, topic: str) -> None:
        self.producer.send(topic, value=b"warm").result(timeout=WARM_S)

    def close(self) -> None:
        self.producer.close(timeout=FLUSH_S)


class SidecarCallbacks(_Sidecar):
    """``send()`` with a callback for each record: like for like with confluent's ``produce()``."""

    def send_all(self, workload: Workload) -> int:
        counter = Counter()
        records, topic, done, send = workload.make(), workload.topic, counter.on_delivery, self.producer.send
        count = len(records)
        for number in range(workload.records):
            key, value = records[number % count]
            send(topic, value=value, key=key, on_delivery=done)
        self.producer.flush(timeout=FLUSH_S)
        return counter.check()


class SidecarFutures(_Sidecar):
    """``send()``; the futures are kept and asked at the end."""

    def send_all(self, workload: Workload) -> int:
        records, topic, send = workload.make(), workload.topic, self.producer.send
        count = len(records)
        deliveries: list[Delivery] = []
        keep = deliveries.append
        for number in range(workload.records):
            key, value = records[number % count]
            keep(send(topic, value=value, key=key))
        self.producer.flush(timeout=FLUSH_S)
        for delivery in deliveries:
            delivery.result(timeout=FLUSH_S)
        return len(deliveries)


class SidecarOneByOne(_Sidecar):
    """``send().result(10)``, one record at a time."""

    def send_all(self, workload: Workload) -> int:
        records, topic, send = workload.make(), workload.topic, self.producer.send
        for number in range(workload.records):
            key, value = records[number % len(records)]
            send(topic, value=value, key=key).result(10)
        return workload.records


class SidecarSendMany(_Sidecar):
    """``send_many()`` of up to 1,000 records a call."""

    def send_all(self, workload: Workload) -> int:
        batches, topic = workload.batches(), workload.topic
        futures = []
        sent = number = 0
        while sent < workload.records:
            batch = batches[number % len(batches)]
            futures.append(self.producer.send_many(topic, batch))
            sent += len(batch)
            number += 1
        self.producer.flush(timeout=FLUSH_S)
        return sum(future.result(timeout=FLUSH_S) for future in futures)


class SidecarArrow(_Sidecar):
    """``send_arrow()`` of tables of 10,000 rows."""

    def prepare(self, workload: Workload) -> None:
        self._table = arrow_table(workload)

    def send_all(self, workload: Workload) -> int:
        table, topic = self._table, workload.topic
        futures = []
        sent = 0
        while sent < workload.records:
            futures.append(self.producer.send_arrow(topic, table))
            sent += table.num_rows
        self.producer.flush(timeout=FLUSH_S)
        return sum(future.result(timeout=FLUSH_S) for future in futures)


def arrow_table(workload: Workload) -> pyarrow.Table:
    """The workload's distinct records."""
    import pyarrow as pa

    records = workload.make()
    return pa.table(
        {
            "key": pa.array([key for key, _ in records], pa.binary()),
            "value": pa.array([value for _, value in records], pa.binary()),
        }
    )


class SidecarTimed(TimedPeer):
    def __init__(self, run_dir: str) -> None:
        from client_stub import Producer

        self._producer = Producer(run_dir=run_dir, client_name="bench-timed")

    def warm(self, topic: str) -> None:
        self._producer.send(topic, value=b"warm").result(timeout=WARM_S)

    def send(self, topic: str, key: bytes, value: bytes, done: Done) -> None:
        self._producer.send(topic, value=value, key=key, on_delivery=done)

    def serve(self, seconds: float) -> None:
        time.sleep(seconds)  # callbacks run in the stub's own thread

    def flush(self) -> None:
        self._producer.flush(timeout=FLUSH_S)

    def close(self) -> None:
        self._producer.close(timeout=FLUSH_S)
