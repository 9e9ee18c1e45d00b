"""Clients of a security scenario: the daemon, librdkafka or Kafka's own Java producer, each opened in one way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, cast

from .harness import Sender
from .java_harness import NO_DAEMON, JavaSenders, java_settings
from .librdkafka_producer import LibrdkafkaProducer

if TYPE_CHECKING:
    from client_stub import Producer
    from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon

    from .java_producers import JavaProducers

_serial = count(1)

OpenSender = Callable[[str], Sender]
"""Topic → a sender of the one client."""
OpenClient = Callable[[str, Mapping[str, object]], OpenSender]
"""bootstrap.servers and settings in the daemon's names → a client. Does not wait until it is connected."""

JAVA_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}


def java_security(settings: Mapping[str, object]) -> dict[str, object]:
    """A client's settings with TLS and passwords as Kafka's Java clients want them; the others as they are."""
    found = dict(settings)
    if "ssl.ca.location" in found:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": found.pop("ssl.ca.location")}
    if found.get("ssl.endpoint.identification.algorithm") == "none":
        found["ssl.endpoint.identification.algorithm"] = ""
    if "ssl.certificate.pem" in found:
        found["ssl.keystore.type"] = "PEM"
        found["ssl.keystore.certificate.chain"] = found.pop("ssl.certificate.pem")
        found["ssl.keystore.key"] = found.pop("ssl.key.pem")
    if "sasl.oauthbearer.token.endpoint.url" in found:
        package = "org.apache.kafka.common.security.oauthbearer"
        del found["sasl.oauthbearer.method"]
        words = {
            "clientId": found.pop("sasl.oauthbearer.client.id"),
            "clientSecret": found.pop("sasl.oauthbearer.client.secret"),
        }
        found["sasl.login.callback.handler.class"] = f"{package}.OAuthBearerLoginCallbackHandler"
        found["sasl.jaas.config"] = f"{package}.OAuthBearerLoginModule required {_jaas(words)};"
    if "sasl.username" in found:
        module = JAVA_MODULES[str(found["sasl.mechanism"])]
        words = {"username": found.pop("sasl.username"), "password": found.pop("sasl.password")}
        found["sasl.jaas.config"] = f"org.apache.kafka.common.security.{module} required {_jaas(words)};"
    return found


def _jaas(words: Mapping[str, object]) -> str:
    return " ".join(f"{name}={json.dumps(word, ensure_ascii=False)}" for name, word in words.items())


class Daemons:
    """Clients that are daemons, with the stub before them."""

    def __init__(self, start_daemon: StartDaemon) -> None:
        self._start_daemon = start_daemon
        self.started: list[SidecarDaemon] = []

    def __call__(self, bootstrap_servers: str, settings: Mapping[str, object]) -> OpenSender:
        daemon = self._start_daemon(bootstrap_servers, settings=settings, wait=False)
        self.started.append(daemon)
        return lambda topic: Sender(daemon, topic)


class Librdkafka:
    """Clients that are confluent-kafka's producers."""

    name = "librdkafka"

    def __init__(self) -> None:
        self.producers: list[LibrdkafkaProducer] = []

    def __call__(self, bootstrap_servers: str, settings: Mapping[str, object]) -> OpenSender:
        producer = LibrdkafkaProducer(bootstrap_servers, settings)
        self.producers.append(producer)

        def sender(topic: str) -> Sender:
            thread = cast("Producer", Lent(producer))
            return Sender(NO_DAEMON, topic, f"librdkafka-{next(_serial)}", producer=thread)

        return sender

    def end(self) -> None:
        for producer in self.producers:
            producer.close(0)


class Lent:
    """A producer that several senders share: closing one of them waits for the records, and leaves it open."""

    def __init__(self, producer: LibrdkafkaProducer) -> None:
        self.send, self.flush, self.close = producer.send, producer.flush, producer.flush


class Java:
    """Clients that are Kafka's own producers."""

    name = "java"

    def __init__(self, java: JavaProducers) -> None:
        self._java = java
        self._senders: list[JavaSenders] = []

    def __call__(self, bootstrap_servers: str, settings: Mapping[str, object]) -> OpenSender:
        senders = JavaSenders(self._java, java_settings(bootstrap_servers, java_security(settings)))
        self._senders.append(senders)
        return senders.sender

    def end(self) -> None:
        for senders in self._senders:
            senders.producer.close(0)
