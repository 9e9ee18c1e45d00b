"""The security scenarios with librdkafka and Kafka's own Java producer: SE-01, SE-03, SE-04, SE-05 and SE-06.

Each test runs the very function that the daemon is tested with, on the same real Kafka. Where a peer departs from what
we hold ourselves to, the test says how, and docs/scenarios.md says why we do otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from client_stub import errors
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.steady_load import SteadyClient
from sidecar.tools.testing.token_server import Fault, TokenServer
from sidecar.tools.testing.waiting import ConditionTimeout, wait_until

from .java_producers import JavaProducers
from .peers import Daemons, Java, Librdkafka, OpenClient
from .secure import Costs, new_topic, seconds_since, sessions_are_renewed, settings_for
from .test_passwords import (
    LASTS_S,
    SHORT_WAIT,
    a_password_withdrawn_for_a_while,
    delivers_once_the_user_is_made,
    refused_without_a_user,
    settings_of,
    user_of_a_while,
)
from .test_real_acls import a_forbidden_topic_fails_alone, settings_of_bob
from .test_tls import bad_ones, bad_ones_are_refused, good_ones, good_ones_deliver
from .test_tokens import NO_TOKEN, SHORT_LIVED, issuer, no_good_token, oidc, tokens_are_renewed

pytestmark = [pytest.mark.process, pytest.mark.kafka]

SESSIONS_S = 6.0
"""Over sessions of 4 s."""
__all__ = ["issuer"]  # a fixture


@pytest.fixture
def librdkafka() -> Iterator[Librdkafka]:
    made = Librdkafka()
    yield made
    made.end()


@pytest.fixture
def javas(java: JavaProducers) -> Iterator[Java]:
    made = Java(java)
    yield made
    made.end()


@pytest.fixture(params=[Librdkafka, Java], ids=lambda kind: str(kind.name))
def peer(request: pytest.FixtureRequest) -> Librdkafka | Java:
    wanted = "javas" if request.param is Java else "librdkafka"
    return cast("Librdkafka | Java", request.getfixturevalue(wanted))


def test_se_01_a_user_that_is_not_there_for_librdkafka(
    secure_kafka: KafkaCluster, librdkafka: Librdkafka
) -> None:
    """It reports the login by its callback for errors, and the record as timed out."""
    kafka, user, password = secure_kafka, "carol of librdkafka", "a password"
    settings = settings_of(kafka, user, password) | SHORT_WAIT
    with librdkafka(kafka.servers("SASL_PLAINTEXT"), settings)(new_topic(kafka)) as sender:
        error = refused_without_a_user(sender)
        assert isinstance(error, errors.DeliveryTimeout), error
        assert any(each.startswith("_AUTHENTICATION") for each in librdkafka.producers[0].said)
        delivers_once_the_user_is_made(kafka, sender, user, password)


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_se_01_a_user_that_is_not_there_for_java(
    secure_kafka: KafkaCluster, javas: Java, is_idempotent: bool
) -> None:
    """It fails the record by the login. With idempotence it does not recover: after the user was made, records go on
    to fail."""
    kafka, user, password = secure_kafka, f"carol of Java {is_idempotent}", "a password"
    settings = settings_of(kafka, user, password) | SHORT_WAIT
    settings |= {"enable.idempotence": str(is_idempotent).lower(), "delivery.timeout.ms": 3_000}
    with javas(kafka.servers("SASL_PLAINTEXT"), settings)(new_topic(kafka)) as sender:
        error = refused_without_a_user(sender)
        assert isinstance(error, errors.AuthenticationFailed), error
        if is_idempotent:
            with pytest.raises(ConditionTimeout, match="a record after the user was made"):
                delivers_once_the_user_is_made(kafka, sender, user, password, timeout_s=2.0)
            assert isinstance(
                sender.outcomes()[-1].error, errors.DeliveryTimeout | errors.AuthenticationFailed
            )
        else:
            delivers_once_the_user_is_made(kafka, sender, user, password)


@pytest.mark.long
def test_se_01_a_password_withdrawn_for_a_while(secure_kafka: KafkaCluster, peer: Librdkafka | Java) -> None:
    """With Java each refused login fails a record that is sent at that moment; all others wait, as librdkafka's do."""
    kafka, topic, user = secure_kafka, new_topic(secure_kafka, partitions=2), f"erna of {peer.name}"
    sender = peer(kafka.servers("SHORT"), user_of_a_while(kafka, user, topic))(topic)
    client = SteadyClient(None, topic, peer.name, producer=sender.producer, burst=5, pause_s=0.01)
    wait_until(lambda: len(client.outcomes) > 100, "the first records")
    relay, is_java = kafka.relay("SHORT"), isinstance(peer, Java)
    costs = Costs(relay)
    a_password_withdrawn_for_a_while(kafka, user, client, costs, may_fail=lambda record: is_java)
    failed = [error for _, error, _ in client.outcomes if error is not None]
    assert len(failed) <= costs.connections + 1 and bool(failed) == is_java
    assert all(isinstance(error, errors.AuthenticationFailed) for error in failed)


