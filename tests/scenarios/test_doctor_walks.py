"""`kafka-sidecar doctor` on a real Kafka, step by step, and on ports that are something else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from sidecar.config.loader import load_config
from sidecar.doctor.findings import Finding
from sidecar.doctor.kafka import BROKERS_MAX, kafka_findings
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.token_server import Fault, TokenServer

from .secure import CLIENT_SECRET, new_topic

pytestmark = [pytest.mark.process, pytest.mark.kafka]


def walk(servers: str, settings: Mapping[str, str], *topics: str) -> list[Finding]:
    words = [f"{name}={value}" for name, value in {**settings, "bootstrap.servers": servers}.items()]
    config = load_config(None, words, environment={})

    async def all_of_it() -> list[Finding]:
        return [finding async for finding in kafka_findings(config, topics)]

    return asyncio.run(all_of_it())


def failures(found: list[Finding]) -> str:
    """Each finding is one sentence; of those that fail, the text."""
    for _, text in found:
        assert text[-1] in ".?" and "\n" not in text and "?." not in text and "(id -" not in text
    return "\n".join(text for mark, text in found if mark == "FAIL")


def test_all_steps_of_a_good_broker(secure_kafka: KafkaCluster) -> None:
    kafka, operator = secure_kafka, secure_kafka.security()
    allowed, described, hidden = (new_topic(kafka) for _ in range(3))
    operator.grant("bob", "WRITE", allowed)
    operator.grant("bob", "DESCRIBE", described)
    settings = kafka.client_settings("SASL_SSL", "SCRAM-SHA-512", "bob")
    found = walk(kafka.servers("SASL_SSL"), settings, allowed)
    assert not failures(found) and {mark for mark, _ in found} == {"ok"}
    text = "\n".join(text for _, text in found)
    for words in (
        "accepts connections",
        "TLSv1.3",
        "expires in 29 days",
        "for localhost",
        "SCRAM-SHA-512 of bob",
    ):
        assert words in text
    assert f"Topic {allowed} has 1 partition, and bob may write to it." in text
    said = failures(walk(kafka.servers("SASL_SSL"), settings, allowed, described, hidden))
    assert said.splitlines() == [
        f"Topic {described} has 1 partition, and bob may not write to it; grant it Write.",
        f"Topic {hidden}: bob may not see it; grant it Write.",
    ]


@pytest.mark.parametrize(
    ("listener", "words"),
    [
        ("ELSEWHERE", "only for broker.example"),
        ("EXPIRED", "has expired on"),
        ("EARLY", "is not valid before"),
        ("MUTUAL", "client certificate"),
    ],
)
def test_the_first_step_that_fails_is_explained(
    secure_kafka: KafkaCluster, listener: str, words: str
) -> None:
    found = walk(secure_kafka.servers(listener), secure_kafka.client_settings(listener), "any")
    assert words in failures(found)
    marks = [mark for mark, _ in found]
    assert marks[-1] == "skip" and marks.count("FAIL") == 1 and "ok" not in marks[marks.index("FAIL") :]


def test_wrong_ports_and_words(secure_kafka: KafkaCluster, start_daemon: StartDaemon) -> None:
    kafka = secure_kafka
    tls = kafka.client_settings("SSL")
    assert "plaintext port" in failures(walk(kafka.bootstrap_servers, tls))
    assert "it answers in TLS" in failures(walk(kafka.servers("SSL"), {}))
    assert "does it want a login" in failures(walk(kafka.servers("SASL_PLAINTEXT"), {}))
    wrong = {**kafka.client_settings("SASL_SSL", "PLAIN", "bob"), "sasl.password": "a wrong one"}
    said = failures(walk(kafka.servers("SASL_SSL"), wrong))
    assert "PLAIN" in said and "bob" in said and "a wrong one" not in said
    assert "correct bootstrap.servers, or" in failures(walk("no.such.name.invalid:9092", {}))
    both = walk(f"127.0.0.1:1,{kafka.bootstrap_servers}", {})
    assert not failures(both) and "warn" in {mark for mark, _ in both}
    none = walk("127.0.0.1:1,127.0.0.1:2", {})
    assert "No broker of bootstrap.servers" in failures(none)


def test_a_token_is_fetched_as_the_daemon_would(secure_kafka: KafkaCluster, tokens: TokenServer) -> None:
    settings = {
        **secure_kafka.client_settings("TOKENS", "OAUTHBEARER"),
        "sasl.oauthbearer.client.id": "alice",
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        "sasl.oauthbearer.token.endpoint.url": tokens.token_url,
    }
    found = walk(secure_kafka.servers("TOKENS"), settings)
    assert not failures(found) and "There is a token of alice" in "".join(text for _, text in found)
    tokens.fault = Fault.UNAUTHORIZED
    try:
        found = walk(secure_kafka.servers("TOKENS"), settings)
    finally:
        tokens.fault = None
    assert "401" in failures(found) and found[-1].mark == "skip"


def test_a_running_daemons_own_port_and_configuration(
    secure_kafka: KafkaCluster, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(secure_kafka.bootstrap_servers)
    http = str(daemon.info()["http"]).removeprefix("http://")
    assert "speaks HTTP" in failures(walk(http, {}))
    topic = new_topic(secure_kafka)
    shown = daemon.command("doctor", "--topic", topic, "--topic", "nowhere")
    assert shown.returncode == 1
    assert f"Topic {topic} has 1 partition, and the daemon's user may write to it." in shown.stdout
    assert "Topic nowhere does not exist" in shown.stdout


def test_a_cluster_of_many_brokers() -> None:
    """Each broker is walked to, up to a bound; the others are said."""
    nodes = BROKERS_MAX + 3
    with FakeBroker({"orders": 1}, nodes=nodes) as kafka:
        first, *others = kafka.bootstrap_servers.split(",")
        found = walk(first, {}, "orders")
        assert not failures(found)
        walked = [each for each in others if any(text.startswith(each) for _, text in found)]
        assert len(walked) == BROKERS_MAX
        assert found[-1] == ("skip", f"{nodes - 1 - BROKERS_MAX} more brokers were not tried.")
        kafka.stop_listening(2)
        assert "cannot be connected to" in failures(walk(first, {}, "orders"))
