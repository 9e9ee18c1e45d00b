"""Outcomes on their way to journal and clients: once each, in order, and nobody held up by who does not read."""

from __future__ import annotations

import pytest

from client_stub.contract.wire import LocalCode, OutcomeKind, Persistence
from sidecar.deadletter.letters import Undelivered
from sidecar.kernel import entry_words, fail_remaining
from sidecar.producer.effects import Decided
from sidecar.producer.producer_batch import NO_DESCRIPTOR
from sidecar.shm.client_table import ClientRow
from sidecar.shm.descriptor_states import DescriptorState
from sidecar.shm.recovery import describe_undelivered
from sidecar.worker.outcomes.settlement import BEAT_BATCHES, SLICES_MAX
from sidecar.worker.streams.session import ClientSession
from sidecar.worker.streams.topic_queue import TopicQueue
from tests.outcomes import unpack_outcomes
from tests.worker.harness import Harness, told

DONE = 0xFFFE


@pytest.mark.rule("A6")
def test_each_client_of_a_delivered_batch_gets_its_own_offsets(harness: Harness) -> None:
    one, two = harness.client("one"), harness.client("two")
    first, second = harness.accept(one, 1, 3), harness.accept(two, 1, 2)
    batch = harness.batch(first, second)
    descriptor = batch.descriptor
    batch.decide(base_offset=100, append_time_ms=-1)
    harness.settlement.settle(Decided((batch,)), 1.0)

    (to_one,), (to_two,) = told(one.row), told(two.row)
    assert (to_one.kind, to_one.seq, to_one.base_offset, to_one.count) == (OutcomeKind.DELIVERED, 1, 100, 3)
    assert (to_two.kind, to_two.seq, to_two.base_offset, to_two.count) == (OutcomeKind.DELIVERED, 1, 103, 2)
    assert to_one.persistence == Persistence.PERSISTED
    assert first.remaining == 0
    assert harness.descriptors.state(descriptor) == DescriptorState.FREE
    assert harness.counters.get("records_delivered_total") == 5
    assert (one.unsettled_records, two.unsettled_records) == (0, 0)
    assert describe_undelivered(harness.segment) == []


def fill_ring(harness: Harness, client: ClientSession, *, room: int) -> None:
    """With copies of a legal outcome, up to ``room`` of them."""
    filler = harness.batch(harness.accept(client, 1, 1), publish=False)
    is_full = False
    while not is_full:
        data = filler.records.outcomes(
            0,
            number=client.row.next_number,
            kind=1,
            persistence=2,
            code=0,
            partition=0,
            base_offset=0,
            append_time_ms=-1,
        )
        is_full = client.row.ring_free_bytes < (room + 1) * len(data) or not client.row.ring_append(data)


@pytest.mark.rule("A6")
def test_a_client_that_does_not_read_holds_up_only_its_own_outcomes(harness: Harness) -> None:
    deaf, other = harness.client("deaf"), harness.client("other")
    fill_ring(harness, deaf, room=0)
    mine, theirs = harness.accept(deaf, 2, 1), harness.accept(other, 1, 1)
    shared = harness.batch(mine, theirs)
    descriptor = shared.descriptor
    shared.decide(base_offset=7)
    harness.settlement.settle(Decided((shared,)), 1.0)

    assert [outcome.base_offset for outcome in told(other.row)] == [8]
    assert len(deaf.unwritten) == 1
    assert deaf.ring_full_since_ms == 1.0
    assert harness.descriptors.state(descriptor) == DescriptorState.STORED
    assert entry_words(harness.chain, mine) != [0xFFFE]

    last = deaf.row.next_number - 1
    deaf.row.ring_ack(last)
    harness.acker.acked(deaf, 2.0)
    assert [outcome.base_offset for outcome in told(deaf.row, last + 1)] == [7]
    assert harness.descriptors.state(descriptor) == DescriptorState.FREE
    assert mine.remaining == 0