def test_se_03_sessions_are_renewed_by_java(secure_kafka: KafkaCluster, javas: Java) -> None:
    kafka, topic = secure_kafka, new_topic(secure_kafka, partitions=2)
    settings = settings_for(kafka, "SHORT", "SCRAM-SHA-512", "alice")
    sender = javas(kafka.servers("SHORT"), settings)(topic)
    client = SteadyClient(None, topic, "java", producer=sender.producer, burst=5, pause_s=0.02)
    sessions_are_renewed(kafka, kafka.relay("SHORT"), client, SESSIONS_S)


@pytest.mark.long
def test_se_05_short_lived_tokens_of_librdkafka(
    secure_kafka: KafkaCluster, librdkafka: Librdkafka, issuer: TokenServer
) -> None:
    """SE-03 besides. Under load the broker may refuse a renewal for its SASL state. librdkafka connects again then,
    and no record is lost."""
    kafka, topic = secure_kafka, new_topic(secure_kafka, partitions=2)
    issuer.lifetime_s = 6.0
    sender = librdkafka(kafka.servers("TOKENS"), oidc(kafka, issuer) | SHORT_LIVED)(topic)
    client = SteadyClient(None, topic, "librdkafka", producer=sender.producer, burst=5, pause_s=0.02)
    tokens_are_renewed(kafka, issuer, client, connections_max=20)


@pytest.mark.long
def test_se_05_short_lived_tokens_of_java(
    secure_kafka: KafkaCluster, javas: Java, issuer: TokenServer
) -> None:
    kafka, topic = secure_kafka, new_topic(secure_kafka, partitions=2)
    issuer.lifetime_s = 6.0
    sender = javas(kafka.servers("TOKENS"), oidc(kafka, issuer) | SHORT_LIVED)(topic)
    client = SteadyClient(None, topic, "java", producer=sender.producer, burst=5, pause_s=0.02)
    tokens_are_renewed(kafka, issuer, client)


@pytest.mark.long
def test_se_05_an_expired_token_of_java(secure_kafka: KafkaCluster, javas: Java, issuer: TokenServer) -> None:
    """The record fails by the login. It never asks for another token: only its successor delivers. One beside it would
    share its login."""
    kafka, topic = secure_kafka, new_topic(secure_kafka)
    issuer.fault = Fault.EXPIRED
    settings = oidc(kafka, issuer) | NO_TOKEN
    with javas(kafka.servers("TOKENS"), settings)(topic) as sender:
        with pytest.raises(ConditionTimeout, match="a record after the endpoint was mended"):
            no_good_token(kafka, issuer, sender, mended_s=2.0)
        assert isinstance(sender.outcomes()[0].error, errors.AuthenticationFailed)
        assert not any(each.error is None for each in sender.outcomes())
    javas.end()
    assert javas(kafka.servers("TOKENS"), settings)(topic).send().exception(20) is None


@pytest.mark.long
def test_se_05_a_token_endpoint_that_is_down_for_java(
    secure_kafka: KafkaCluster, javas: Java, issuer: TokenServer
) -> None:
    """It asks for its first token in its constructor, and is not made without one."""
    kafka, topic = secure_kafka, new_topic(secure_kafka)
    issuer.fault, asked = Fault.DOWN, len(issuer.requests)
    settings = oidc(kafka, issuer) | NO_TOKEN
    with pytest.raises(errors.SidecarError, match="Failed to construct kafka producer"):
        javas(kafka.servers("TOKENS"), settings)
    assert len(issuer.requests) - asked <= 30
    issuer.fault = None
    assert javas(kafka.servers("TOKENS"), settings)(topic).send().exception(20) is None


