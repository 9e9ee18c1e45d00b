"""Refusals of send() itself: ER-04 on the fake broker. Nothing is queued, and the producer continues."""

from __future__ import annotations

from typing import Any

import pytest

from client_stub import errors
from sidecar.tools.testing.metrics import metric

from .harness import METRIC, Harness

pytestmark = [pytest.mark.process]

SETTINGS = {"max.block.ms": 1_000}
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"partition": -1}, ValueError, "Invalid partition: -1"),
    ({"partition": "0"}, TypeError, "partition must be int or None, not str"),
    ({"partition": True}, TypeError, "partition must be int or None, not bool"),
    ({"timestamp_ms": -1}, ValueError, "Invalid timestamp: -1"),
    ({"timestamp_ms": 1.5}, TypeError, "timestamp_ms must be int or None, not float"),
    ({"value": "text"}, TypeError, r"value must be bytes or None, not str; encode it first"),
    ({"key": "text"}, TypeError, r"key must be bytes or None, not str; encode it first"),
    ({"headers": [("name", "text")]}, TypeError, "the value of header 'name' must be bytes or None"),
    ({"headers": [(b"name", b"")]}, TypeError, "a header's name must be str, not bytes"),
    ({"topic": None}, TypeError, "topic must be str, not NoneType"),
    ({"topic": ""}, ValueError, "Topic name '' is not valid"),
]


def test_er_04_send_refuses(harness: Harness) -> None:
    """ER-04: a wrong type or range is raised by send() itself. Nothing goes to the daemon, no empty batch to the
    broker, and the records before and after are neighbours in the log."""
    topic, sender = harness.primed()
    with sender:
        submissions = metric(harness.daemon, f"{METRIC}submissions_total")
        requests = len(harness.produced(topic))
        for wrong, kind, words in WRONG:
            with pytest.raises(kind, match=words):
                sender.producer.send(**{"topic": topic, "value": b"x", **wrong})
            if "topic" not in wrong:
                row = {"key": None, "value": b"x", "headers": None, "partition": None, "timestamp_ms": None}
                with pytest.raises(kind, match=words):
                    sender.producer.send_many(topic, [(b"k", b"v"), tuple({**row, **wrong}.values())])
        sender.producer.flush(10)
        assert metric(harness.daemon, f"{METRIC}submissions_total") == submissions
        assert len(harness.produced(topic)) == requests
        sender.send()
        assert sender.offsets() == [0, 1]
        harness.balance(sender)
    assert len(harness.produced(topic)) == requests + 1
    assert all(batch.header.record_count == 1 for batch in harness.kafka.batches(topic))


def test_er_04_a_partition_that_is_not_there(harness: Harness) -> None:
    """ER-04: whether partition 99 exists only the daemon can find out: the record waits max.block.ms for it, then
    fails alone, and nothing was sent."""
    topic, sender = harness.primed()
    with sender:
        requests = len(harness.produced(topic))
        lost = sender.producer.send(topic, b"x", partition=99)
        sender.send()
        error = lost.exception(10)
        assert isinstance(error, errors.InvalidPartition)
        assert f" is not in the range [0...1) of topic {topic}" in str(error)
        assert error.persistence == 0
        assert sender.offsets() == [0, 1]
        harness.balance(sender)
    assert len(harness.produced(topic)) == requests + 1
