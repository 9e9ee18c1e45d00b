"""A broker that forgets producer ids while it refuses batches: order is kept, and nobody is told more than is known."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from math import inf

import pytest

from client_stub.contract.wire import Persistence
from sidecar.tools.testing.fault_rules import on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.waiting import wait_until

from .harness import Harness, Sender

pytestmark = [pytest.mark.process, pytest.mark.rule("S4")]

SETTINGS = {"metadata.max.age.ms": 300, "recover.unknown": "fail"}
NOT_ENOUGH_REPLICAS = 19


@pytest.fixture
def forgetful(harness: Harness) -> Iterator[Harness]:
    yield harness
    harness.kafka.producer_expiration_ms = inf


def three_with_the_first_refused(harness: Harness, sender: Sender, timestamp_ms: int | None = None) -> None:
    """One after the other; the first is refused once, and that is told when the others are accepted."""
    refused = harness.kafka.add(on(Api.PRODUCE, topic=sender.topic).refuse(NOT_ENOUGH_REPLICAS).hold_answer())
    before = harness.accepted()
    sender.send(timestamp_ms=timestamp_ms)
    refused.wait()
    for _ in range(2):
        sender.send(timestamp_ms=timestamp_ms)
    wait_until(lambda: harness.accepted() == before + 3, "the daemon to have all three", interval_s=0.05)
    refused.release()


def test_refused_after_a_silence(forgetful: Harness) -> None:
    """The id expires while nothing is sent; a batch behind the refused one waits for it."""
    topic, sender = forgetful.primed()
    forgetful.kafka.producer_expiration_ms = 1200.0
    with sender:
        wait_until(lambda: not forgetful.kafka.knows_producers(topic), "the broker to forget the producer id")
        three_with_the_first_refused(forgetful, sender)
        assert sender.offsets() == [0, 1, 2, 3]
        forgetful.balance(sender)


def test_refused_in_a_backfill_of_old_records(forgetful: Harness) -> None:
    """Under load: the id is forgotten as soon as it is known."""
    forgetful.kafka.producer_expiration_ms = 86_400_000.0
    old_ms = time.time_ns() // 1_000_000 - 3 * 86_400_000
    with forgetful.sender(forgetful.new_topic()) as sender:
        sender.send(timestamp_ms=old_ms)
        sender.offsets()
        for _ in range(3):
            three_with_the_first_refused(forgetful, sender, old_ms)
            sender.offsets()
        assert sender.offsets() == list(range(10))
        forgetful.balance(sender)


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_the_answer_to_old_records_is_lost(forgetful: Harness, is_forgotten: bool) -> None:
    """The broker is asked before they are sent again: it knows them, or nobody can say that it has them."""
    kafka = forgetful.kafka
    topic, sender = forgetful.primed()
    with sender:
        lost = kafka.add(on(Api.PRODUCE, topic=topic).cut_answer())
        asked = kafka.add(on(Api.DESCRIBE_PRODUCERS).hold())
        sender.send(timestamp_ms=time.time_ns() // 1_000_000 - 3 * 86_400_000)
        lost.wait()
        asked.wait()
        if is_forgotten:
            kafka.forget_producers(topic, 0)
        asked.release()
        outcome = sender.outcomes()[-1]
        if is_forgotten:
            assert outcome.error is not None
            assert outcome.error.persistence == Persistence.POSSIBLY_PERSISTED
        else:
            assert outcome.offset == 1
        sender.send()
        assert sender.outcomes()[-1].offset == 2, "nothing stands there twice"
        forgetful.balance(sender)


@pytest.mark.parametrize("is_refreshed", [True, False])
def test_refused_by_a_topic_that_was_made_anew(harness: Harness, is_refreshed: bool) -> None:
    """Whether the daemon has heard of the new topic by its own refresh, or hears of it by a refusal of the old id."""
    kafka = harness.kafka
    topic, sender = harness.primed()
    with sender:
        sender.send()
        sender.offsets()
        kafka.delete_topic(topic)
        kafka.create_topic(topic)
        if is_refreshed:
            asked = len(kafka.requests(Api.METADATA))
            wait_until(lambda: len(kafka.requests(Api.METADATA)) >= asked + 2, "a refresh of the metadata")
        three_with_the_first_refused(harness, sender)
        assert sender.offsets()[2:] == [0, 1, 2]


def test_forgotten_under_way_and_the_worker_killed(harness: Harness) -> None:
    """The first is refused, the id forgotten, the second appended, and the worker dies before it hears of either. The
    broker's last sequence is the second's: of the first that says nothing, and it is not there."""
    kafka = harness.kafka
    topic, sender = harness.primed()
    with sender:
        refused = kafka.add(on(Api.PRODUCE, topic=topic).refuse(NOT_ENOUGH_REPLICAS).hold_answer())
        lost = kafka.add(on(Api.PRODUCE, topic=topic).hold_answer())
        sender.send()
        refused.wait()
        kafka.forget_producers(topic, 0)
        sender.send()
        lost.wait()
        os.kill(harness.daemon.worker_pids()[0], signal.SIGKILL)
        _, first, second = sender.outcomes()
        assert first.error is not None and first.error.persistence == Persistence.POSSIBLY_PERSISTED
        assert second.offset == 1
        sender.send()
        assert sender.outcomes()[-1].offset == 2
        harness.balance(sender)
