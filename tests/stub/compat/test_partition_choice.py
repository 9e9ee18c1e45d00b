"""PartitionChoice: a program's own partitioner, over any number of topics."""

from __future__ import annotations

from client_stub.compat.partition_choice import TOPICS_KNOWN_MAX, PartitionChoice
from client_stub.io.topic_lookup import PartitionInfo


def test_a_program_with_ten_thousand_topics_keeps_the_partitions_of_the_latest() -> None:
    """It kept those of each topic that it had ever sent to, and one topic more is looked up like a new one."""
    asked: list[str] = []

    def look_up(topic: str, timeout_s: float) -> list[PartitionInfo]:
        asked.append(topic)
        return [PartitionInfo(topic, number, 1, (1,), (1,), ()) for number in range(3)]

    choice = PartitionChoice(lambda key, every, available: every[-1], look_up, 1.0)
    record = (None, b"key", None, b"value")
    topics = [f"t{number}" for number in range(TOPICS_KNOWN_MAX + 1)]
    for topic in topics:
        assert choice.of(topic, record) == 2
    assert asked == topics
    assert len(choice._known) == TOPICS_KNOWN_MAX
    choice.of(topics[-1], record)
    choice.of(topics[1], record)
    assert asked == topics
    choice.of(topics[0], record)
    assert asked == [*topics, topics[0]]
    assert len(choice._known) == TOPICS_KNOWN_MAX
