"""Goal: a restart with other acks, beside a backlog in both chains of a topic, reorders nothing and loses nothing.

Method: workers of a real segment and the compiled kernel before a broker in memory. One dies, and the next has other
settings. At the end the broker's log is read.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.common.errors import Code
from sidecar.producer.config import ProducerConfig
from sidecar.producer.lanes import PLAIN_LANE
from sidecar.producer.producer_batch import ProducerBatch
from sidecar.protocol.produce import PartitionResult
from sidecar.shm.segment import Segment
from sidecar.worker.streams.session import ClientSession
from tests.configs import producer_config

from .express_stage import LOUD, QUIET, Stage, finish
from .slot_stage import PARTITIONS, TOPIC, MemoryBroker, SlotStage

CLIENTS = [LOUD, QUIET, b"r" * 20]


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    made = Segment.create(
        tmp_path / "segment",
        page_bytes=16 << 10,
        buffer_memory_bytes=4 << 20,
        clients_max=8,
        instance_id=bytes(16),
    )
    yield made
    made.close()


ALL = producer_config(batch_size=100, linger_ms=0, batch_growth_bytes=400)
ONE = producer_config(
    batch_size=100,
    linger_ms=0,
    batch_growth_bytes=400,
    acks=1,
    enable_idempotence=False,
    max_in_flight_requests_per_connection=1,
)
"""With one request in flight order is kept without sequences, too."""
NONE = dataclasses.replace(ONE, acks=0)
CHANGES = pytest.mark.parametrize(
    ("before", "after"),
    [(ALL, ONE), (ONE, ALL), (ALL, ALL), (ONE, ONE)],
    ids=["all to 1", "1 to all", "all", "1"],
)


def began(segment: Segment, config: ProducerConfig) -> Stage:
    stage = Stage(segment, MemoryBroker(), 1, config)
    stage.know_topic()
    stage.join(LOUD)
    stage.join(QUIET)
    stage.accept(stage.sessions_of[LOUD], [b"known"], [0])
    stage.settle_all()
    return stage


def goes_on(stage: Stage, config: ProducerConfig) -> list[bytes]:
    """The log when the successor has nothing left."""
    stage.broker.is_silent = False
    second = Stage(stage.segment, stage.broker, 2, config)
    second.ask()
    second.know_topic()
    return finish(second)


@CHANGES
@pytest.mark.parametrize("has_arrived", [False, True])
def test_an_express_remainder_keeps_its_place_when_acks_is_changed(
    segment: Segment, before: ProducerConfig, after: ProducerConfig, has_arrived: bool
) -> None:
    """Batches were sent and not answered, and more of both chains waits; the client became loud."""
    stage = began(segment, before)
    loud, quiet = stage.sessions_of[LOUD], stage.sessions_of[QUIET]
    stage.broker.is_silent = True
    stage.accept(loud, [b"l0"], [0])
    stage.accept(quiet, [b"q0"], [0], is_express=True)
    for _ in range(3):
        stage.turn()
    assert len(list(stage.descriptors)) == (2 if before is ALL else 1), "one in flight"
    stage.accept(loud, [b"l1"], [0])
    stage.accept(quiet, [b"q1"], [0], is_express=True)
    stage.accept(quiet, [b"q2"], [0])
    if not has_arrived:
        stage.broker.log[0] = [b"known"]
        for each in stage.broker.producers.values():
            del each.batches[1:]
    found = goes_on(stage, after)
    for own in (b"l", b"q"):
        mine = [value for value in found if value.startswith(own)]
        once = list(dict.fromkeys(mine))
        assert once == sorted(once)
        assert len(once) == (2 if own == b"l" else 3)
        assert mine == once or before is ONE, "without numbers nobody knows a copy"


@pytest.mark.parametrize("after", [ALL, ONE], ids=["all", "1"])
@pytest.mark.parametrize("is_express", [False, True])
def test_what_a_refusal_left_keeps_its_place_when_acks_is_changed(
    segment: Segment, monkeypatch: pytest.MonkeyPatch, after: ProducerConfig, is_express: bool
) -> None:
    """The batch in bulk behind it was sent and has no answer: its broker lacks it for that."""
    stage = began(segment, ALL)
    quiet = stage.sessions_of[QUIET]
    stage.accept(quiet, [b"bad", b"q0"], [0, 0], is_express=is_express)
    stage.accept(quiet, [b"q1" + b" " * 400], [0])
    stage.broker.invalid_value = b"bad"
    result, sent = stage._result, list[ProducerBatch]()

    def answers_the_first(batch: ProducerBatch) -> PartitionResult:
        sent.append(batch)
        stage.broker.is_silent = len(sent) > 1
        return result(batch)

    monkeypatch.setattr(stage, "_result", answers_the_first)
    stage.turn()
    stage.turn()
    assert len(list(stage.descriptors)) == 1
    assert [batch.is_express for batch in sent] == [is_express, False]
    assert stage.broker.log == {0: [b"known"]}
    assert goes_on(stage, after) == [b"known", b"q0", b"q1"]


def test_a_chain_keeps_its_name_for_a_stream_from_before_acks_was_changed(segment: Segment) -> None:
    """The stream's place in the segment names the chain of the other lane. That chain had ended, and there is one of
    the lane of now, of other clients."""
    first = began(segment, ALL)
    first.release_idle()
    first.chain_table.open(PLAIN_LANE, TOPIC)
    row = first.sessions_of[LOUD].row.index
    second = Stage(segment, first.broker, 2, ONE)
    second.know_topic()
    adopted = second.sessions.of_row(row)
    assert adopted is not None
    queue = adopted.streams[1].topic_queue
    assert queue.lane == PLAIN_LANE
    for _ in range(3):
        second.topics._vacate_unused()
    assert second.topics.get(TOPIC) is queue
    assert second.topics.by_chain[queue.chain.chain_id] is queue


def test_a_table_of_topics_more_than_half_full_is_adopted_with_other_acks(segment: Segment) -> None:
    """Each of its clients' streams names a chain of the lane before, and there is no second name for all of them."""
    first = Stage(segment, MemoryBroker(), 1, ALL)
    rows = []
    for number in range(6):
        session = first.join(b"%d" % number * 20)
        rows.append(session.row.index)
        for stream in range(1, 121):
            queue = first.topics.get(f"topic-{number}-{stream}")
            assert queue is not None
            session.row.place_stream(stream, queue.chain.chain_id)
    second = Stage(segment, first.broker, 2, ONE)
    for number, row in enumerate(rows):
        adopted = second.sessions.of_row(row)
        assert adopted is not None
        names = {state.topic_queue.topic for state in adopted.streams.values()}
        assert names == {f"topic-{number}-{stream}" for stream in range(1, 121)}
    assert {queue.lane for queue in second.topics} == {PLAIN_LANE}


