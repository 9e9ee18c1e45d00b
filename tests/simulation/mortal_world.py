"""MortalWorld: a simulated world whose worker dies; another one adopts what it left and goes on.

Survivors are those of the segment: the accepted records, their reported outcomes, and the table of batch descriptors.
Reading them back is modelled after sidecar/worker/adoption; the producer core, the question to the broker and its
judgement are real.
"""

from __future__ import annotations

import random
from typing import Any

from producer.fake_kernel import FakeBlock, FakeRecords
from producer.harness import TOPIC

from client_stub.contract.wire import Persistence
from sidecar.common.condition import WaitCause
from sidecar.common.errors import Code
from sidecar.producer.batch_states import BatchState
from sidecar.producer.core import Core
from sidecar.producer.effects import AskBroker, Effect, InitProducerId
from sidecar.producer.in_flight import ProduceRequest
from sidecar.producer.lanes import NO_SEQUENCE
from sidecar.producer.partition_queue import PartitionQueue, give_orders
from sidecar.producer.producer_batch import NO_DESCRIPTOR, ProducerBatch
from sidecar.shm.descriptor_states import DescriptorState
from sidecar.worker.brokers.inquiry import Verdict, take_acked, verdict_on

from .sim_calm import SimCalm
from .sim_ledger import Payload
from .sim_shell import LATE_MS_MAX, START_MS
from .sim_world import SimWorld

ANSWER_MS_MAX = 300.0
"""Until the successor has the broker's word: by then, what a dead connection had delivered is processed."""


class _NoCalm(SimCalm):
    """Nobody is judged by it."""

    def check(self, batch: ProducerBatch) -> None:
        pass


