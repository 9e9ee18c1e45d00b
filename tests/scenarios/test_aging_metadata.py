"""Metadata that ages: MD-05, MD-07, the broker's part of MD-15 on the fake broker; a full refresh every 300 ms."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.waiting import wait_until

from .harness import Harness

pytestmark = [pytest.mark.process]

REBOOTSTRAP_REQUIRED = 129
SETTINGS = {"metadata.max.age.ms": 300, "metadata.max.idle.ms": 5_000, "linger.ms": 0}


def last_asked(harness: Harness) -> set[str]:
    """The topics of the last metadata request."""
    message = harness.kafka.requests(Api.METADATA)[-1].message
    return {str(topic.name) for topic in message.topics or ()}


def test_md_05_an_unused_topic_is_asked_for_no_more(harness: Harness) -> None:
    """MD-05: unused for metadata.max.idle.ms: dropped from the refreshes; used again: it is back. One in use stays."""
    (used, busy), (unused, idle) = harness.primed(), harness.primed()
    with busy, idle:

        def only_used_is_asked_for() -> bool:
            busy.send()
            busy.outcomes()
            asked = last_asked(harness)
            return used in asked and unused not in asked

        wait_until(only_used_is_asked_for, "the unused topic to be dropped", interval_s=0.2)
        idle.send()
        assert idle.offsets() == [0, 1]
        wait_until(lambda: unused in last_asked(harness), "it to come back")
        harness.balance(busy, idle)


def test_md_07_a_stale_broker_cannot_pull_the_leader_back(harness: Harness) -> None:
    """MD-07: a broker goes on naming the old leader under the old epoch. Records go to the new one all the while; the
    same name under a higher epoch is believed."""
    topic, sender = harness.primed()
    old = harness.produced(topic)[0].node
    new = 3 - old
    epoch = 0

    def names_the_old_one(entity: Any) -> Any:
        return dataclasses.replace(
            entity,
            topics=tuple(
                dataclasses.replace(
                    each,
                    partitions=tuple(
                        dataclasses.replace(
                            partition, leader_id=type(partition.leader_id)(old), leader_epoch=epoch
                        )
                        for partition in each.partitions
                    ),
                )
                if each.name == topic
                else each
                for each in entity.topics
            ),
        )

    with sender:
        harness.kafka.move_leader(topic, 0, new)
        sender.send()
        sender.offsets()
        stale = harness.kafka.add(on(Api.METADATA, times=ALWAYS).edit_answer(names_the_old_one))
        stale.wait(3)
        sender.send()
        assert sender.offsets() == [0, 1, 2]
        assert harness.produced(topic)[-1].node == new
        refused = len([each for each in harness.produced(topic) if each.codes.get((topic, 0))])
        assert refused <= 1  # when the leader moved
        harness.kafka.move_leader(topic, 0, old)
        epoch = 2
        seen = stale.hits
        stale.wait(seen + 2)
        sender.send()
        assert sender.offsets() == [0, 1, 2, 3]
        assert harness.produced(topic)[-1].node == old
        assert len([each for each in harness.produced(topic) if each.codes.get((topic, 0))]) == refused
        harness.balance(sender)


def test_md_15_a_broker_asks_to_bootstrap_again(harness: Harness) -> None:
    """MD-15: REBOOTSTRAP_REQUIRED (KIP-1102): metadata is asked for by a new connection, once, and records go on."""

    def required(entity: Any) -> Any:
        return dataclasses.replace(entity, error_code=ErrorCode(REBOOTSTRAP_REQUIRED))

    topic, sender = harness.primed()
    with sender:
        rule = harness.kafka.add(on(Api.METADATA).edit_answer(required))
        rule.wait()
        asked = harness.kafka.requests(Api.METADATA)
        known = {request.connection for request in asked}
        seen = len(asked)
        wait_until(
            lambda: any(r.connection not in known for r in harness.kafka.requests(Api.METADATA)[seen:]),
            "metadata to be asked for by another connection",
        )
        sender.send()
        assert sender.offsets() == [0, 1]
        harness.balance(sender)
    assert len(harness.produced(topic)) == 2
