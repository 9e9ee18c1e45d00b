"""Goal: a broker that is there, with something due and nothing in flight, is sent something while one descriptor is
free. That is at once, or when its retries have backed off. Splits, retries, lost connections, moved leaders and
pauses change nothing of that."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from sidecar.producer.in_flight import ProduceRequest
from sidecar.producer.lanes import IDEMPOTENT_LANE, PLAIN_LANE
from sidecar.producer.producer_batch import NO_DESCRIPTOR, ProducerBatch
from sidecar.producer.topic_settings import TopicRules
from sidecar.protocol.produce import PartitionResult

from .harness import TOPIC, Core, answer, ready_nodes, snapshot_of

CODES = (0, 0, 0, 6, 7, 10, 10, 19, 19)
BROKERS = (1, 2)
PARTITIONS = 6
TOPICS = (TOPIC, "other")
SEEDS = 100
STEPS = 150
BACKOFF_MS = 2_000.0
"""Longer than any."""


class Model:
    """A core whose brokers answer at random, over a table of few descriptors."""

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        self.lane = rng.choice((IDEMPOTENT_LANE, PLAIN_LANE))
        self.core = Core(
            leaders=[1],
            lane=self.lane,
            descriptors=rng.choice((-63, -62, -60, 1, 2, 3, 4, 8)),
            enable_idempotence=self.lane == IDEMPOTENT_LANE,
            acks=-1 if self.lane == IDEMPOTENT_LANE else 1,
            max_in_flight_requests_per_connection=rng.choice((1, 2, 5)),
            delivery_timeout_ms=1e9,
            batch_size=rng.choice((0, 861)),
        )
        self.move_leaders()
        self.free = self.core.descriptors.free_count
        self.paused: list[str] = []
        self.in_flight: list[ProduceRequest] = []
        self.happened: Counter[str] = Counter()

    def move_leaders(self) -> None:
        leaders = {topic: [self.random.choice(BROKERS) for _ in range(PARTITIONS)] for topic in TOPICS}
        self.core.snapshot = snapshot_of(leaders, version=self.core.snapshot.version + 1)

    def pause(self, *topics: str) -> None:
        self.paused = list(topics)
        rules = TopicRules(self.core.config, paused=topics)
        self.core.accumulator.use_rules(rules, self.core.now_ms)
        self.core.sender.wake()

    def step(self) -> None:
        rng, core = self.random, self.core
        match rng.randrange(10):
            case 0 | 1 | 2:
                topic, partition = rng.choice(TOPICS), rng.randrange(PARTITIONS)
                core.append(*range(rng.randint(1, 5)), partition=partition, topic=topic)
            case 3 | 4 | 5 | 6 if self.in_flight:
                request = self.in_flight.pop(rng.randrange(len(self.in_flight)))
                core.respond(request, *map(self.answer, request.batches))
            case 7:
                core.clock.advance(rng.choice((1.0, 50.0, 2_000.0)))
            case 8:
                broker = rng.choice(BROKERS)
                core.links.down.symmetric_difference_update({broker})
                core.sender.on_disconnect(broker, core.now_ms)
                self.in_flight = [each for each in self.in_flight if each.node_id != broker]
            case _ if rng.random() < 0.3:
                self.move_leaders()
            case _ if rng.random() < 0.3:
                self.pause(*rng.choice(((), TOPICS[:1], TOPICS[1:])))
        self.settle()

    def answer(self, batch: ProducerBatch) -> PartitionResult:
        code = self.random.choice(CODES)
        self.happened[f"code {code}"] += 1
        return answer(batch.partition, code, topic=batch.topic)

    def settle(self) -> None:
        self.poll()
        if self.stuck():
            self.core.clock.advance(BACKOFF_MS)  # for batches that have their descriptors, and back off
            self.poll()
            assert not self.stuck(), f"broker {self.stuck()} has something due, and nothing in flight"

    def poll(self) -> None:
        """Until nothing asks for it any more."""
        core = self.core
        for _ in range(50):
            self.in_flight += core.poll()
            if core.sender.next_wakeup_ms > core.now_ms:
                return
        raise AssertionError("it asks to be polled again and again")

    def stuck(self) -> list[int]:
        """Brokers that are there, have something due and nothing in flight, though a descriptor is free."""
        core = self.core
        ready = ready_nodes(core.accumulator.schedule)
        idle = [
            each for each in ready if each not in core.links.down and not core.sender._in_flight.count(each)
        ]
        self.happened["waited for a descriptor"] += len(idle)
        return idle if core.descriptors.free_count else []

    def end(self) -> None:
        """All brokers are there and take everything. Batches of a paused topic that stay were never sent."""
        core = self.core
        core.links.down.clear()
        self.take_everything()
        left = core.accumulator.incomplete.oldest_first()
        self.happened["left by a pause"] += len(left)
        assert all(batch.topic in self.paused and batch.descriptor == NO_DESCRIPTOR for batch in left), left
        self.pause()
        self.take_everything()
        assert core.sender.is_idle, "something waits for its deadline"
        assert core.descriptors.free_count == self.free

    def take_everything(self) -> None:
        core = self.core
        for _ in range(1_000):
            for request in self.in_flight:
                core.acknowledge(request)
            self.in_flight = []
            core.clock.advance(1_000.0)
            self.settle()
            if not self.in_flight and core.sender.next_wakeup_ms > core.now_ms + BACKOFF_MS:
                break


@pytest.mark.slow
@pytest.mark.rule("S1")
def test_no_state_of_a_small_table_leaves_a_broker_with_work_and_nothing_in_flight() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        model = Model(seed)
        try:
            for _ in range(STEPS):
                model.step()
            model.end()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        happened += model.happened
    assert happened["waited for a descriptor"], "tables were never full"
    assert happened["left by a pause"]
