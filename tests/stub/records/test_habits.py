"""A first program by the habits of another client gets a sentence that says what to do here."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
from pathlib import Path
from typing import Any, Final

import pytest

import client_stub
from client_stub import Producer, errors
from client_stub.contract.wire import OutcomeKind
from client_stub.testing import FakeProducer
from tests.stub.fake_daemon import FakeDaemon

ROOT: Final = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("configuration", [{"bootstrap.servers": "localhost:9092"}, {}])
def test_a_configuration_in_place_of_a_run_dir(configuration: dict[str, str]) -> None:
    with pytest.raises(TypeError, match=r"run_dir is a path, not a configuration: .* A producer needs none"):
        Producer(configuration)  # type: ignore[arg-type]


def test_brokers_in_place_of_a_run_dir(daemon: FakeDaemon) -> None:
    for servers in ("localhost:9092", "a:1,b.example.org:2"):
        with pytest.raises(ValueError, match=rf"not a list of brokers \({servers}\)"):
            Producer(servers)
    Producer(str(daemon.run_dir)).close()


def test_await_of_a_delivery_names_the_producer_that_is_awaited(producer: Producer) -> None:
    fake = FakeProducer()
    rows: list[tuple[None, bytes]] = [(None, b"x")]
    deliveries = [each.send("orders", b"x") for each in (producer, fake)]
    deliveries += [each.send_many("orders", rows) for each in (producer, fake)]  # type: ignore[misc]

    async def wait(delivery: Any) -> None:
        await delivery

    for delivery in deliveries:
        words = (
            f"^A {type(delivery).__name__} cannot be awaited: .* take AsyncProducer in place of Producer.$"
        )
        with pytest.raises(TypeError, match=words):
            asyncio.run(wait(delivery))
        # A framework that awaits what a handler returned, if it can be awaited, takes it as it is.
        assert not inspect.isawaitable(delivery) and not hasattr(delivery, "__await__")


def test_the_repr_of_a_delivery_shows_its_outcome(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.deliver = None
    delivery = producer.send("orders", b"x")
    producer.flush(10, until="accepted")
    assert repr(delivery) == "<Delivery to orders: no outcome yet>"
    daemon.do(daemon.deliver_log)
    delivery.result(10)
    assert repr(delivery) == "<Delivery to orders: partition 0, offset 0>"
    daemon.deliver = lambda client, submit: daemon.outcome(client, submit, kind=OutcomeKind.FAILED, code=29)
    failed = producer.send("orders", b"x")
    assert isinstance(failed.exception(10), errors.TopicAuthorizationFailed)
    assert repr(failed) == "<Delivery to orders: failed, TOPIC_AUTHORIZATION_FAILED>"


def test_the_version_is_the_installed_one() -> None:
    assert client_stub.__version__ == importlib.metadata.version("kafka-sidecar")
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        client_stub.nothing_of_the_kind  # noqa: B018
