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

from .express_harness import LOUD, QUIET, ExpressHarness, finish
from .slot_harness import PARTITIONS, TOPIC, MemoryBroker, SlotHarness

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


def began(segment: Segment, config: ProducerConfig) -> ExpressHarness:
    harness = ExpressHarness(segment, MemoryBroker(), 1, config)
    harness.know_topic()
    harness.join(LOUD)
    harness.join(QUIET)
    harness.accept(harness.sessions_of[LOUD], [b"known"], [0])
    harness.settle_all()
    return harness


def goes_on(harness: ExpressHarness, config: ProducerConfig) -> list[bytes]:
    """The log when the successor has nothing left."""
    harness.broker.is_silent = False
    second = ExpressHarness(harness.segment, harness.broker, 2, config)
    second.ask()
    second.know_topic()
    return finish(second)


@CHANGES
@pytest.mark.parametrize("has_arrived", [False, True])
def test_an_express_remainder_keeps_its_place_when_acks_is_changed(
    segment: Segment, before: ProducerConfig, after: ProducerConfig, has_arrived: bool
) -> None:
    """Batches were sent and not answered, and more of both chains waits; the client became loud."""
    harness = began(segment, before)
    loud, quiet = harness.sessions_of[LOUD], harness.sessions_of[QUIET]
    harness.broker.is_silent = True
    harness.accept(loud, [b"l0"], [0])
    harness.accept(quiet, [b"q0"], [0], is_express=True)
    for _ in range(3):
        harness.turn()
    assert len(list(harness.descriptors)) == (2 if before is ALL else 1), "one in flight"
    harness.accept(loud, [b"l1"], [0])
    harness.accept(quiet, [b"q1"], [0], is_express=True)
    harness.accept(quiet, [b"q2"], [0])
    if not has_arrived:
        harness.broker.log[0] = [b"known"]
        for each in harness.broker.producers.values():
            del each.batches[1:]
    found = goes_on(harness, after)
    for own in (b"l", b"q"):
        mine = [value for value in found if value.startswith(own)]
        once = list(dict.fromkeys(mine))
        assert once == sorted(once)
        assert len(once) == (2 if own == b"l" else 3)
        assert mine == once or before is ONE, "without numbers nobody knows a copy"


@pytest.mark.parametrize("after", [ALL, ONE], ids=["all", "1"])
@pytest.mark.parametrize("is_express", [False, True])
def test_records_left_by_a_refusal_keep_their_order_when_acks_is_changed(
    segment: Segment, monkeypatch: pytest.MonkeyPatch, after: ProducerConfig, is_express: bool
) -> None:
    """The batch in bulk behind it was sent and has no answer: its broker lacks it for that."""
    harness = began(segment, ALL)
    quiet = harness.sessions_of[QUIET]
    harness.accept(quiet, [b"bad", b"q0"], [0, 0], is_express=is_express)
    harness.accept(quiet, [b"q1" + b" " * 400], [0])
    harness.broker.invalid_value = b"bad"
    result, sent = harness._result, list[ProducerBatch]()

    def answers_the_first(batch: ProducerBatch) -> PartitionResult:
        sent.append(batch)
        harness.broker.is_silent = len(sent) > 1
        return result(batch)

    monkeypatch.setattr(harness, "_result", answers_the_first)
    harness.turn()
    harness.turn()
    assert len(list(harness.descriptors)) == 1
    assert [batch.is_express for batch in sent] == [is_express, False]
    assert harness.broker.log == {0: [b"known"]}
    assert goes_on(harness, after) == [b"known", b"q0", b"q1"]


def test_a_chain_keeps_its_name_for_a_stream_from_before_acks_was_changed(segment: Segment) -> None:
    """The stream's place in the segment names the chain of the other lane. That chain had ended, and there is one of
    the lane of now, of other clients."""
    first = began(segment, ALL)
    first.release_idle()
    first.chain_table.open(PLAIN_LANE, TOPIC)
    row = first.sessions_of[LOUD].row.index
    second = ExpressHarness(segment, first.broker, 2, ONE)
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
    first = ExpressHarness(segment, MemoryBroker(), 1, ALL)
    rows = []
    for number in range(6):
        session = first.join(b"%d" % number * 20)
        rows.append(session.row.index)
        for stream in range(1, 121):
            queue = first.topics.get(f"topic-{number}-{stream}")
            assert queue is not None
            session.row.place_stream(stream, queue.chain.chain_id)
    second = ExpressHarness(segment, first.broker, 2, ONE)
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
    harness = began(segment, ALL)
    loud = harness.sessions_of[LOUD]
    harness.broker.is_silent = True
    for number in range(3):
        harness.accept(loud, [b"l%d" % number], [0])
        harness.turn()
    assert len(list(harness.descriptors)) == 3
    harness.accept(loud, [b"l3"], [0])
    if not has_arrived:
        harness.broker.log[0] = [b"known"]
        for each in harness.broker.producers.values():
            del each.batches[1:]
    assert goes_on(harness, NONE) == [b"known", b"l0", b"l1", b"l2", b"l3"]


