"""Metadata that is wrong for a while, or for good: MD-12 (a storage error that stands) and MD-13 (partitions left out
of answers, shortly and lastingly)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from client_stub import errors
from sidecar.tools.testing.fault_rules import ALWAYS, Rule, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

from .harness import METRIC, OUTCOME_S, Harness, Sender

pytestmark = [pytest.mark.process]

NOT_LEADER, STORAGE_ERROR = 6, 56
STANDING_S = 3.0
REQUESTS_MAX = 9
"""librdkafka's own allowance in those three seconds."""
NOT_PERSISTED = 0
SETTINGS = {
    "retry.backoff.ms": 100,
    "retry.backoff.max.ms": 1_000,
    "request.timeout.ms": 1_500,
    "max.block.ms": 2_500,
    'topics."left-out-*".delivery.timeout.ms': 2_500,
}


def asked(harness: Harness) -> int:
    return len(harness.kafka.requests(Api.METADATA))


def at_least(harness: Harness, count: int) -> bool:
    return asked(harness) >= count


def edit_topic(harness: Harness, topic: str, edit: Callable[[Any], Any]) -> Rule:
    """From now on every answer about the topic tells its partitions as ``edit(partitions)`` returns them."""

    def edited(entity: Any) -> Any:
        topics = tuple(
            dataclasses.replace(each, partitions=tuple(edit(each.partitions))) if each.name == topic else each
            for each in entity.topics
        )
        return dataclasses.replace(entity, topics=topics)

    return harness.kafka.add(on(Api.METADATA, times=ALWAYS).edit_answer(edited))


def leave_out_partition_1(harness: Harness, sender: Sender) -> Rule:
    """From now on no answer names it, and the worker has heard of that; costs a record for partition 0."""
    version = metric(harness.daemon, f"{METRIC}metadata_version")
    rule = edit_topic(harness, sender.topic, lambda partitions: partitions[:1])
    harness.kafka.add(on(Api.PRODUCE, topic=sender.topic, partition=0).refuse(NOT_LEADER))
    sender.send(0)
    rule.wait()
    wait_until(
        lambda: metric(harness.daemon, f"{METRIC}metadata_version") > version, "the worker to hear of it"
    )
    return rule


@pytest.mark.parametrize("is_led", [True, False], ids=["with its leader", "without leader"])
def test_md_12_a_lasting_storage_error(harness: Harness, is_led: bool) -> None:
    """MD-12: the error in a Produce answer, then in all metadata for three seconds. The backoff is kept, however much
    is sent. Where a leader is named sends go on, and no record fails in either case."""
    topic, sender = harness.primed(2)

    def broken(partitions: Any) -> Any:
        return (
            dataclasses.replace(
                each,
                error_code=ErrorCode(STORAGE_ERROR),
                **({} if is_led else {"leader_id": -1, "isr_nodes": ()}),
            )
            for each in partitions
        )

    with sender:
        standing = edit_topic(harness, topic, broken)
        harness.kafka.add(on(Api.PRODUCE, topic=topic).refuse(STORAGE_ERROR))
        before, began = asked(harness), time.monotonic()
        sender.send()
        standing.wait()
        sent = 0
        while time.monotonic() - began < STANDING_S:
            delivery = sender.send(sent % 2)
            sent += 1
            if is_led:
                assert delivery.exception(OUTCOME_S) is None
            else:
                wait_until(partial(at_least, harness, before + sent), "another request")
        elapsed = time.monotonic() - began
        count = asked(harness) - before
        assert count <= REQUESTS_MAX * max(1.0, elapsed / STANDING_S)
        standing.remove()
        assert all(outcome.error is None for outcome in sender.outcomes())
        harness.balance(sender)


