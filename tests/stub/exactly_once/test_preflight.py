"""Goal: what the driver tries before any task fails for what is missing, and not for another driver that tries it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from client_stub.errors import ProducerFenced, TransactionError
from client_stub.spark import topic_check
from client_stub.spark.exactly_once import commit, preflight
from client_stub.spark.exactly_once.settings import ExactlyOnce, read_exactly_once
from client_stub.spark.options import read_options
from client_stub.testing import FakeProducer

SETTINGS: ExactlyOnce = read_exactly_once({})


def checked(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> list[str]:
    """The topics that were asked for by a driver whose init_transactions() raises ``error``."""
    asked: list[str] = []

    class Checking(FakeProducer):
        @property
        def engine(self) -> Any:
            return self._engine

        def init_transactions(self, timeout: float | None = None) -> None:
            if error is not None:
                raise error

        def last_committed(self, topic: str, *arguments: Any, **named: Any) -> Any:
            asked.append(topic)

    monkeypatch.setattr(commit, "InnerProducer", Checking)
    preflight.check_exactly_once(read_options({"sidecar.run_dir": "/run/there"}), SETTINGS)
    return asked


@pytest.mark.parametrize("error", [None, ProducerFenced("Another producer has initialized.")])
def test_driver_that_is_overtaken_by_another_one_checks_the_rest(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    assert checked(monkeypatch, error) == [SETTINGS.commits_topic]


def test_id_that_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^kafka_sidecar: Not authorised\.$"):
        checked(monkeypatch, TransactionError("Not authorised."))


def test_stream_tries_it_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commits find out what has changed since, and wait for brokers that are away; this check would not."""
    options = read_options({"sidecar.run_dir": "/run/there", "topic": "orders", "delivery": "exactly_once"})
    now_s, tried = 0.0, 0

    def check(options: object, settings: object) -> None:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise ValueError("kafka_sidecar: not now.")

    monkeypatch.setattr(topic_check, "_checked_s", {})
    monkeypatch.setattr(topic_check, "monotonic", lambda: now_s)
    monkeypatch.setattr(topic_check, "check_exactly_once", check)
    with pytest.raises(ValueError, match="not now"):
        topic_check.check_topic_of_stream(options)
    for _ in range(3):
        topic_check.check_topic_of_stream(options)
        now_s += 2 * topic_check.TOPIC_KNOWN_S
    assert tried == 2
