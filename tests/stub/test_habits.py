"""A first program by the habits of another client gets a sentence that says what to do here."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import client_stub
from client_stub import AsyncProducer, Producer, errors
from client_stub.wire import OutcomeKind
from tests.stub.fake_daemon import FakeDaemon

ROOT: Final = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("configuration", [{"bootstrap.servers": "localhost:9092"}, {}])
def test_a_configuration_in_place_of_a_run_dir(configuration: dict[str, str]) -> None:
    with pytest.raises(TypeError, match=r"run_dir is a path, not a configuration: .* A producer needs none"):
        Producer(configuration)  # type: ignore[arg-type]


def test_brokers_in_place_of_a_run_dir(daemon: FakeDaemon) -> None:
    for servers in ("localhost:9092", "a:1,b.example.org:2"):
        with pytest.raises(ValueError, match=rf"not a list of brokers \({servers}\)"):
            Producer(servers)
    Producer(str(daemon.run_dir)).close()


@pytest.mark.parametrize(("name", "hint"), [("produce", r"send\("), ("poll", "nothing need be polled")])
def test_calls_of_other_clients(daemon: FakeDaemon, name: str, hint: str) -> None:
    for producer in (Producer(daemon.run_dir), AsyncProducer(daemon.run_dir)):
        with pytest.raises(AttributeError, match=hint):
            getattr(producer, name)
        assert not hasattr(producer, "nothing_of_the_kind")


UNCAUGHT = """
import sys
from client_stub import AsyncProducer

AsyncProducer(sys.argv[1]).start()
"""


def test_the_traceback_of_an_unknown_call_has_one_hint(daemon: FakeDaemon) -> None:
    """Python adds a "Did you mean: 'stats'?" of its own to the error that it shows."""
    ended = subprocess.run(
        [sys.executable, "-c", UNCAUGHT, str(daemon.run_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.stderr.splitlines()[-1] == (
        "AttributeError: AsyncProducer has no attribute 'start': nothing need be started: the first send does it."
    )


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
