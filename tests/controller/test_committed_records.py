"""Goal: a question for a key's last record ends with a sentence, whatever the brokers do. Real brokers are asked in
tests/integration/test_last_committed.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from sidecar.common.clock import MonotonicClock
from sidecar.common.errors import Refused
from sidecar.common.model import Node
from sidecar.controller.cluster.committed_records import WAIT_MS_MAX, AskTopics, CommittedRecords
from sidecar.metadata.answer import MetadataAnswer, PartitionAnswer, TopicAnswer
from sidecar.net.kafka.connector import LinkError
from sidecar.protocol.fetch import LATEST
from sidecar.protocol.messages import ApiKey
from sidecar.tools.testing.fake_log import PartitionLog
from sidecar.tools.testing.fake_reads import created, read_answer
from tests.controller.log_bytes import COMMIT, batch, marker
from tests.manual_clock import ManualClock

NODE = Node(1, "127.0.0.1", 1)
OFFSET_NOT_AVAILABLE = 78
REQUEST_TIMED_OUT = 7


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


def test_topic_whose_partitions_are_not_known_yet_is_asked_for_again() -> None:
    async def ask(timeout_ms: float, names: list[str]) -> MetadataAnswer:
        return answer(TopicAnswer("commits", None, 0, False, ()), NODE)

    with pytest.raises(
        Refused, match="topic commits could not be read: its partition of the key is not known"
    ):
        last(ask, ManualClock(), 0)


class BusyController:
    """The links to a broker that makes a topic at the second request."""

    def __init__(self) -> None:
        self.asked = 0

    def ready(self, node: Node) -> BusyController:
        return self

    def version(self, api: ApiKey) -> int:
        return 4

    async def request(self, message: Any, *, timeout_ms: float) -> Any:
        self.asked += 1
        found = created(cast("Any", SimpleNamespace(version=4, message=message)))
        code = ErrorCode(REQUEST_TIMED_OUT if self.asked == 1 else 0)
        return dataclasses.replace(found, topics=(dataclasses.replace(found.topics[0], error_code=code),))


def test_topic_that_was_not_made_in_time_is_made_again() -> None:
    links = BusyController()

    async def ask(timeout_ms: float, names: list[str]) -> MetadataAnswer:
        return answer(TopicAnswer("commits", None, 3 if links.asked < 2 else 29, False, ()), NODE)

    async def run() -> None:
        records = CommittedRecords(
            lambda on_state: cast("Any", links), ask, cast("MonotonicClock", ManualClock())
        )
        await records.last("commits", b"key", 1_000, creates=True)

    with pytest.raises(Refused, match="may not read topic commits"):
        asyncio.run(run())
    assert links.asked == 2


class NewLeader:
    """The links to a broker that was made leader a moment ago. Until it is ``ready_after`` questions older it knows an
    old high watermark: it hands over nothing from there on, and refuses to say where the log ends.
    """

    def __init__(self, log: PartitionLog, ready_after: int) -> None:
        self.log = log
        self._old = PartitionLog(is_compacted=True)
        self._left = ready_after
        self._api = ApiKey.FETCH

    def ready(self, node: Node) -> NewLeader:
        return self

    def version(self, api: ApiKey) -> int:
        self._api = api
        return 4

    async def request(self, message: Any, *, timeout_ms: float) -> Any:
        asked = SimpleNamespace(api=int(self._api), version=4, message=message)
        if self._api is ApiKey.DESCRIBE_CONFIGS:
            return read_answer(cast("Any", asked), [self.log])
        self._left -= 1
        found = read_answer(cast("Any", asked), [self.log if self._left < 0 else self._old])
        if self._api is ApiKey.LIST_OFFSETS and self._left >= 0:
            (topic,) = found.topics
            (part,) = topic.partitions
            if message.topics[0].partitions[0].timestamp != LATEST:
                return found
            part = dataclasses.replace(part, error_code=ErrorCode(OFFSET_NOT_AVAILABLE))
            return dataclasses.replace(found, topics=(dataclasses.replace(topic, partitions=(part,)),))
        return found


def commits_log(value: bytes, *, end: int) -> PartitionLog:
    """A record of ``key`` in a transaction that was committed, as the last of the log."""
    log = PartitionLog(is_compacted=True)
    log.kept = [
        (end - 2, batch(end - 2, [(b"key", value)], producer_id=7)),
        (end - 1, marker(end - 1, 7, COMMIT)),
    ]
    log.start_offset, log.end_offset = end - 2, end
    return log


async def ask(timeout_ms: float, names: list[str]) -> MetadataAnswer:
    partition = PartitionAnswer(0, 0, 1, 3, (), (), ())
    return answer(TopicAnswer("commits", None, 0, False, (partition,)), NODE)


def found_in(*logs: PartitionLog, ready_after: int = 0) -> list[bytes | None]:
    """What the same CommittedRecords finds while the broker has one log after the other."""

    async def run() -> list[bytes | None]:
        links = NewLeader(logs[0], ready_after)
        records = CommittedRecords(
            lambda on_state: cast("Any", links), ask, cast("MonotonicClock", ManualClock())
        )
        found = []
        for links.log in logs:
            record = (await records.last("commits", b"key", 1_000, creates=False)).record
            found.append(None if record is None else record.value)
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("ready_after", range(4))
def test_new_leader_that_does_not_know_the_end_of_its_log_is_asked_again(ready_after: int) -> None:
    assert found_in(commits_log(b"1", end=2), ready_after=ready_after) == [b"1"]


def test_topic_that_was_made_again_is_read_from_its_start() -> None:
    assert found_in(commits_log(b"1", end=12), commits_log(b"2", end=2)) == [b"1", b"2"]


def test_answer_about_an_older_leader_is_asked_for_again() -> None:
    """Of a broker that has lost the others: the old leader, which may have, too, knows nothing of what came since."""
    epochs = iter([5, 4, 4, 5])
    links = NewLeader(commits_log(b"1", end=2), 0)

    async def ask(timeout_ms: float, names: list[str]) -> MetadataAnswer:
        epoch = next(epochs)
        links.log = commits_log(b"1", end=2) if epoch == 5 else PartitionLog(is_compacted=True)
        partition = PartitionAnswer(0, 0, 1, epoch, (), (), ())
        return answer(TopicAnswer("commits", UUID(int=7), 0, False, (partition,)), NODE)

    async def run() -> None:
        records = CommittedRecords(
            lambda on_state: cast("Any", links), ask, cast("MonotonicClock", ManualClock())
        )
        for _ in range(2):
            found = (await records.last("commits", b"key", 1_000, creates=False)).record
            assert found is not None and found.value == b"1"

    asyncio.run(run())
    assert next(epochs, None) is None
