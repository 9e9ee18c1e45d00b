"""Goal: many who ask for all topics cost Kafka and the controller one question, and who asks without end not many."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.common.errors import Refused
from sidecar.controller.cluster.topic_list import LIST_BURST_S, LIST_KEPT_S, LIST_SHARE, Rows, TopicList

COST_S = 0.1


class Kafka:
    """Answers when it is let, by a clock that goes on with each question."""

    def __init__(self) -> None:
        self.now_s, self.asked, self.cost_s = 50.0, 0, COST_S
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.fails = False

    async def ask(self) -> Rows:
        self.asked += 1
        number = self.asked
        await self.may_answer.wait()
        self.now_s += self.cost_s
        if self.fails:
            raise Refused("KAFKA_UNREACHABLE", "No broker answers.")
        return [["t", number, []]]


def test_all_who_ask_at_once_get_one_answer_and_the_next_another() -> None:
    async def live() -> None:
        kafka = Kafka()
        topics = TopicList(lambda: kafka.now_s)
        kafka.may_answer.clear()
        waiting = [asyncio.create_task(topics.get(kafka.ask)) for _ in range(64)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        kafka.may_answer.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1:] == [[["t", 1, []]]] * 63
        assert await topics.get(kafka.ask) == [["t", 2, []]]

    asyncio.run(live())


def test_endless_questions_for_topics_get_the_last_answer() -> None:
    async def live() -> None:
        kafka = Kafka()
        topics = TopicList(lambda: kafka.now_s)
        began_s, asked = kafka.now_s, 0
        while kafka.now_s - began_s < 100.0:
            asked += 1
            kafka.now_s += 0.01
            await topics.get(kafka.ask)
        taken_s = kafka.asked * COST_S
        assert 0.9 * 100.0 * LIST_SHARE <= taken_s <= LIST_BURST_S + 100.0 * LIST_SHARE + COST_S
        kafka.now_s += LIST_BURST_S / LIST_SHARE
        before = kafka.asked
        assert await topics.get(kafka.ask) == [["t", before + 1, []]]

    asyncio.run(live())


def test_no_answer_is_older_than_two_seconds_however_long_questions_take() -> None:
    async def live() -> None:
        kafka = Kafka()
        kafka.cost_s = 20.0
        topics = TopicList(lambda: kafka.now_s)
        assert await topics.get(kafka.ask) == await topics.get(kafka.ask) == [["t", 1, []]]
        kafka.now_s += LIST_KEPT_S
        assert await topics.get(kafka.ask) == [["t", 2, []]]

    asyncio.run(live())


def test_a_failure_is_everybodys_and_the_next_one_asks_again() -> None:
    async def live() -> None:
        kafka = Kafka()
        topics = TopicList(lambda: kafka.now_s)
        kafka.fails = True
        found = await asyncio.gather(*(topics.get(kafka.ask) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(each, Refused) for each in found) and kafka.asked == 1
        kafka.fails = False
        assert await topics.get(kafka.ask) == [["t", 2, []]]
        kafka.fails = True
        with pytest.raises(Refused):
            await topics.get(kafka.ask)

    asyncio.run(live())
