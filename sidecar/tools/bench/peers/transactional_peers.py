"""Producers in transactions: ours and confluent-kafka's, with the same calls; and ours without any."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

from sidecar.tools.bench.peers.confluent_peers import LINGER_MS, POLL_EVERY, QUEUE_RECORDS
from sidecar.tools.bench.peers.peer import WARM_S
from sidecar.tools.bench.workload import Record


class TransactionalPeer(ABC):
    """One producer in one process. Not thread-safe."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, records: list[Record]) -> None: ...

    @abstractmethod
    def commit(self) -> None:
        """Return when the transaction is committed."""

    @abstractmethod
    def close(self) -> None: ...


class SidecarTransactions(TransactionalPeer):
    def __init__(self, run_dir: str) -> None:
        from client_stub import Producer

        self._producer = Producer(run_dir, transactional_id=f"bench-{uuid.uuid4()}")
        self._producer.init_transactions(WARM_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, records: list[Record]) -> None:
        self._producer.send_many(topic, records)

    def commit(self) -> None:
        self._producer.commit_transaction(WARM_S)

    def close(self) -> None:
        self._producer.close()


class SidecarPlain(TransactionalPeer):
    """Without transactions: what they cost."""

    def __init__(self, run_dir: str) -> None:
        from client_stub import Producer

        self._producer = Producer(run_dir)

    def begin(self) -> None:
        pass

    def send(self, topic: str, records: list[Record]) -> None:
        self._producer.send_many(topic, records)

    def commit(self) -> None:
        self._producer.flush(WARM_S)

    def close(self) -> None:
        self._producer.close()


class ConfluentTransactions(TransactionalPeer):
    def __init__(self, bootstrap_servers: str) -> None:
        from confluent_kafka import Producer

        from sidecar.tools.testing.kafka_topics import quiet_config

        settings: dict[str, str | int] = {
            "transactional.id": f"bench-{uuid.uuid4()}",
            "linger.ms": str(LINGER_MS),
            "queue.buffering.max.messages": QUEUE_RECORDS,
        }
        self._producer = Producer(quiet_config(bootstrap_servers, settings))
        self._producer.init_transactions(WARM_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, records: list[Record]) -> None:
        produce, poll = self._producer.produce, self._producer.poll
        for number, (key, value) in enumerate(records):
            while True:
                try:
                    produce(topic, value=value, key=key)
                    break
                except BufferError:
                    poll(0.05)
            if number % POLL_EVERY == 0:
                poll(0)

    def commit(self) -> None:
        self._producer.commit_transaction(WARM_S)

    def close(self) -> None:
        self._producer.flush(WARM_S)


TRANSACTIONAL: Final[Mapping[str, Callable[[str], TransactionalPeer]]] = {
    "sidecar": SidecarTransactions,
    "sidecar-plain": SidecarPlain,
    "confluent": ConfluentTransactions,
}
"""By the name of the side."""
