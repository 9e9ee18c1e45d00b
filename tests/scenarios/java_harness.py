"""JavaHarness, JavaRealHarness: the harness over Apache Kafka's own producer in place of daemon and stub."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, wait
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from sidecar.tools.testing.waiting import wait_until

from .harness import FAST, Harness, Sender
from .java_producers import JavaProducers
from .test_real_kafka import RealHarness

if TYPE_CHECKING:
    from client_stub import Producer
    from client_stub.record_metadata import RecordMetadata
    from sidecar.tools.testing.daemon import SidecarDaemon
    from sidecar.tools.testing.fake_broker import FakeBroker
    from sidecar.tools.testing.fault_proxy import FaultProxy
    from sidecar.tools.testing.kafka_cluster import KafkaCluster

_serial = count(1)
NO_DAEMON = cast("SidecarDaemon", None)

OURS = ("daemon.", "pool.", "topics.")
"""Settings that Java has not."""


def java_settings(bootstrap_servers: str, settings: Mapping[str, object]) -> dict[str, object]:
    """``settings`` of a daemon as Java takes them."""
    found: dict[str, object] = {"max.block.ms": 20_000, "enable.metrics.push": "false", **FAST, **settings}
    found["bootstrap.servers"] = bootstrap_servers
    return {name: value for name, value in found.items() if not name.startswith(OURS)}


class JavaThread:
    """A producer for a scenario's sender: one thread that sends through the Java producer there."""

    def __init__(self, there: JavaSenders, name: str) -> None:
        self._there = there
        self._name = name
        self._deliveries: list[Future[RecordMetadata]] = []

    def send(self, topic: str, value: bytes, **arguments: Any) -> Future[RecordMetadata]:
        self._deliveries.append(self._there.producer.send(topic, value, thread=self._name, **arguments))
        return self._deliveries[-1]

    def flush(self, timeout: float) -> None:
        """Wait for what was sent here."""
        wait(self._deliveries, timeout)

    def close(self, timeout: float) -> None:
        self.flush(timeout)


class JavaSenders:
    """One Java producer; the senders of a harness share it, as they share a worker there."""

    def __init__(self, java: JavaProducers, settings: Mapping[str, object]) -> None:
        self._java = java
        self._settings = settings
        self.producer = java.open(settings)

    def sender(self, topic: str, max_block_ms: float = 20_000) -> Sender:
        name = f"java-{next(_serial)}"
        thread = cast("Producer", JavaThread(self, name))
        return Sender(NO_DAEMON, topic, name, max_block_ms=max_block_ms, producer=thread)

    def renew(self) -> None:
        """Another producer: it asks for an identity of its own."""
        self.producer.close(20)
        self.producer = self._java.open(self._settings)

    def held_bytes(self) -> float:
        return self.producer.metric("buffer-total-bytes") - self.producer.metric("buffer-available-bytes")

    def check_books(self) -> None:
        """Java's own: the buffer is whole once everything was told."""
        wait_until(lambda: self.held_bytes() == 0, "Java's buffer to be whole", timeout_s=10)


class JavaHarness(Harness):
    """Scenarios run in it unchanged, those that do not ask the daemon itself."""

    def __init__(self, kafka: FakeBroker, java: JavaProducers, settings: Mapping[str, object]) -> None:
        super().__init__(kafka, NO_DAEMON)
        self._java = java
        self._settings = settings
        self._senders = JavaSenders(java, java_settings(kafka.bootstrap_servers, settings))
        self._twins: list[JavaHarness] = []

    def twin(self, settings: Mapping[str, object]) -> JavaHarness:
        """Another producer on the same broker, with these settings besides."""
        self._twins.append(JavaHarness(self.kafka, self._java, {**self._settings, **settings}))
        return self._twins[-1]

    def sender(self, topic: str, *, max_block_ms: float = 20_000) -> Sender:
        return self._senders.sender(topic, max_block_ms)

    def replace_worker(self) -> None:
        self._senders.renew()

    def check_books(self) -> None:
        self._senders.check_books()

    def held_bytes(self) -> float:
        return self._senders.held_bytes()

    def accepted(self) -> float:
        return self._senders.producer.metric("accepted")

    def close(self, timeout_s: float) -> None:
        self._senders.producer.close(timeout_s)

    def end(self) -> None:
        self.kafka.clear_rules()
        for harness in [self, *self._twins]:
            harness.close(0)


class JavaRealHarness(RealHarness):
    """The same on a real Kafka behind the proxy."""

    def __init__(self, kafka: KafkaCluster, proxy: FaultProxy, java: JavaProducers) -> None:
        super().__init__(kafka, proxy, NO_DAEMON)
        self._senders = JavaSenders(java, java_settings(proxy.bootstrap_servers, {}))

    def new_sender(self, topic: str) -> Sender:
        return self._senders.sender(topic)

    def check_books(self) -> None:
        self._senders.check_books()

    def close(self, timeout_s: float) -> None:
        self._senders.producer.close(timeout_s)