@pytest.mark.long
@pytest.mark.parametrize("fault", [Fault.EXPIRED, Fault.DOWN])
def test_se_05_no_good_token_of_librdkafka(
    secure_kafka: KafkaCluster, librdkafka: Librdkafka, issuer: TokenServer, fault: Fault
) -> None:
    """The record is reported as timed out; the cause comes by the callback for errors."""
    kafka = secure_kafka
    issuer.fault = fault
    open_sender = librdkafka(kafka.servers("TOKENS"), oidc(kafka, issuer) | NO_TOKEN)
    with open_sender(new_topic(kafka)) as sender:
        error = no_good_token(kafka, issuer, sender)
    assert isinstance(error, errors.DeliveryTimeout), error
    assert any(each.startswith("_AUTHENTICATION") for each in librdkafka.producers[0].said)


def test_se_04_good_ones_deliver(secure_kafka: KafkaCluster, peer: Librdkafka | Java, tmp_path: Path) -> None:
    """The ways that the peer has settings for: librdkafka reads no PKCS12 truststore, Java no PEM key and certificate
    in two files."""
    unknown = "ssl.truststore.location" if peer.name == "librdkafka" else "ssl.certificate.location"
    cases = [each for each in good_ones(secure_kafka, tmp_path) if unknown not in each[1]]
    assert len(cases) >= 4
    good_ones_deliver(secure_kafka, peer, cases)


def test_se_04_bad_ones_are_refused_by_librdkafka(
    secure_kafka: KafkaCluster, librdkafka: Librdkafka, tmp_path: Path
) -> None:
    """Each record is reported as timed out. The callback for errors has the cause, as far as there is one. A wrong
    host name, dates and CA are one text, and TLS spoken to as plaintext is none."""
    cases = bad_ones(secure_kafka, tmp_path)
    found = bad_ones_are_refused(secure_kafka, [librdkafka(*way) for _, *way in cases])
    assert all(isinstance(error, errors.DeliveryTimeout) for error in found), found
    for (words, _, _), producer in zip(cases, librdkafka.producers, strict=True):
        expected = {"plaintext port": "PLAINTEXT", "TLS": "_ALL_BROKERS_DOWN"}.get(words, "certificate")
        assert any(expected in each for each in producer.said), (words, producer.said)


def test_se_04_bad_ones_are_refused_by_java(secure_kafka: KafkaCluster, javas: Java, tmp_path: Path) -> None:
    """Records fail by the handshake, which names no cause. Plaintext to a TLS port is left out: Java takes the alert
    for the length of an answer, and its 352 MB end the thread of a small JVM."""
    cases = [each for each in bad_ones(secure_kafka, tmp_path) if each[0] != "TLS"]
    found = bad_ones_are_refused(secure_kafka, [javas(*way) for _, *way in cases])
    for (words, _, _), error in zip(cases, found, strict=True):
        expected = "not present in metadata" if words == "plaintext port" else "handshake"
        assert expected in str(error), (words, error)


def test_se_06_a_forbidden_topic_fails_alone(secure_kafka: KafkaCluster, peer: Librdkafka | Java) -> None:
    """librdkafka's error does not name the topic."""
    kafka = secure_kafka
    open_sender = peer(kafka.servers("SASL_PLAINTEXT"), settings_of_bob(kafka))
    found = a_forbidden_topic_fails_alone(kafka, open_sender)
    assert all(("secure-" in str(error)) is isinstance(peer, Java) for error in found), found


@pytest.mark.long
@pytest.mark.parametrize("kind", ["daemon", "librdkafka", "java"])
def test_connections_while_logins_are_refused(
    secure_kafka: KafkaCluster,
    start_daemon: StartDaemon,
    request: pytest.FixtureRequest,
    kind: str,
) -> None:
    """Prints how many connections a client makes in 10 s to a broker that refuses its login."""
    kafka = secure_kafka
    fixture = {"java": "javas", "librdkafka": "librdkafka"}.get(kind)
    open_client: OpenClient = request.getfixturevalue(fixture) if fixture else Daemons(start_daemon)
    settings = settings_of(kafka, f"nobody-{kind}", "a password")
    relay = kafka.relay("SASL_PLAINTEXT")
    sender = open_client(kafka.servers("SASL_PLAINTEXT"), settings)(new_topic(kafka))
    sender.send()
    costs = Costs(relay)
    wait_until(lambda: costs.connections > 0, "the first login")
    costs, began_s = Costs(relay), time.monotonic()
    wait_until(lambda: seconds_since(began_s) > LASTS_S, "ten seconds of refused logins")
    print(f"\n{kind}: {costs.connections} connections in 10 s")
    if kind == "daemon":
        costs.check()