@pytest.mark.parametrize("has_arrived", [False, True])
def test_numbered_batches_get_their_answers_where_acks_is_0_by_now(
    segment: Segment, has_arrived: bool
) -> None:
    """Their numbers are settled by answers alone. Batches behind them would wait until they expire."""
    stage = began(segment, ALL)
    loud = stage.sessions_of[LOUD]
    stage.broker.is_silent = True
    for number in range(3):
        stage.accept(loud, [b"l%d" % number], [0])
        stage.turn()
    assert len(list(stage.descriptors)) == 3
    stage.accept(loud, [b"l3"], [0])
    if not has_arrived:
        stage.broker.log[0] = [b"known"]
        for each in stage.broker.producers.values():
            del each.batches[1:]
    assert goes_on(stage, NONE) == [b"known", b"l0", b"l1", b"l2", b"l3"]


def test_what_was_sent_with_other_acks_goes_one_at_a_time(segment: Segment) -> None:
    """Its worker may have had one request in flight, for the order."""
    stage = began(segment, ONE)
    stage.broker.is_silent = True
    stage.accept(stage.sessions_of[LOUD], [b"l0", b"l1"], [0, 0])
    stage.turn()
    stage.broker.log = {0: [b"known"]}
    stage.broker.records_max, stage.broker.refuse_once = 1, {0: Code.NOT_ENOUGH_REPLICAS}
    assert goes_on(stage, ALL) == [b"known", b"l0", b"l1"]


class _Deadly(SlotStage):
    """Its requests may get ``lost`` before they arrive."""

    lost = False

    def _result(self, batch: ProducerBatch) -> PartitionResult:
        if not self.lost:
            return super()._result(batch)
        self.broker.is_silent = True
        return PartitionResult(TOPIC, None, batch.partition, 0, 0, -1, -1, (), None, -1, -1)


