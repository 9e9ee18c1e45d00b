"""Goal: records keep the rest of their delivery.timeout.ms over the deaths of workers."""

from __future__ import annotations

import pytest

from sidecar.shm.segment import Segment
from tests.configs import producer_config

from .slot_harness import OTHER_TOPIC, MemoryBroker, SlotHarness


def deadlines(harness: SlotHarness) -> list[float]:
    """How long each batch still has, in seconds."""
    return [
        (batch.deadline_ms - harness.now_ms) / 1000 for batch in harness.accumulator.incomplete.oldest_first()
    ]


@pytest.mark.rule("A8")
def test_delivery_timeout_continues_at_adoption(segment: Segment) -> None:
    """It counts while somebody could deliver, over any number of workers; not while nobody was there."""
    config = producer_config(delivery_timeout_ms=120_000, linger_ms=0)
    broker = MemoryBroker(is_silent=True)
    first = SlotHarness(segment, broker, 1, config=config, now_ms=10_000.0)
    session, _ = first.attach()
    first.know_topic()
    first.accept(session, [b"sent"], [0])
    first.turn()
    first.turn()
    first.accept(session, [b"not sent"], [1])
    segment.slot(0).store_heartbeat(int(100_000 * 1e6))  # 90 s later it dies
    second = SlotHarness(
        segment, broker, 2, config=config, now_ms=5_000_000.0
    )  # and nobody is there for an hour
    assert len(deadlines(second)) == 2
    assert all(30 <= left <= 32 for left in deadlines(second))
    segment.slot(0).store_heartbeat(int(5_020_000 * 1e6))
    third = SlotHarness(segment, broker, 3, config=config, now_ms=5_020_000.0)
    assert all(10 <= left <= 12 for left in deadlines(third))
    third.broker.is_silent = False
    third.ask()
    third.run()
    assert third.broker.log == {0: [b"sent"], 1: [b"not sent"]}


def test_old_records_queued_after_younger_ones_of_another_topic_expire_in_time(segment: Segment) -> None:
    """Topics are read one after the other, each from its oldest record on."""
    config = producer_config(delivery_timeout_ms=120_000, linger_ms=0)
    first = SlotHarness(segment, MemoryBroker(), 1, config=config, now_ms=10_000.0)
    session, _ = first.attach()
    first.know_topic()
    assert first.topics.get("t") is not None, "it has the first chain"
    first.accept(session, [b"old"], [0], OTHER_TOPIC)
    first.now_ms += 100_000.0
    first.accept(session, [b"young"], [0])
    segment.slot(0).store_heartbeat(int(first.now_ms * 1e6))
    second = SlotHarness(segment, first.broker, 2, config=config, now_ms=first.now_ms)
    assert [20 <= left <= 22 for left in deadlines(second)] == [True, False], "oldest first"
    second.now_ms += 30_000.0
    expired = second.accumulator.incomplete.expired(second.now_ms)
    assert [batch.topic for batch in expired] == [OTHER_TOPIC]


def test_a_submission_accepted_after_the_last_heartbeat_is_new(segment: Segment) -> None:
    config = producer_config(delivery_timeout_ms=120_000, linger_ms=0)
    first = SlotHarness(segment, MemoryBroker(), 1, config=config, now_ms=10_000.0)
    session, _ = first.attach()
    first.know_topic()
    first.now_ms += 3_000.0
    first.accept(session, [b"x"], [0])
    second = SlotHarness(segment, first.broker, 2, config=config, now_ms=10_500.0)
    assert deadlines(second) == [120]


def test_a_time_of_acceptance_counts_for_eighteen_hours(segment: Segment) -> None:
    """An older record counts as younger than it is, never as older."""
    config = producer_config(delivery_timeout_ms=86_400_000, linger_ms=0)
    first = SlotHarness(segment, MemoryBroker(), 1, config=config, now_ms=1_000.0)
    session, _ = first.attach()
    first.know_topic()
    first.accept(session, [b"x"], [0])
    slot = segment.slot(0)
    for incarnation, (at_s, left_s) in enumerate(((60_000, 26_400), (66_000, 86_400)), 2):
        slot.store_heartbeat(int(at_s * 1e9))
        heir = SlotHarness(segment, first.broker, incarnation, config=config, now_ms=at_s * 1000.0)
        (left,) = deadlines(heir)
        assert left_s - 600 <= left <= left_s + 2
