"""LibrdkafkaProducer: confluent-kafka's producer with the face of ``client_stub.Producer`` that scenarios use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from client_stub.errors import DeliveryTimeout, SidecarError, error_for
from client_stub.record_metadata import RecordMetadata
from sidecar.tools.testing.kafka_topics import quiet_config

from .java_producers import NOT_TOLD

TIMED_OUT: Final = -192
"""librdkafka's own code for a record whose message.timeout.ms is over."""
POLL_S: Final = 0.05

UNKNOWN = (
    "daemon.",
    "pool.",
    "buffer.memory",
    "max.block.ms",
    "sasl.login.",
    "ssl.enabled.protocols",
    "ssl.keystore.type",
    "ssl.truststore.",
)
"""Settings of a daemon that librdkafka does not know."""


def librdkafka_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """``settings`` of a daemon as librdkafka takes them."""
    found = {name: str(value) for name, value in settings.items() if not name.startswith(UNKNOWN)}
    age = found.pop("metadata.max.age.ms", None)
    return found if age is None else {**found, "topic.metadata.refresh.interval.ms": age}


def error_of(error: Any) -> SidecarError:
    """The error of ours that stands for librdkafka's. Its Python binding does not say whether the record may be in the
    log."""
    made: SidecarError
    if error.code() == TIMED_OUT:
        made = DeliveryTimeout(error.str(), code=7, retriable=True)
    else:
        made = error_for(error.code(), error.str())
    made.persistence = NOT_TOLD  # type: ignore[assignment]
    return made


class LibrdkafkaProducer:
    """One producer and the thread that polls it. Thread-safe."""

    def __init__(self, bootstrap_servers: str, settings: Mapping[str, object]) -> None:
        from confluent_kafka import Producer

        self.said: list[str] = []
        """Reports besides the outcomes of records: names and texts of its errors, in order."""
        self._producer = Producer(
            quiet_config(
                bootstrap_servers,
                {
                    **librdkafka_settings(settings),
                    "error_cb": lambda error: self.said.append(f"{error.name()} {error.str()}"),  # type: ignore[dict-item]
                },
            )
        )
        self._is_open = True
        self._thread = threading.Thread(target=self._poll, daemon=True, name="librdkafka")
        self._thread.start()

    def _poll(self) -> None:
        while self._is_open:
            self._producer.poll(POLL_S)

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Callable[[object, object], None] | None = None,
    ) -> Future[RecordMetadata]:
        delivery: Future[RecordMetadata] = Future()

        def reported(error: Any, message: Any) -> None:
            failure = None if error is None else error_of(error)
            metadata = None
            if failure is None:
                metadata = RecordMetadata(
                    topic, message.partition(), message.offset(), message.timestamp()[1]
                )
            if on_delivery is not None:
                on_delivery(failure, metadata)
            if failure is not None:
                delivery.set_exception(failure)
            else:
                assert metadata is not None
                delivery.set_result(metadata)

        from confluent_kafka import KafkaException

        try:
            self._producer.produce(
                topic,
                value,
                key,
                -1 if partition is None else partition,
                on_delivery=reported,
                timestamp=timestamp_ms or 0,
            )
        except KafkaException as refused:  # it knows the topic, and that it may not write there
            reported(refused.args[0], None)
        return delivery

    def flush(self, timeout: float) -> None:
        self._producer.flush(timeout)

    def close(self, timeout: float) -> None:
        """Wait for what was sent; records left then are forgotten. Safe to call twice."""
        if not self._is_open:
            return
        self._producer.flush(timeout)
        self._producer.purge()
        self._producer.flush(1)
        self._is_open = False
        self._thread.join()
        del self._producer  # only this ends its connections