@pytest.mark.rule("A6")
def test_batches_that_are_decided_together_reach_each_client_by_one_store(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = harness.client("one"), harness.client("two")
    batches = []
    for partition in range(4):
        entries = harness.accept(one, partition + 1, 2), harness.accept(two, partition + 1, 1)
        batches.append(harness.batch(*entries, partition=partition))
        batches[-1].decide(base_offset=10 * partition)
    stores: list[str] = []
    append = ClientRow.ring_append

    def noted(row: ClientRow, outcomes: bytes) -> bool:
        stores.append(row.name)
        return append(row, outcomes)

    monkeypatch.setattr(ClientRow, "ring_append", noted)
    harness.settlement.settle(Decided(tuple(batches)), 1.0)
    assert sorted(stores) == ["one", "two"]
    assert [each.base_offset for each in told(one.row)] == [0, 10, 20, 30]
    assert [each.base_offset for each in told(two.row)] == [2, 12, 22, 32]
    assert list(harness.descriptors) == []
    assert harness.counters.get("records_delivered_total") == 12
    assert (one.unsettled_records, two.unsettled_records) == (0, 0)
    assert describe_undelivered(harness.segment) == []


@pytest.mark.parametrize(
    ("submissions", "stores"), [(SLICES_MAX, [SLICES_MAX]), (SLICES_MAX + 1, [SLICES_MAX, 1])]
)
def test_outcomes_of_many_submissions_go_into_the_ring_in_bounded_parts(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, submissions: int, stores: list[int]
) -> None:
    client = harness.client()
    batch = harness.batch(*(harness.accept(client, seq, 1) for seq in range(1, submissions + 1)))
    batch.decide(base_offset=0)
    found: list[int] = []
    append = ClientRow.ring_append

    def noted(row: ClientRow, outcomes: bytes) -> bool:
        found.append(len(unpack_outcomes(outcomes)))
        return append(row, outcomes)

    monkeypatch.setattr(ClientRow, "ring_append", noted)
    harness.settlement.settle(Decided((batch,)), 1.0)
    assert found == stores
    assert [each.base_offset for each in told(client.row)] == list(range(submissions))
    assert list(harness.descriptors) == []
    assert client.unsettled_records == 0


@pytest.mark.rule("A6")
def test_a_failure_between_deliveries_keeps_its_place(harness: Harness) -> None:
    """All of one partition: their outcomes stand in the ring in the order in which they were decided."""
    client = harness.client()
    batches = [harness.batch(harness.accept(client, seq, 1)) for seq in (1, 2, 3)]
    batches[0].decide(base_offset=5)
    batches[1].decide(code=LocalCode.EXPIRED, persistence=Persistence.NOT_PERSISTED, text="too late")
    batches[2].decide(base_offset=6)
    harness.settlement.settle(Decided(tuple(batches)), 1.0)
    assert [(each.seq, each.code) for each in told(client.row)] == [(1, 0), (2, LocalCode.EXPIRED), (3, 0)]
    assert [each.state for each in harness.descriptors] == [DescriptorState.STORED], "until its client's ack"


@pytest.mark.rule("A6")
def test_a_ring_with_room_for_some_outcomes_takes_these_and_the_others_after_an_ack(harness: Harness) -> None:
    client = harness.client()
    fill_ring(harness, client, room=2)
    batches = [harness.batch(harness.accept(client, seq, 1), partition=seq) for seq in (2, 3, 4)]
    for batch in batches:
        batch.decide(base_offset=batch.partition)
    last = client.row.next_number - 1
    harness.settlement.settle(Decided(tuple(batches)), 1.0)
    assert [each.base_offset for each in told(client.row, last + 1)] == [2, 3]
    assert client in harness.outboxes.pending, "it has something to hear"
    assert client.ring_full_since_ms == 1.0
    assert len(list(harness.descriptors)) == 3
    client.row.ring_ack(last)
    harness.acker.acked(client, 2.0)
    assert [each.base_offset for each in told(client.row, last + 1)] == [2, 3, 4]
    assert list(harness.descriptors) == []
    assert client.ring_full_since_ms is None


@pytest.mark.rule("A6")
def test_outcomes_that_wait_for_capacity_are_written_in_order(harness: Harness) -> None:
    """Of one partition, decided one by one while the ring is full, and both kinds of outcome among them."""
    client = harness.client()
    fill_ring(harness, client, room=0)
    last = client.row.next_number - 1
    for seq in (2, 3, 4, 5):
        batch = harness.batch(harness.accept(client, seq, 1))
        if seq == 4:
            batch.decide(code=LocalCode.EXPIRED, persistence=Persistence.NOT_PERSISTED, text="too late")
        else:
            batch.decide(base_offset=seq)
        harness.settlement.settle(Decided((batch,)), 1.0)
    assert told(client.row, last + 1) == []
    assert len(client.unwritten) == 4
    client.row.ring_ack(last)
    harness.acker.acked(client, 2.0)
    found = [(each.seq, each.code) for each in told(client.row, last + 1)]
    assert found == [(2, 0), (3, 0), (4, LocalCode.EXPIRED), (5, 0)]


def test_a_cut_client_counts_as_complete_and_frees_what_it_held(harness: Harness) -> None:
    deaf = harness.client("deaf")
    entry = harness.accept(deaf, 1, 1)
    batch = harness.batch(entry)
    descriptor = batch.descriptor
    batch.decide(base_offset=7)
    deaf.unwritten.append(_Blocked())
    harness.settlement.settle(Decided((batch,)), 1.0)
    assert told(deaf.row) == []
    harness.acker.abandon(deaf)
    assert not harness.worker.host.work, "nothing for the dead letters"
    assert harness.descriptors.state(descriptor) == DescriptorState.FREE
    assert describe_undelivered(harness.segment) == []


class _Blocked:
    row = generation = outcomes = 0
    is_failure = False

    def write(self, row: object) -> bool:
        return False

    def undelivered(self, row: object, name_of: object) -> list[Undelivered]:
        return []

    def release(self, *, dead: bool = False) -> None:
        pass


def test_an_outcome_for_a_row_given_to_somebody_else_is_not_written(harness: Harness) -> None:
    gone = harness.client("gone")
    entry = harness.accept(gone, 1, 1)
    batch = harness.batch(entry)
    harness.sessions.detach(gone, 0.0, for_good=True)
    gone.unsettled_records = 0
    harness.sessions.reclaim(1.0)
    heir = harness.client("heir")
    assert heir.row.index == gone.row.index
    batch.decide(base_offset=7)
    harness.settlement.settle(Decided((batch,)), 1.0)
    assert told(heir.row) == []
    assert entry.remaining == 0


def test_a_batch_that_fails_before_it_was_drained_is_a_fact_by_its_words(harness: Harness) -> None:
    client = harness.client()
    entry = harness.accept(client, 1, 2)
    batch = harness.batch(entry, publish=False)
    assert batch.descriptor == NO_DESCRIPTOR
    batch.decide(code=LocalCode.EXPIRED, persistence=Persistence.NOT_PERSISTED, text="too late")
    harness.settlement.settle(Decided((batch,)), 1.0)
    (outcome,) = told(client.row)
    assert (outcome.kind, outcome.code, outcome.text) == (OutcomeKind.FAILED, LocalCode.EXPIRED, "too late")
    assert outcome.persistence == Persistence.NOT_PERSISTED
    assert entry.remaining == 2, "kept until the client has acknowledged it"
    assert harness.counters.get("records_failed_total") == 0
    client.row.ring_ack(outcome.number)
    harness.acker.acked(client, 2.0)
    assert entry.remaining == 0
    assert harness.counters.get("records_failed_total") == 2


def test_a_topic_that_never_came_names_why_no_broker_answers(harness: Harness) -> None:
    client = harness.client()
    entry = harness.accept(client, 1, 1)
    failures = [
        (i, int(LocalCode.METADATA_TIMEOUT))
        for i in fail_remaining(harness.chain, entry, LocalCode.METADATA_TIMEOUT)
    ]
    harness.settlement.cluster_error = "Kafka is not reachable: its certificate has expired."
    harness.settlement.fail_records(TopicQueue("t", 0, harness.chain), entry, failures, 1.0)
    (outcome,) = told(client.row)
    assert outcome.text.endswith("(max.block.ms). Kafka is not reachable: its certificate has expired.")


def test_failures_before_partitioning_are_reported_in_runs(harness: Harness) -> None:
    client = harness.client()
    entry = harness.accept(client, 1, 5)
    failed = fail_remaining(harness.chain, entry, LocalCode.METADATA_TIMEOUT)
    queue = TopicQueue("t", 0, harness.chain)
    failures = [(i, int(LocalCode.METADATA_TIMEOUT)) for i in failed]
    harness.settlement.fail_records(queue, entry, failures, 1.0)
    (outcome,) = told(client.row)
    assert (outcome.first_index, outcome.count, outcome.code) == (0, 5, LocalCode.METADATA_TIMEOUT)
    assert outcome.text == "Topic t not present in metadata after 60000 ms (max.block.ms)."
    client.row.ring_ack(outcome.number)
    harness.acker.acked(client, 2.0)
    assert harness.chain.live_entries == 0


def test_pages_go_back_when_all_their_records_are_complete(harness: Harness) -> None:
    client = harness.client()
    entries = [harness.accept(client, seq, 400) for seq in range(1, 40)]
    taken = harness.pool.taken_count
    assert taken > 5
    for entry in entries:
        batch = harness.batch(entry)
        batch.decide(base_offset=0)
        harness.settlement.settle(Decided((batch,)), 1.0)
        client.row.ring_ack(client.row.next_number - 1)
    for chain in harness.rooms.releases.released_chains:
        harness.pool.give(chain.release_pages())
    harness.pool.give(harness.chain.release_idle())
    assert harness.pool.taken_count == 0


def test_the_heartbeat_moves_while_many_batches_are_settled(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = harness.client()
    batches = []
    for seq in range(1, 2 * BEAT_BATCHES + 2):
        batches.append(harness.batch(harness.accept(client, seq, 1)))
        batches[-1].decide(base_offset=seq)
    settled: list[int] = []
    monkeypatch.setattr(
        harness.settlement._memory,
        "beat",
        lambda: settled.append(harness.counters.get("records_delivered_total")),
    )
    harness.settlement.settle(Decided(tuple(batches)), 1.0)
    assert settled == [BEAT_BATCHES, 2 * BEAT_BATCHES]
