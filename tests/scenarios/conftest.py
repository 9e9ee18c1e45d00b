"""Harnesses of the scenarios: one fake broker and one daemon per module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.token_server import TokenServer

from .harness import FAST, Harness, pool_is_whole
from .java_producers import JavaProducers
from .secure import CLIENT_SECRET, secure_cluster


@pytest.fixture(scope="session")
def java() -> Iterator[JavaProducers]:
    with JavaProducers() as made:
        yield made


@pytest.fixture(scope="session")
def tokens() -> Iterator[TokenServer]:
    """Gives tokens to the client ``alice``; tests leave it without a fault."""
    with TokenServer(clients={"alice": CLIENT_SECRET}) as server:
        yield server


@pytest.fixture(scope="session")
def secure_kafka(tokens: TokenServer) -> Iterator[KafkaCluster]:
    """A real Kafka with TLS, SASL and ACLs."""
    with secure_cluster(tokens) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def module_harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """``SETTINGS`` and ``RECEIVE_BUFFER_BYTES`` of the module, where it has them, say what is different."""
    settings = {**FAST, **getattr(request.module, "SETTINGS", {})}
    with (
        FakeBroker(
            nodes=2, receive_buffer_bytes=getattr(request.module, "RECEIVE_BUFFER_BYTES", None)
        ) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon,
    ):
        made = Harness(kafka, daemon)
        yield made
        kafka.clear_rules()
        with made.sender(made.new_topic()) as probe:
            pool_is_whole(daemon, probe)


@pytest.fixture
def harness(module_harness: Harness) -> Iterator[Harness]:
    """The module's harness without rules of other tests."""
    yield module_harness
    module_harness.kafka.clear_rules()
    module_harness.kafka.judge_record = None
    module_harness.kafka.throttle_ms = 0