class MortalWorld(SimWorld):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.outcomes = random.Random(f"death {seed}")
        """Of its own, so that the rest of a seed's parameters are those of a world without deaths."""
        self.deaths = self.outcomes.choice((1, 1, 2, 4)) if self.idempotent else 0
        self.may_ask = self.outcomes.choice((True, True, False))
        """Without the right to read a topic nobody is told who produced to it."""
        if self.outcomes.random() < 0.2:
            # So few that a split finds no two. A batch in doubt that is too large may wait for them to its end then.
            self.descriptors_free = self.outcomes.choice((1, 2, 3))
            while self.descriptors.free_count > self.descriptors_free:
                self.descriptors.free_indexes.pop()
            self.calm = _NoCalm()
        self.life = 0
        """Workers that have died."""
        self.requests: dict[int, tuple[ProduceRequest, int]] = {}
        """With the life that they are of, by their id in this process."""
        self.published_ms: dict[ProducerBatch, int] = {}
        self.steps_left = -1
        """Effects that the worker still carries out before it dies; below 0: it lives."""
        self.paused: tuple[str, ...] = ()

    def run(self, submissions: int = 60) -> None:
        for _ in range(self.deaths):
            self.at(START_MS + self.outcomes.expovariate(1.0 / 2_000.0), self.doom)
        super().run(submissions)

    def doom(self, tries: int = 50) -> None:
        """The worker dies with this turn's effects, rather when it has something to leave behind."""
        if tries and not any(batch.attempts for batch in self.published):
            self.after(self.outcomes.uniform(1.0, 40.0), lambda: self.doom(tries - 1))
        else:
            self.steps_left = self.outcomes.choice((0, 0, 1, 2, 5))

    def use_rules(self, *paused: str) -> None:
        self.paused = paused
        super().use_rules(*paused)

    # --- the death ------------------------------------------------------------------------------------------

    def carry_out(self, effect: Effect) -> None:
        """Later consequences of an effect come only if the same worker lives."""
        life = self.life
        if self.steps_left == 0:
            return  # it died before this one
        self.steps_left -= self.steps_left > 0
        match effect:
            case AskBroker(batch, at_ms):
                ask_ms = at_ms + self.random.uniform(1.0, 20.0)
                self.at(ask_ms, lambda: self.ask(batch) if self.life == life else None)
            case InitProducerId():
                answer_ms = self.now_ms + self.random.uniform(1.0, 50.0)
                self.at(answer_ms, lambda: self.answer_init() if self.life == life else None)
            case _:
                super().carry_out(effect)

    def dies(self) -> bool:
        is_over = self.steps_left == 0 or (self.steps_left > 0 and self.sender.is_idle)
        if is_over:
            self.die()
        return is_over

    def send(self, request: ProduceRequest) -> None:
        self.requests[id(request)] = request, self.life
        super().send(request)

    def put(self, request: ProduceRequest) -> None:
        if self.requests[id(request)][1] == self.life:
            super().put(request)

    def publish(self, batch: ProducerBatch) -> None:
        self.published_ms.setdefault(batch, int(self.now_ms))
        super().publish(batch)

    def die(self) -> None:
        self.happened["worker died"] += 1
        left = self.left_behind()
        is_closing = self.sender._closing
        for node in sorted(self.connections):
            self.close(node)
        self.life += 1
        self.steps_left = -1
        self.asked = {}
        self.published = {}
        self.prepared_ms = {}
        self.ids, self.accumulator, self.buffers, self.sender = Core.build(
            self.config,
            self.descriptors,
            random=self.random.random,
            timestamp_ms=lambda: int(self.now_ms),
            request_buffers_bytes=self.buffers.limit_bytes,
            records_factory=FakeRecords,  # type: ignore[arg-type]
        )
        super().use_rules(*self.paused)
        self.adopt(left)
        if is_closing:
            self.sender.begin_close(self.now_ms)

    def left_behind(self) -> dict[Payload, tuple[ProducerBatch, tuple[Any, ...]]]:
        """By record, the live descriptor that it stands under, and what that one says."""
        found = {}
        for batch, identity in self.published.items():
            if batch.descriptor == NO_DESCRIPTOR:
                continue
            assert self.descriptors.state(batch.descriptor) is DescriptorState.SENT_UNDER
            for payload in identity[3]:
                found[payload] = batch, identity
        return found

    # --- the adoption ---------------------------------------------------------------------------------------

    def adopt(self, left: dict[Payload, tuple[ProducerBatch, tuple[Any, ...]]]) -> None:
        sent: dict[PartitionQueue, list[tuple[ProducerBatch, int]]] = {}
        adopted: dict[ProducerBatch, ProducerBatch] = {}
        orders = self.orders_of({before for before, _ in left.values()})
        open_payloads = [each for each in self.ledger.accepted if each not in self.ledger.outcomes]
        # Chain by chain, and each in order.
        in_order = sorted(open_payloads, key=lambda each: (each.is_express, each.partition, each.number))
        for payload in in_order:
            accepted_ms, stamp_ms = self.accepted[payload]
            block = FakeBlock([(payload.partition, payload)], 100, stamp_ms)
            if payload not in left:
                self.accumulator.append(
                    TOPIC,
                    self.lane,
                    block,  # type: ignore[arg-type]
                    self.now_ms,
                    express=payload.is_express,
                    accepted_ms=lambda _, accepted_ms=accepted_ms: accepted_ms,  # type: ignore[misc]
                )
                continue
            before, (producer_id, epoch, sequence, payloads) = left[payload]
            queue = self.accumulator.queue(TOPIC, self.lane, payload.partition)
            batch = adopted.get(before)
            if batch is None:
                self.happened["batch adopted"] += 1
                batch = adopted[before] = ProducerBatch(
                    queue=queue,
                    records=FakeRecords(),  # type: ignore[arg-type]
                    chain=block.chain,  # type: ignore[arg-type]
                    order=orders[before],
                    is_express=before.is_express,
                    created_ms=accepted_ms,
                    deadline_ms=accepted_ms + queue.settings.delivery_timeout_ms,
                    state=BatchState.BETWEEN,
                )
                batch.descriptor = before.descriptor
                batch.identify(producer_id, epoch, sequence)
                batch.attempts = 1
                batch.in_doubt = True
                batch.retry_cause = WaitCause.ADOPTED
                batch.last_error = "the death of the worker that had sent it"
                if self.descriptors.read(batch.descriptor).persistence == Persistence.POSSIBLY_PERSISTED:
                    batch.doubt_whole()
                self.accumulator.adopt(batch, len(payloads))
                self.published_ms[batch] = self.published_ms[before]
                sent.setdefault(queue, []).append((batch, self.published_ms[before]))
            batch.records.try_append(block, 0, 1, 1 << 30)  # type: ignore[arg-type]
        self.accumulator.incomplete.put_in_order()
        for each in adopted.values():
            self.publish(each)
        life = self.life
        for queue, batches in sent.items():
            assert all(batch.base_sequence != NO_SEQUENCE for batch, _ in batches)
            self.after(
                self.outcomes.uniform(LATE_MS_MAX, ANSWER_MS_MAX),
                lambda queue=queue, batches=batches: self.ask_about(queue, batches, life),  # type: ignore[misc]
            )

    @staticmethod
    def orders_of(batches: set[ProducerBatch]) -> dict[ProducerBatch, int]:
        """As a successor finds them, by their sequences alone."""
        found: dict[tuple[int, int], list[ProducerBatch]] = {}
        for batch in sorted(batches, key=lambda each: each.records.payloads[0]):  # type: ignore[attr-defined]
            found.setdefault((batch.lane, batch.partition), []).append(batch)
        for each in found.values():
            give_orders(each)
        return {batch: batch.order for batch in batches}

    def ask_about(self, queue: PartitionQueue, batches: list[tuple[ProducerBatch, int]], life: int) -> None:
        """As Inquiry does, with the broker's answer at hand."""
        batches = [each for each in batches if not each[0].is_decided]
        batches.sort(key=lambda each: each[0].order)
        if self.life != life or not batches:
            return
        producers = self.cluster.describe_producers(queue.partition, self.now_ms) if self.may_ask else None
        assert len({batch.producer_id for batch, _ in batches}) == 1
        assert len({batch.epoch for batch, _ in batches}) == 1
        take_acked(batches[0][0], producers)
        verdict = verdict_on(batches, producers, int(self.now_ms))
        self.happened[f"asked about a dead worker's: {verdict.name.lower()}"] += 1
        for batch, _ in batches:
            if verdict is Verdict.UNKNOWN and self.when_unknown == "fail":
                self.sender.give_up(batch, Code.UNKNOWN_PRODUCER_ID, "forgotten", self.now_ms)
                continue
            self.asked[batch] = batch.attempts
            self.accumulator.resume(batch, self.now_ms)
        self.sender.wake()
