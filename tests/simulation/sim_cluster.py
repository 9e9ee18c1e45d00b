"""SimCluster: the brokers of a simulated world, their topic, and what goes wrong on their side."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from producer.harness import answer

from sidecar.common.model import broker_of
from sidecar.protocol.describe_producers import ProducerState
from sidecar.protocol.produce import PartitionResult

from .broker_model import Answer, PartitionLog, WireBatch
from .sim_theme import SimTheme

NOT_LEADER = 6
UNKNOWN_TOPIC = 3
NOT_ENOUGH_REPLICAS = 19
UNKNOWN_TOPIC_ID = 100
REFUSED_BEFORE_APPEND = (2, 3, 5, 6, 7, 19, 56, 74)
ERROR_AFTER_APPEND = (-1, 3, 6, 7, 20, 56)
REFUSED_FOR_GOOD = (17, 29, 47)
SILENCE_MS = 1_000.0
"""A partition that got nothing for so long may lack in-sync replicas by the time that it gets something."""
HEALTHY = 1.0
"""No fault is drawn: more than a random number can be."""


class SimCluster:
    """Leaders and logs of one topic. ``happened`` counts each kind of fault."""

    def __init__(self, rng: random.Random, happened: Counter[str], theme: SimTheme) -> None:
        self.random = rng
        self.happened = happened
        self.nodes = list(range(1, rng.randint(1, 3) + 1))
        self.partitions = rng.choice(theme.partitions)
        self.leaders = [rng.choice(self.nodes) for _ in range(self.partitions)]
        self.fault_rate = rng.choice(theme.fault_rates)
        self.records_max = rng.choice(theme.records_max)
        self.expiration_ms = rng.choice(theme.expirations_ms)
        self.check_ms = rng.choice(theme.checks_ms)
        self.has_topic_ids = rng.choice(theme.has_topic_ids)
        self.loses_ids = rng.choice(theme.loses_ids)
        self.is_only_short = theme.is_only_short
        """Between two batches that are under way, as a leader may after a crash of its host."""
        self.generations: list[dict[int, PartitionLog]] = []
        """Logs by partition; the last is the topic that is there, the others were deleted."""
        self._absent_until_ms = 0.0
        self._short_of_replicas_ms = dict.fromkeys(range(self.partitions), 0.0)
        self._arrived_ms = dict.fromkeys(range(self.partitions), 0.0)
        self._checked_ms = 0.0
        self.may_check: Callable[[], bool] = lambda: True
        """Told by the world: no check comes between a question and the copy that follows it."""
        self._make_topic()

    @property
    def logs(self) -> dict[int, PartitionLog]:
        return self.generations[-1]

    @property
    def generation(self) -> int:
        return len(self.generations)

    def _make_topic(self) -> None:
        self.generations.append(
            {
                index: PartitionLog(
                    records_max=self.records_max, happened=self.happened, expiration_ms=self.expiration_ms
                )
                for index in range(self.partitions)
            }
        )

    # --- events ------------------------------------------------------------------------------------------------

    def move_leader(self) -> None:
        self.happened["leader moved"] += 1
        self.leaders[self.random.randrange(self.partitions)] = self.random.choice(self.nodes)

    def make_topic_anew(self, now_ms: float) -> None:
        """Deleted and created again, in an instant or not quite."""
        self.happened["topic made anew"] += 1
        self._make_topic()
        self._absent_until_ms = now_ms + self.random.choice((0.0, 5.0, 40.0))
        for partition in self._short_of_replicas_ms:
            self._short_of_replicas_ms[partition] = self._absent_until_ms + self.random.choice(
                (0.0, 20.0, 100.0)
            )

    def lose_replicas(self, now_ms: float) -> None:
        """min.insync.replicas is not reached for a while."""
        partition = self.random.randrange(self.partitions)
        self._short_of_replicas_ms[partition] = now_ms + self.random.uniform(1.0, 400.0)

    def make_stricter(self, now_ms: float) -> None:
        """The topic's configuration changes; batches taken before are refused now."""
        log = self.logs[self.random.randrange(self.partitions)]
        match self.random.randrange(3):
            case 0:
                self.happened["topic's limit lowered"] += 1
                log.records_max = min(log.records_max, self.random.randint(1, 3))
            case 1:
                self.happened["topic compacted"] += 1
                log.needs_keys = True
            case _:
                self.happened["topic takes no older records"] += 1
                log.oldest_ms = now_ms - self.random.choice((0.0, 50.0, 5_000.0))

    # --- requests ----------------------------------------------------------------------------------------------

    def process(
        self, node: int, batches: list[WireBatch], now_ms: float, *, faulty: bool
    ) -> list[PartitionResult]:
        """Processing of a request by ``node``, and its answer."""
        self._check(now_ms)
        results = []
        for batch in batches:
            done = self._one(node, batch, now_ms, self.random.random() if faulty else HEALTHY)
            results.append(
                answer(
                    batch.partition,
                    done.code,
                    base_offset=done.base_offset,
                    record_errors=done.record_errors,
                    log_start_offset=0,
                )
            )
        return results

    def describe_producers(self, partition: int, now_ms: float) -> dict[int, ProducerState]:
        """As the leader tells them by id."""
        self._check(now_ms)
        return {
            producer_id: ProducerState(each.epoch, each.last_sequence)
            for producer_id, each in self.logs[partition].producers.items()
        }

    def _check(self, now_ms: float) -> None:
        if now_ms - self._checked_ms >= self.check_ms and self.may_check():
            self._checked_ms = now_ms
            for log in self.logs.values():
                log.forget_expired(now_ms)

    def _one(self, node: int, batch: WireBatch, now_ms: float, fault: float) -> Answer:
        happened, partition = self.happened, batch.partition
        idle_ms = now_ms - self._arrived_ms[partition]
        self._arrived_ms[partition] = now_ms
        if self.leaders[partition] != broker_of(node):
            happened["sent to another than the leader"] += 1
            return Answer(NOT_LEADER)
        if now_ms < self._absent_until_ms:
            happened["topic not there"] += 1
            return Answer(UNKNOWN_TOPIC)
        if batch.generation is not None and batch.generation != self.generation:
            happened["old topic id refused"] += 1
            return Answer(UNKNOWN_TOPIC_ID)
        if fault < self.fault_rate / 2:
            happened["refused before append"] += 1
            return Answer(
                NOT_ENOUGH_REPLICAS if self.is_only_short else self.random.choice(REFUSED_BEFORE_APPEND)
            )
        if fault < self.fault_rate * 0.55 and not self.is_only_short:
            happened["refused for good"] += 1
            return Answer(self.random.choice(REFUSED_FOR_GOOD))
        if now_ms < self._short_of_replicas_ms[partition]:
            happened["too few replicas"] += 1
            return Answer(NOT_ENOUGH_REPLICAS)
        if fault < HEALTHY and idle_ms > SILENCE_MS and self.random.random() < self.fault_rate * 3:
            happened["too few replicas after a silence"] += 1
            return Answer(NOT_ENOUGH_REPLICAS)
        forgets = self.loses_ids and fault < HEALTHY and self.random.random() < self.fault_rate
        done = self.logs[partition].append(batch, now_ms, forgets=forgets)
        if done.code == 0 and fault < self.fault_rate and not self.is_only_short:
            happened["error after append"] += 1
            return Answer(self.random.choice(ERROR_AFTER_APPEND))
        return done