class _World:
    """Clients of which all but the first go express when they may, and workers that die, with other acks each time."""

    def __init__(self, segment: Segment, seed: int) -> None:
        self.random = random.Random(seed)
        self.segment = segment
        self.has_bad = self.random.random() < 0.5
        self.changes_acks = self.random.random() < 0.6
        self.config = self.random.choice((ALL, ALL, ONE))
        self.is_single = self.config is ALL
        """No copy of a record may be in the log: each worker numbered its batches."""
        self.may_lose = False
        """A worker with acks=0 asks for no answer to what has no number."""
        self.lives = 1
        self.stage = _Deadly(segment, self.broker(), 1, config=self.config)
        self.stage.know_topic()
        self.rows = [self.stage.attach(client_id=each)[0].row.index for each in CLIENTS]
        self.accepted: list[bytes] = []

    def broker(self) -> MemoryBroker:
        return MemoryBroker(invalid_value=b"bad")

    def session(self, client: int) -> ClientSession:
        session = self.stage.sessions.of_row(self.rows[client])
        assert session is not None
        return session

    def submit(self) -> None:
        client = self.random.randrange(len(CLIENTS))
        queue = self.stage.topics.get(TOPIC)
        assert queue is not None
        has_some_in_bulk = any(entry.client_row == self.rows[client] for entry in queue.chain.entries())
        is_express = client > 0 and not has_some_in_bulk and self.random.random() < 0.7
        values = []
        for _ in range(self.random.randint(1, 4)):
            if self.has_bad and self.random.random() < 0.1:
                values.append(b"bad")
                continue
            self.accepted.append(b"%d %d" % (client, len(self.accepted)))
            values.append(self.accepted[-1] + b" " * self.random.choice((0, 0, 40)))
        partitions: list[int | None] = [self.random.randrange(PARTITIONS) for _ in values]
        self.stage.accept(self.session(client), values, partitions, is_express=is_express)

    def die(self) -> None:
        if self.changes_acks:
            self.config = self.random.choice([each for each in (ALL, ONE, NONE) if each is not self.config])
        self.may_lose = self.may_lose or self.config is NONE
        self.is_single = self.is_single and self.config is ALL
        self.lives += 1
        self.stage.broker.is_silent = False
        self.stage = _Deadly(self.segment, self.stage.broker, self.lives, config=self.config)
        self.stage.ask(may_ask=self.random.random() < 0.8)
        self.stage.know_topic()

    def step(self) -> None:
        stage, chance = self.stage, self.random.random()
        if chance < 0.45:
            self.submit()
        elif chance < 0.75:
            stage.turn()
        elif chance < 0.8:
            codes = Code.NOT_ENOUGH_REPLICAS, Code.NOT_LEADER_OR_FOLLOWER
            stage.broker.refuse_once[self.random.randrange(PARTITIONS)] = self.random.choice(codes)
        elif chance < 0.84:
            stage.broker.is_silent = True
        elif chance < 0.87:
            stage.lost = True
        elif chance < 0.92:
            self.reconnect()
        elif chance < 0.95:
            stage.broker.records_max = self.random.choice((1, 2, 1_000_000))
        elif self.lives < 4:
            self.die()

    def reconnect(self) -> None:
        self.stage.lost = self.stage.broker.is_silent = False
        self.stage.cut()

    def end(self) -> None:
        self.stage.broker.refuse_once.clear()
        self.stage.broker.records_max = 1_000_000
        self.reconnect()
        finish(self.stage)
        self.stage.turn()
        for client in range(len(CLIENTS)):
            self.stage.acknowledge(self.session(client))


@pytest.mark.parametrize("seed", range(150))
def test_each_client_s_order_outlives_workers_with_other_acks(segment: Segment, seed: int) -> None:
    world = _World(segment, seed)
    for _ in range(world.random.randint(10, 60)):
        world.step()
    world.end()
    logs = [[value.strip() for value in log] for log in world.stage.broker.log.values()]
    for log in logs:
        assert not world.is_single or len(set(log)) == len(log), "twice"
        for client in range(len(CLIENTS)):
            own = [int(value.split()[1]) for value in dict.fromkeys(log) if value.startswith(b"%d " % client)]
            assert own == sorted(own)
    assert not any(queue.chain.live_entries for queue in world.stage.topics), "each record has its outcome"
    if not (world.has_bad or world.may_lose):  # a batch in doubt fails whole for one bad record
        assert {value for log in logs for value in log} == set(world.accepted)
