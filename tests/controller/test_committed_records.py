"""Goal: a question for a key's last record ends with a sentence, whatever the brokers do. Real brokers are asked in
tests/integration/test_last_committed.py.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from sidecar.common.clock import MonotonicClock
from sidecar.common.errors import Refused
from sidecar.common.model import Node
from sidecar.controller.cluster.committed_records import WAIT_MS_MAX, AskTopics, CommittedRecords
from sidecar.metadata.answer import MetadataAnswer, PartitionAnswer, TopicAnswer
from sidecar.net.kafka.connector import LinkError
from tests.manual_clock import ManualClock

NODE = Node(1, "127.0.0.1", 1)


def no_links(on_state: object) -> Any:
    raise AssertionError("no broker is asked")


def answer(topic: TopicAnswer | None, *brokers: Node) -> MetadataAnswer:
    return MetadataAnswer(brokers, "c", () if topic is None else (topic,), 0, 0)


def last(ask: AskTopics, clock: ManualClock, wait_ms: float) -> None:
    async def run() -> None:
        records = CommittedRecords(no_links, ask, cast("MonotonicClock", clock))
        await records.last("commits", b"key", wait_ms, creates=False)

    asyncio.run(run())


def test_question_ends_with_the_reason_when_no_broker_answers() -> None:
    clock = ManualClock()
    waits: list[float] = []

    async def ask(timeout_ms: float, names: list[str]) -> MetadataAnswer:
        waits.append(timeout_ms)
        clock.advance(timeout_ms)
        raise LinkError("127.0.0.1:1 refused the connection.")

    with pytest.raises(Refused, match=r"topic commits could not be read: 127\.0\.0\.1:1 refused") as refused:
        last(ask, clock, WAIT_MS_MAX + 1)
    assert refused.value.code == "KAFKA_UNREACHABLE"
    assert waits == [WAIT_MS_MAX]


def test_topic_without_a_leader_is_asked_for_again_until_the_time_is_over() -> None:
    clock = ManualClock()
    asked = 0

    async def ask(timeout_ms: float, names: list[str]) -> MetadataAnswer:
        nonlocal asked
        asked += 1
        clock.advance(400)
        return answer(
            TopicAnswer("commits", None, 0, False, (PartitionAnswer(0, 5, -1, 0, (), (), ()),)), NODE
        )

    with pytest.raises(Refused, match="partition 0 has no leader"):
        last(ask, clock, 1_000)
    assert asked == 3


@pytest.mark.parametrize(
    ("code", "name", "text"),
    [
        (29, "TOPIC_AUTHORIZATION_FAILED", "may not read topic commits: give it READ"),
        (3, "INVALID_TOPIC", "is not in Kafka; make it: .* --partitions 16 --replication-factor 1 --config"),
    ],
)
def test_error_that_stays_is_refused_at_once(code: int, name: str, text: str) -> None:
    async def ask(timeout_ms: float, names: list[str]) -> MetadataAnswer:
        return answer(TopicAnswer("commits", None, code, False, ()), NODE)

    with pytest.raises(Refused, match=text) as refused:
        last(ask, ManualClock(), 1_000)
    assert refused.value.code == name