def test_md_13_partitions_left_out_for_a_while(harness: Harness) -> None:
    """MD-13: a broker that lags behind leaves partition 1 out: its records wait and are delivered in order, those of
    partition 0 go on."""
    topic, sender = harness.primed(2)
    with sender:
        left_out = leave_out_partition_1(harness, sender)
        seen = len(harness.produced(topic))
        for _ in range(5):
            sender.send(1)
        for _ in range(5):
            sender.send(0).exception(OUTCOME_S)
        left_out.wait(left_out.hits + 2)  # it is asked for again, at the pace of the backoff
        requests = harness.produced(topic)[seen:]
        assert {batch.partition for request in requests for batch in request.batches} == {0}
        left_out.remove()
        assert sender.offsets() == [0, 0, 1, *range(1, 6), *range(2, 7)]
        harness.balance(sender)


def test_md_13_partitions_left_out_for_good(harness: Harness) -> None:
    """MD-13: lastingly: they fail at delivery.timeout.ms, certainly not persisted; keyless records go where there is a
    leader; metadata is asked for no more often than its backoff allows."""
    topic = "left-out-1"
    harness.kafka.create_topic(topic, 2)
    with harness.sender(topic) as sender:
        for partition in (0, 1):
            sender.send(partition)
        sender.offsets()
        left_out = leave_out_partition_1(harness, sender)
        before, began = asked(harness), time.monotonic()
        lost = [sender.send(1) for _ in range(5)]
        keyless = [sender.producer.send(topic, b"keyless") for _ in range(20)]
        assert {delivery.result(OUTCOME_S).partition for delivery in keyless} == {0}
        for delivery in lost:
            error = delivery.exception(OUTCOME_S)
            assert isinstance(error, errors.DeliveryTimeout)
            assert int(error.persistence) == NOT_PERSISTED
        elapsed = time.monotonic() - began
        assert asked(harness) - before <= REQUESTS_MAX * max(1.0, elapsed / STANDING_S)
        left_out.remove()
        # Its numbers were never sent: what comes now continues the partition.
        wait_until(lambda: sender.send(1).exception(OUTCOME_S) is None, "the partition to be known again")
        assert sender.outcomes()[-1].offset == 1
    assert not harness.kafka.bad_batches


def test_md_13_a_partition_that_was_never_there(harness: Harness) -> None:
    """MD-13: left out from the first answer on: its records fail after max.block.ms with the range, others go on."""
    topic = harness.new_topic(2)
    left_out = edit_topic(harness, topic, lambda partitions: partitions[:1])
    with harness.sender(topic) as sender:
        sender.send(1)
        sender.send(0)
        assert sender.outcomes()[1].offset == 0
        assert isinstance(sender.outcomes()[0].error, errors.InvalidPartition)
        left_out.remove()
        harness.kafka.add(on(Api.PRODUCE, topic=topic, partition=0).refuse(NOT_LEADER))
        sender.send(0)
        wait_until(lambda: sender.send(1).exception(OUTCOME_S) is None, "the partition to be known")
        harness.balance(sender)


@pytest.mark.rule("M9")
def test_an_error_of_a_newer_kafka_hides_no_other_topic(harness: Harness) -> None:
    """A topic whose error this version does not know waits alone, and is delivered when the error has passed."""
    strange, topic = harness.new_topic(), harness.new_topic()

    def edited(entity: Any) -> Any:
        code = SimpleNamespace(value=9_999)
        topics = tuple(
            dataclasses.replace(each, error_code=code, partitions=()) if each.name == strange else each
            for each in entity.topics
        )
        return dataclasses.replace(entity, topics=topics)

    rule = harness.kafka.add(on(Api.METADATA, times=ALWAYS).edit_answer(edited))
    with harness.sender(strange) as waiting, harness.sender(topic) as sender:
        waiting.send()
        rule.wait()
        sender.send()
        assert sender.offsets() == [0]
        assert not waiting.deliveries[0].done()
        rule.remove()
        assert waiting.offsets() == [0]
        harness.balance(sender, waiting)
