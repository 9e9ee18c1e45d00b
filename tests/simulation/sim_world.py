"""SimWorld: the producer core against a modelled cluster, under faults drawn from one seeded random
generator.

Everything that happens is an event at a simulated time; nothing sleeps, and a seed replays exactly.

One fault is left out, because no producer can tell it from success: a broker that processes a request of a dead
connection later than a client's retry backoff. A broker that forgets producer ids sooner than a batch may be under
way makes order and single copies impossible; outcomes must be true there, too.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop

from producer.fake_kernel import FakeBlock
from producer.harness import TOPIC

from client_stub.contract.wire import Persistence
from sidecar.common.model import broker_of
from sidecar.producer.broker_memory import TIMESTAMP_AGE_MS
from sidecar.producer.lane_queues import RESTING_MAX
from sidecar.producer.topic_settings import TopicRules

from .sim_calm import PATIENCE_MS
from .sim_ledger import Payload
from .sim_shell import START_MS, SimShell
from .sim_theme import NEVER_MS, RECREATED, SANE_MS

FORGET_RATE = 0.2
"""Of the submissions before which the partitions rest."""
PAUSE_MS_MAX = 1_500.0
"""Over before the faults are."""


class SimWorld(SimShell):
    # --- the run --------------------------------------------------------------------------------------------

    def run(self, submissions: int = 60) -> None:
        rng, cluster = self.random, self.cluster
        at = START_MS
        pause_ms = rng.choice((0.0, 0.0, 2_000.0, SANE_MS + 1_000.0))
        for _ in range(submissions):
            at += rng.choice(self.theme.gaps_ms) * rng.random()
            if rng.random() < 0.05:
                if self.rests_in_pauses and pause_ms > PATIENCE_MS:
                    self.at(at + 2_000.0, self.heal)
                    self.at(at + pause_ms, lambda: self.calm.end(self.now_ms))
                at += pause_ms
            self.at(at, self.submit)
        general = [cluster.move_leader, self.silence_leader, lambda: cluster.make_stricter(self.now_ms)]
        faults = (
            *[self.cut_connection] * self.theme.cut_weight,
            *([] if self.theme.is_only_short else general),
            lambda: cluster.lose_replicas(self.now_ms),
            *[self.make_topic_anew] * self.theme.anew_weight,
            self.pause_topic,
        )
        for _ in range(int(submissions * self.fault_rate)):
            self.at(rng.uniform(START_MS, at), rng.choice(faults))
        force = rng.random() < 0.15
        self.at(at + 1.0, lambda: self.sender.begin_close(self.now_ms))
        self.at(at + 2_000.0, self.heal)
        if force:
            self.at(at + rng.uniform(1.0, 400.0), lambda: self.sender.force_close(self.now_ms))
        self.turn()
        limit_ms = at + 400_000.0
        while self._events or self.sender.next_wakeup_ms < float("inf"):
            wakeup_ms = max(self.sender.next_wakeup_ms, self.now_ms)
            if self._events and self._events[0][0] <= wakeup_ms:
                self.now_ms, _, event = heappop(self._events)
                event()
            else:
                self.now_ms = wakeup_ms
            assert self.now_ms < limit_ms, "the run does not come to an end"
            self.turn()
        assert self.sender.is_idle, "nothing is due any more, but not everything has an outcome"
        assert not self.published, f"descriptors of finished batches are left: {self.published}"
        assert self.descriptors.free_count == self.descriptors_free
        assert not self.buffers.taken_bytes
        self.count_outcomes()
        forgets = cluster.expiration_ms < NEVER_MS
        is_asked = self.old_rate == 0 or self.when_unknown == "fail"
        may_go_again = forgets and not (cluster.expiration_ms >= SANE_MS and is_asked)
        # Without topic ids what was sent to the old topic arrives in the new one, which takes any first sequence.
        knows_topics = cluster.has_topic_ids or cluster.generation == 1
        in_order = self.idempotent and cluster.expiration_ms >= SANE_MS and knows_topics
        self.ledger.check(
            cluster.generations,
            told_in_order=in_order,
            single=self.idempotent and not may_go_again,
            ordered=in_order or self.config.max_in_flight_requests_per_connection == 1,
            remembered=in_order
            and not cluster.loses_ids
            and (cluster.generation == 1 or self.theme is RECREATED),
            # Nor is it fenced by a broker that took it ahead of refused ones, having lost the id.
            fenced=self.producer_ids_used == 1
            and not forgets
            and not cluster.loses_ids
            and cluster.generation == 1,
        )

    def count_outcomes(self) -> None:
        for code, persistence, _ in self.ledger.outcomes.values():
            if code:
                self.happened[f"told as failed, {Persistence(persistence).name.lower()}"] += 1

    def turn(self) -> None:
        """As the driver does: poll, carry out."""
        for _ in range(100):
            effects = self.sender.poll(self.snapshot, self, self.now_ms)
            for effect in effects:
                self.carry_out(effect)
            if self.dies():
                continue
            self.sender.check_descriptors()
            if self.sender.next_wakeup_ms > self.now_ms:
                self.check_bounds()
                return
        raise AssertionError("the sender asks to be polled again and again without anything due")

    def dies(self) -> bool:
        """Whether another worker has taken the place of this one. See MortalWorld."""
        return False

    def check_bounds(self) -> None:
        """No deadline lies before the time at which the core looks for one; it looks for none when there is none."""
        deadlines_ms = [batch.deadline_ms for batch in self.accumulator.incomplete.oldest_first()]
        assert self.accumulator.incomplete.next_expiry_ms <= min(deadlines_ms, default=float("inf"))
        in_flight = self.sender._in_flight
        requests = [request for each in in_flight.by_node.values() for request in each.values()]
        assert in_flight.next_deadline_ms <= min((r.deadline_ms for r in requests), default=float("inf"))
        holding = Counter(batch.drained_to for batch in self.accumulator.incomplete.oldest_first())
        assert {node: count for node, count in self.accumulator.incomplete.under_way.items() if count} == {
            node: count for node, count in holding.items() if node is not None
        }
        if not deadlines_ms:
            assert self.accumulator.incomplete.next_expiry_ms == float("inf")
        if not requests:
            assert in_flight.next_deadline_ms == float("inf")

    # --- submissions and faults -----------------------------------------------------------------------------

    def let_rest(self) -> None:
        """The table of topics is short of names: this one's is given to another until its next record. Partitions with
        nothing under way keep a number, or nothing under a new epoch."""
        queues = self.accumulator.lanes[self.lane]
        queues.resting_max = self.forgets.choice((0, 1, RESTING_MAX))
        before, epoch = len(list(queues)), self.ids.identity
        queues.forget_topic(TOPIC)
        self.happened["partition rested"] += before - len(list(queues))
        self.happened["epoch begun for resting partitions"] += self.ids.identity != epoch
        for queue in queues:  # its records keep the topic
            queues.opened.setdefault(TOPIC, {})[queue] = None

    def submit(self) -> None:
        if self.forgets.random() < FORGET_RATE:
            self.let_rest()
        rng = self.random
        records = []
        client, is_express = self.draw_client()
        for _ in range(rng.randint(1, 8)):
            partition = rng.randrange(self.cluster.partitions)
            is_bad = rng.random() < self.bad_rate
            is_keyless = rng.random() < self.keyless_rate
            number = next(self._numbers[partition])
            records.append((partition, Payload(partition, number, is_bad, is_keyless, client, is_express)))
        self.ledger.accepted.extend(payload for _, payload in records)
        flush = rng.random() < 0.1
        age_ms = rng.choice((TIMESTAMP_AGE_MS + 1, 5_000_000.0)) if rng.random() < self.old_rate else 0.0
        stamp_ms = int(self.now_ms - age_ms)
        self.accepted.update((payload, (self.now_ms, stamp_ms)) for _, payload in records)
        block = FakeBlock(records, 100, stamp_ms)
        self.accumulator.append(
            TOPIC,
            self.lane,
            block,
            self.now_ms,
            expedited=flush,  # type: ignore[arg-type]
            express=is_express,
        )
        if flush:
            self.accumulator.expedite(TOPIC, self.lane, self.now_ms)

    def draw_client(self) -> tuple[int, bool]:
        """The client that submits next, and whether it passes the records in bulk: only one with nothing unfinished
        there may."""
        client = self.clients.randrange(self.client_count)
        wants = client > 0 and self.clients.random() < self.quiet_rate
        open_payloads = (each for each in self.ledger.accepted if each not in self.ledger.outcomes)
        is_express = wants and all(each.is_express for each in open_payloads if each.client == client)
        self.happened["went express"] += is_express
        return client, is_express

    def cut_connection(self) -> None:
        if self.connections:
            self.happened["connection cut"] += 1
            self.close(self.random.choice(sorted(self.connections)))

    def silence_leader(self) -> None:
        """A leader goes on appending but does not answer for a while; the partition moves and clients hear of it."""
        self.happened["leader silent"] += 1
        partition = self.random.randrange(self.cluster.partitions)
        for connection in self.connections.values():
            if broker_of(connection.node) != self.cluster.leaders[partition]:
                continue
            connection.answer_ms = max(connection.answer_ms, self.now_ms) + self.random.uniform(100.0, 700.0)
        self.after(self.random.uniform(5.0, 20.0), self.cluster.move_leader)
        self.after(self.random.uniform(20.0, 40.0), self.refresh_metadata)

    def make_topic_anew(self) -> None:
        """Clients hear of it soon, or when something is refused."""
        self.cluster.make_topic_anew(self.now_ms)
        if self.random.random() < 0.5:
            self.after(self.random.uniform(5.0, 100.0), self.refresh_metadata)

    def pause_topic(self) -> None:
        """By an operator; sent requests go on meanwhile."""
        self.happened["topic paused"] += 1
        self.use_rules(TOPIC)
        self.after(self.random.uniform(1.0, PAUSE_MS_MAX), self.use_rules)

    def use_rules(self, *paused: str) -> None:
        self.accumulator.use_rules(TopicRules(self.config, paused=paused), self.now_ms)
        self.sender.wake()

    def heal(self) -> None:
        self.calm.begin(self.now_ms)
