"""Metadata under faults: MD-02, MD-03, MD-08, MD-11, MD-12, MD-13 on the fake broker."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from client_stub import errors
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.waiting import wait_until

from .harness import Harness

pytestmark = [pytest.mark.process]

UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER, STORAGE_ERROR = 3, 5, 6, 56
SETTINGS = {"max.block.ms": 3_000, "retry.backoff.ms": 100, "retry.backoff.max.ms": 1_000}


def asked(harness: Harness, since: int = 0) -> int:
    return len(harness.kafka.requests(Api.METADATA)) - since


def test_md_02_many_ask_for_one_topic(harness: Harness) -> None:
    """MD-02: 30 clients ask for a topic that is not there yet: refreshes are shared and keep their backoff."""
    before, began = asked(harness), time.monotonic()
    senders = [harness.sender("md-02") for _ in range(30)]
    for sender in senders:
        sender.send()
    wait_until(lambda: asked(harness, before) >= 2, "some refreshes")
    harness.kafka.create_topic("md-02", 1)
    for sender in senders:
        assert sender.outcomes()[0].error is None
    # At most one request per backoff, which is at least 80 ms, and two for the start.
    assert asked(harness, before) <= (time.monotonic() - began) / 0.08 + 2
    harness.balance(*senders)
    for sender in senders:
        sender.producer.close(5)


def test_md_03_a_topic_that_never_comes(harness: Harness) -> None:
    """MD-03: an unknown topic: its records fail after max.block.ms with its name, those of others go on."""
    topic = harness.new_topic()
    with harness.sender("md-03") as lost, harness.sender(topic) as found:
        lost.send()
        found.send()
        assert found.offsets() == [0]
        error = lost.outcomes()[0].error
        assert isinstance(error, errors.MetadataTimeout)
        assert "md-03" in str(error)
        assert error.persistence == 0


def test_md_08_a_topic_is_made_anew(harness: Harness) -> None:
    """MD-08, MD-10: deleted and made again under another id: the new one is found, addressed by its id, and filled."""
    topic, sender = harness.primed(2)
    with sender:
        harness.kafka.delete_topic(topic)
        harness.kafka.create_topic(topic, 2)
        sender.send()
        second = sender.outcomes()[-1]
        # The metadata push may come first and fail it as deleted; it is never lost or told wrongly.
        assert second.error is None or isinstance(second.error, errors.UnknownTopicOrPartition)
        sender.send()
        assert sender.outcomes()[-1].error is None
    assert len(harness.kafka.records(topic)) in (1, 2)


@pytest.mark.parametrize("with_hint", [True, False])
def test_md_11_leaders_move(harness: Harness, with_hint: bool) -> None:
    """MD-11: leaders move back and forth under load: nothing is lost or reordered; with the new leader in the answer
    no metadata is needed first."""
    topic, sender = harness.primed(2)
    harness.kafka.leader_hints = with_hint
    try:
        with sender:
            for round_ in range(6):
                for partition in (0, 1):
                    harness.kafka.move_leader(topic, partition, 1 + (round_ + partition) % 2)
                for number in range(100):
                    sender.send(number % 2)
                assert all(outcome.error is None for outcome in sender.outcomes())
            harness.balance(sender)
    finally:
        harness.kafka.leader_hints = True


def test_md_11_a_hint_is_enough(harness: Harness) -> None:
    """MD-11: NOT_LEADER with the new leader: the record gets there while metadata answers nothing."""
    topic, sender = harness.primed()
    with sender:
        harness.kafka.move_leader(topic, 0, 3 - harness.produced(topic)[0].node)
        mute = harness.kafka.add(on(Api.METADATA, times=ALWAYS).hold())
        sender.send()
        assert sender.offsets() == [0, 1]
        mute.remove()
        harness.balance(sender)


def test_md_12_a_storage_error_makes_no_storm(harness: Harness) -> None:
    """MD-12: one KAFKA_STORAGE_ERROR, the leader unchanged: delivered with at most 4 metadata requests."""
    topic, sender = harness.primed()
    with sender:
        before = asked(harness)
        harness.kafka.add(on(Api.PRODUCE, topic=topic).refuse(STORAGE_ERROR))
        sender.send()
        assert sender.offsets() == [0, 1]
        assert asked(harness, before) <= 4
        harness.balance(sender)


def test_md_13_a_first_answer_without_leaders(harness: Harness) -> None:
    """MD-13: LEADER_NOT_AVAILABLE for all, then a leader not among the brokers: asked until it is good."""
    topic = harness.new_topic(2)

    def unlisted(entity: Any) -> Any:
        topics = tuple(
            dataclasses.replace(
                each, partitions=tuple(dataclasses.replace(part, leader_id=99) for part in each.partitions)
            )
            for each in entity.topics
        )
        return dataclasses.replace(entity, topics=topics)

    for partition in (0, 1):
        harness.kafka.move_leader(topic, partition, -1)
    with harness.sender(topic) as sender:
        leaderless = harness.kafka.add(on(Api.METADATA, times=2).edit_answer(lambda entity: entity))
        sender.send(0)
        sender.send(1)
        leaderless.wait(2)
        wrong = harness.kafka.add(on(Api.METADATA, times=2).edit_answer(unlisted))
        for partition in (0, 1):
            harness.kafka.move_leader(topic, partition, 1)
        wrong.wait(1)
        assert sender.offsets() == [0, 0]
        harness.balance(sender)
