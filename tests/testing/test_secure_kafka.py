"""The secure listeners of the test kit, judged by clients that are not ours: librdkafka and Kafka's own producer."""

from __future__ import annotations

import itertools
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.tools.testing.certificates import LOCAL_HOSTS, CertificateAuthority
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_listeners import SCRAM, Listener
from sidecar.tools.testing.kafka_topics import quiet_config
from sidecar.tools.testing.reading import end_offsets
from sidecar.tools.testing.token_server import Fault, TokenServer
from sidecar.tools.testing.waiting import wait_until
from tests.scenarios.java_harness import java_settings
from tests.scenarios.java_producers import JavaProducers
from tests.scenarios.peers import java_security

pytestmark = [pytest.mark.kafka, pytest.mark.process]

TOPIC = "secured"
ODD_PASSWORD = "p ä\"',;=\\${x} #%"
USERS = {"alice": "alice's secret", "bob": ODD_PASSWORD}
_serial = itertools.count(1)


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenServer]:
    with TokenServer(clients={"alice": "client secret"}) as server:
        yield server


@pytest.fixture(scope="module")
def secure(tokens: TokenServer) -> Iterator[KafkaCluster]:
    authority = CertificateAuthority()
    listeners = [
        Listener("SSL", relayed=True),
        Listener("SSL", "MUTUAL", client_auth="required"),
        Listener("SSL", "ASKING", client_auth="requested"),
        Listener("SSL", "ELSEWHERE", certificate=authority.issue("broker", hosts=("broker.example",))),
        Listener(
            "SSL", "EXPIRED", certificate=authority.issue("b", hosts=LOCAL_HOSTS, begins_s=-99, ends_s=-9)
        ),
        Listener(
            "SSL", "EARLY", certificate=authority.issue("b", hosts=LOCAL_HOSTS, begins_s=3600, ends_s=7200)
        ),
        Listener("SASL_PLAINTEXT", mechanisms=("PLAIN", *SCRAM), users=USERS),
        Listener("SASL_SSL", mechanisms=("PLAIN", *SCRAM, "OAUTHBEARER"), users=USERS, jwks=tokens.jwks),
        Listener("SASL_PLAINTEXT", "UNSIGNED", mechanisms=("OAUTHBEARER",)),
        Listener("SASL_SSL", "SHORT", mechanisms=("SCRAM-SHA-256",), users=USERS, reauth_ms=1000),
        Listener("SSL", "OLD_TLS", tls=("TLSv1.2",)),
    ]
    with KafkaCluster(
        topics={TOPIC: 1}, listeners=listeners, authority=authority, acls=True, super_users=["alice", "bob"]
    ) as cluster:
        yield cluster


class Refused(Exception):
    """The client gave up; the text is what it said meanwhile."""


def produce(cluster: KafkaCluster, listener: str, settings: dict[str, Any], *, topic: str = TOPIC) -> int:
    """One record by librdkafka; its offset. Raises Refused with what it said."""
    from confluent_kafka import Producer

    said: list[str] = []
    done: list[Any] = []
    producer = Producer(
        quiet_config(
            cluster.servers(listener),
            {"message.timeout.ms": 8000, **settings, "error_cb": lambda error: said.append(error.str())},
        )
    )
    producer.produce(
        topic, b"by librdkafka", on_delivery=lambda error, message: done.append((error, message))
    )
    wait_until(
        lambda: (producer.poll(0.05), done or any("SSL" in each or "SASL" in each for each in said))[1],
        "librdkafka",
        timeout_s=20,
    )
    producer.purge()
    if not done or done[0][0] is not None:
        raise Refused(f"{done[0][0] if done else ''} {said}")
    return int(done[0][1].offset())


def settings_for(cluster: KafkaCluster, listener: str, mechanism: str, user: str) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER" and listener == "UNSIGNED":
        return {
            **cluster.client_settings(listener, mechanism),
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": "principal=alice",
        }
    return cluster.client_settings(listener, mechanism, user)


WAYS = [
    ("SSL", ""),
    ("ASKING", ""),
    ("OLD_TLS", ""),
    *(("SASL_PLAINTEXT", each) for each in ("PLAIN", *SCRAM)),
    *(("SASL_SSL", each) for each in ("PLAIN", *SCRAM)),
    ("UNSIGNED", "OAUTHBEARER"),
    ("SHORT", "SCRAM-SHA-256"),
]


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_librdkafka_by_every_listener(secure: KafkaCluster, listener: str, mechanism: str) -> None:
    for user in USERS if mechanism and mechanism != "OAUTHBEARER" else [""]:
        assert produce(secure, listener, settings_for(secure, listener, mechanism, user)) >= 0


def java_words(cluster: KafkaCluster, listener: str, mechanism: str, user: str) -> dict[str, object]:
    """The same way in, as Kafka's own producer wants it."""
    found = java_security(cluster.client_settings(listener, mechanism, user))
    if mechanism == "OAUTHBEARER":
        module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
        found["sasl.jaas.config"] = f'{module} required unsecuredLoginStringClaim_sub="alice";'
    return found


def test_java_by_every_listener(secure: KafkaCluster) -> None:
    with JavaProducers() as java:
        for listener, mechanism in WAYS:
            user = "bob" if mechanism and mechanism != "OAUTHBEARER" else ""
            settings = java_settings(secure.servers(listener), java_words(secure, listener, mechanism, user))
            producer = java.open(settings)
            sent = producer.send(TOPIC, b"by Java", thread="one")
            assert sent.result(20).offset >= 0, (listener, mechanism)
            producer.close(5)