def test_batches_sent_with_other_acks_go_one_at_a_time(segment: Segment) -> None:
    """Its worker may have had one request in flight, for the order."""
    harness = began(segment, ONE)
    harness.broker.is_silent = True
    harness.accept(harness.sessions_of[LOUD], [b"l0", b"l1"], [0, 0])
    harness.turn()
    harness.broker.log = {0: [b"known"]}
    harness.broker.records_max, harness.broker.refuse_once = 1, {0: Code.NOT_ENOUGH_REPLICAS}
    assert goes_on(harness, ALL) == [b"known", b"l0", b"l1"]


class _Deadly(SlotHarness):
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
        self.harness = _Deadly(segment, self.broker(), 1, config=self.config)
        self.harness.know_topic()
        self.rows = [self.harness.attach(client_id=each)[0].row.index for each in CLIENTS]
        self.accepted: list[bytes] = []

    def broker(self) -> MemoryBroker:
        return MemoryBroker(invalid_value=b"bad")

    def session(self, client: int) -> ClientSession:
        session = self.harness.sessions.of_row(self.rows[client])
        assert session is not None
        return session

    def submit(self) -> None:
        client = self.random.randrange(len(CLIENTS))
        queue = self.harness.topics.get(TOPIC)
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
        self.harness.accept(self.session(client), values, partitions, is_express=is_express)

    def die(self) -> None:
        if self.changes_acks:
            self.config = self.random.choice([each for each in (ALL, ONE, NONE) if each is not self.config])
        self.may_lose = self.may_lose or self.config is NONE
        self.is_single = self.is_single and self.config is ALL
        self.lives += 1
        self.harness.broker.is_silent = False
        self.harness = _Deadly(self.segment, self.harness.broker, self.lives, config=self.config)
        self.harness.ask(may_ask=self.random.random() < 0.8)
        self.harness.know_topic()

    def step(self) -> None:
        harness, chance = self.harness, self.random.random()
        if chance < 0.45:
            self.submit()
        elif chance < 0.75:
            harness.turn()
        elif chance < 0.8:
            codes = Code.NOT_ENOUGH_REPLICAS, Code.NOT_LEADER_OR_FOLLOWER
            harness.broker.refuse_once[self.random.randrange(PARTITIONS)] = self.random.choice(codes)
        elif chance < 0.84:
            harness.broker.is_silent = True
        elif chance < 0.87:
            harness.lost = True
        elif chance < 0.92:
            self.reconnect()
        elif chance < 0.95:
            harness.broker.records_max = self.random.choice((1, 2, 1_000_000))
        elif self.lives < 4:
            self.die()

    def reconnect(self) -> None:
        self.harness.lost = self.harness.broker.is_silent = False
        self.harness.cut()

    def end(self) -> None:
        self.harness.broker.refuse_once.clear()
        self.harness.broker.records_max = 1_000_000
        self.reconnect()
        finish(self.harness)
        self.harness.turn()
        for client in range(len(CLIENTS)):
            self.harness.acknowledge(self.session(client))


@pytest.mark.parametrize(
    "seed", [*range(30), *(pytest.param(n, marks=pytest.mark.slow) for n in range(30, 150))]
)
def test_each_client_s_order_outlives_workers_with_other_acks(segment: Segment, seed: int) -> None:
    world = _World(segment, seed)
    for _ in range(world.random.randint(10, 60)):
        world.step()
    world.end()
    logs = [[value.strip() for value in log] for log in world.harness.broker.log.values()]
    for log in logs:
        assert not world.is_single or len(set(log)) == len(log), "twice"
        for client in range(len(CLIENTS)):
            own = [int(value.split()[1]) for value in dict.fromkeys(log) if value.startswith(b"%d " % client)]
            assert own == sorted(own)
    assert not any(queue.chain.live_entries for queue in world.harness.topics), "each record has its outcome"
    if not (world.has_bad or world.may_lose):  # a batch in doubt fails whole for one bad record
        assert {value for log in logs for value in log} == set(world.accepted)
