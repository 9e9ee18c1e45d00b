"""A first program by the habits of another client gets a sentence that says what to do here."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

import client_stub
from client_stub import AsyncProducer, BulkDelivery, Delivery, Producer, errors
from client_stub.contract.wire import OutcomeKind
from client_stub.records import habits
from client_stub.testing import FakeAsyncProducer, FakeProducer
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


@pytest.mark.parametrize("kind", [Producer, AsyncProducer, FakeProducer, FakeAsyncProducer])
def test_calls_of_other_clients(daemon: FakeDaemon, kind: Any) -> None:
    """``__getattr__`` would make each look-up of a method slower, also those that succeed."""
    assert "__getattr__" not in dir(kind)
    producer = kind(daemon.run_dir)
    assert not hasattr(producer, "nothing_of_the_kind")
    assert {"send", "send_many", "close"} <= set(dir(producer)) and "produce" not in dir(producer)

    class Own(kind):  # type: ignore[misc]
        def poll(self) -> int:
            return 5

    class Polls:
        poll_count = start = 3

        def poll(self) -> int:
            return self.poll_count

    class Mixed(kind, Polls):  # type: ignore[misc]
        """The hints of our class hide no method of the class behind it."""

    assert "poll" in dir(Own(daemon.run_dir)) and Own(daemon.run_dir).poll() == 5
    mixed = Mixed(daemon.run_dir)
    mixed.stop = None
    assert {"poll", "stop"} <= set(dir(mixed)) and "metrics" not in dir(mixed)
    assert mixed.poll() == Mixed.poll(mixed) == mixed.start == 3 and not hasattr(mixed, "metrics")
    for name, hint in habits.CALLS.items():
        if hasattr(kind, name):
            assert name in {"send_and_wait", "__enter__", "__aenter__"}
            continue
        assert not hasattr(producer, name) and not hasattr(kind, name)
        with pytest.raises(AttributeError) as raised:
            getattr(producer, name)
        assert str(raised.value) == f"{kind.__name__} has no attribute {name!r}: {hint}."


@pytest.mark.parametrize("kind", [BulkDelivery, Delivery])
def test_names_of_other_futures(kind: type) -> None:
    assert "__getattr__" not in dir(kind)
    delivery = kind.__new__(kind)
    for name, hint in habits.FUTURES.items():
        assert not hasattr(kind, name)
        with pytest.raises(AttributeError) as raised:
            getattr(delivery, name)
        assert str(raised.value) == f"{kind.__name__} has no attribute {name!r}: {hint}."


def test_with_and_async_with_name_each_other(daemon: FakeDaemon) -> None:
    for kind in (AsyncProducer, FakeAsyncProducer):
        with (
            pytest.raises(AttributeError, match=f"^{kind.__name__} .* it is `async with`"),
            kind(daemon.run_dir),
        ):
            pass
        assert not isinstance(kind(daemon.run_dir), contextlib.AbstractContextManager)

    async def enter(kind: Any) -> None:
        async with kind(daemon.run_dir):
            pass

    for kind in (Producer, FakeProducer):
        with pytest.raises(AttributeError, match=f"^{kind.__name__} .* AsyncProducer has `async with`"):
            asyncio.run(enter(kind))
        assert not isinstance(kind(daemon.run_dir), contextlib.AbstractAsyncContextManager)


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


UNCAUGHT = """
import sys
from client_stub import AsyncProducer

AsyncProducer(sys.argv[1]).{}()
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("start", "AsyncProducer has no attribute 'start': nothing need be started: the first send does it."),
        ("send_may", "'AsyncProducer' object has no attribute 'send_may'. Did you mean: 'send_many'?"),
    ],
)
def test_the_traceback_of_an_unknown_call_has_one_hint(daemon: FakeDaemon, name: str, line: str) -> None:
    """Python would add a "Did you mean: 'stats'?" of its own to ours."""
    ended = subprocess.run(
        [sys.executable, "-c", UNCAUGHT.format(name), str(daemon.run_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.stderr.splitlines()[-1] == f"AttributeError: {line}"


def test_a_delivery_shows_what_became_of_it(producer: Producer, daemon: FakeDaemon) -> None:
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