def test_a_signed_token_of_the_token_server(secure: KafkaCluster, tokens: TokenServer) -> None:
    settings = {
        **secure.client_settings("SASL_SSL", "OAUTHBEARER"),
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "alice",
        "sasl.oauthbearer.client.secret": "client secret",
        "sasl.oauthbearer.token.endpoint.url": tokens.token_url,
    }
    assert produce(secure, "SASL_SSL", settings) >= 0
    assert tokens.requests[-1].client_id == "alice"
    with pytest.raises(Refused):
        produce(secure, "SASL_SSL", {**settings, "sasl.oauthbearer.client.secret": "another"})
    for fault in (Fault.UNAUTHORIZED, Fault.HTML, Fault.FORGED, Fault.EXPIRED):
        tokens.fault = fault
        try:
            with pytest.raises(Refused):
                produce(secure, "SASL_SSL", settings)
        finally:
            tokens.fault = None


def test_wrong_servers_and_wrong_words_are_refused(secure: KafkaCluster) -> None:
    plain = secure.client_settings("SSL")
    for listener in ("ELSEWHERE", "EXPIRED", "EARLY"):
        with pytest.raises(Refused, match=r"(?i)certificate"):
            produce(secure, listener, plain)
    assert produce(secure, "ELSEWHERE", {**plain, "ssl.endpoint.identification.algorithm": "none"}) >= 0
    with pytest.raises(Refused, match=r"(?i)certificate"):
        produce(secure, "SSL", {"security.protocol": "SSL"})
    wrong = {**secure.client_settings("SASL_SSL", "SCRAM-SHA-256", "alice"), "sasl.password": "wrong"}
    with pytest.raises(Refused, match=r"(?i)authentication"):
        produce(secure, "SASL_SSL", wrong)


def test_client_certificates(secure: KafkaCluster, tmp_path: Path) -> None:
    plain = secure.client_settings("MUTUAL")
    with pytest.raises(Refused):
        produce(secure, "MUTUAL", plain)
    mine = secure.authority.issue("alice")
    pem = mine.write(tmp_path / "alice.pem", password="key secret")
    store = tmp_path / "alice.p12"
    store.write_bytes(mine.pkcs12("key secret"))
    by_pem = {
        "ssl.certificate.location": str(pem),
        "ssl.key.location": str(pem),
        "ssl.key.password": "key secret",
    }
    by_store = {"ssl.keystore.location": str(store), "ssl.keystore.password": "key secret"}
    for more in (by_pem, by_store):
        assert produce(secure, "MUTUAL", {**plain, **more}) >= 0
    stranger = CertificateAuthority().issue("alice").write(tmp_path / "stranger.pem")
    with pytest.raises(Refused):
        produce(
            secure,
            "MUTUAL",
            {**plain, "ssl.certificate.location": str(stranger), "ssl.key.location": str(stranger)},
        )


def test_a_certificate_and_its_authority_are_replaced_while_running(
    secure: KafkaCluster, tmp_path: Path
) -> None:
    plain = secure.client_settings("SSL")
    other = CertificateAuthority()
    secure.security().rotate("SSL", other.issue("broker-2", hosts=LOCAL_HOSTS), trusted=(other,))
    try:
        with pytest.raises(Refused, match=r"(?i)certificate"):
            produce(secure, "SSL", plain)
        new = other.write(tmp_path / "ca.pem")
        assert produce(secure, "SSL", {**plain, "ssl.ca.location": str(new)}) >= 0
    finally:
        secure.security().rotate(
            "SSL", secure.authority.issue("broker", hosts=LOCAL_HOSTS), trusted=(secure.authority,)
        )
    assert produce(secure, "SSL", plain) >= 0


def test_users_come_and_go(secure: KafkaCluster) -> None:
    operator = secure.security()
    settings = {**secure.client_settings("SASL_SSL", "SCRAM-SHA-512", "alice"), "sasl.username": "carol"}
    topic = f"carol-{next(_serial)}"
    secure.create_topics({topic: 1})
    with pytest.raises(Refused, match=r"(?i)authentication"):
        produce(secure, "SASL_SSL", settings, topic=topic)
    operator.set_scram_user("carol", settings["sasl.password"], "SCRAM-SHA-512")
    with pytest.raises(Refused, match=r"(?i)authorization"):
        produce(secure, "SASL_SSL", settings, topic=topic)
    operator.grant("carol", "WRITE", topic)
    assert produce(secure, "SASL_SSL", settings, topic=topic) == 0
    operator.withdraw("carol", "WRITE", topic)
    with pytest.raises(Refused, match=r"(?i)authorization"):
        produce(secure, "SASL_SSL", settings, topic=topic)
    operator.remove_scram_user("carol", "SCRAM-SHA-512")
    with pytest.raises(Refused, match=r"(?i)authentication"):
        produce(secure, "SASL_SSL", settings, topic=topic)


def test_the_relay_counts_cuts_and_refuses(secure: KafkaCluster) -> None:
    relay = secure.relay("SSL")
    before = len(relay.accepted_s)
    context = ssl.create_default_context(cadata=secure.authority.certificate_pem)
    with (
        socket.create_connection(("127.0.0.1", relay.port)) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped,
    ):
        assert len(relay.accepted_s) == before + 1
        assert relay.accepted_s[-1] <= time.monotonic()
        wait_until(lambda: relay.open_connections == 1, "one open connection")
        relay.cut()
        wrapped.settimeout(10)
        assert wrapped.recv(1) == b""
    wait_until(lambda: relay.open_connections == 0, "no open connection")
    relay.refuse()
    try:
        with socket.create_connection(("127.0.0.1", relay.port)) as raw:
            raw.settimeout(10)
            assert raw.recv(1) == b""
    finally:
        relay.go_on()
    assert produce(secure, "SSL", secure.client_settings("SSL")) >= 0
    assert end_offsets(secure.bootstrap_servers, TOPIC)[0] > 0
