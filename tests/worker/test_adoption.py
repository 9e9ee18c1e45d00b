"""Goal: whatever a worker was doing when it died, its successor ends with every accepted record in the log once."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from client_stub.wire import OutcomeKind, Shape, unpack_outcomes
from sidecar.common.errors import Code
from sidecar.producer.effects import Completed, Split
from sidecar.producer.producer_batch import ProducerBatch
from sidecar.shm import buffer_pool, chain_table, client_table, descriptors, layout
from sidecar.shm.client_index import ClientIndex
from sidecar.shm.client_table import ClientTable
from sidecar.shm.descriptor_states import DescriptorState
from sidecar.shm.recovery import describe_undelivered
from sidecar.shm.segment import Segment
from sidecar.worker.adoption import adoption
from sidecar.worker.brokers.inquiry import Verdict
from sidecar.worker.fates.publication import publish_all
from tests.configs import producer_config
from tests.reading_back import row_of, stream_position

from .slot_stage import CLIENT_ID, OTHER_TOPIC, MemoryBroker, SlotStage


def submission(number: int, count: int = 4) -> tuple[list[bytes], list[int | None]]:
    values = [b"%d.%d" % (number, i) for i in range(count)]
    # Explicit partitions: who looks at the log knows where a record must be, and in which order.
    return values, [(number + i) % 2 for i in range(count)]


def accept(stage: SlotStage, session: Any, numbers: range) -> None:
    for number in numbers:
        stage.accept(session, *submission(number))


def check_end(stage: SlotStage, submissions: int, *, count: int = 4) -> None:
    """Every record of the submissions in the log once and in order, told, and nothing left anywhere."""
    expected: dict[int, list[bytes]] = {0: [], 1: []}
    for number in range(submissions):
        for value, partition in zip(*submission(number, count), strict=True):
            assert partition is not None
            expected[partition].append(value)
    assert {partition: stage.broker.log.get(partition, []) for partition in expected} == expected
    assert describe_undelivered(stage.segment) == []
    assert list(stage.descriptors) == []
    counters = stage.counters.read()
    assert counters["records_accepted_total"] == submissions * count
    assert counters["records_delivered_total"] == submissions * count
    assert counters["records_failed_total"] == 0
    row = row_of(ClientTable(stage.segment), CLIENT_ID)
    assert row is not None
    assert stream_position(row, 1) == submissions
    offsets = told_offsets(stage)
    for number in range(submissions):
        for index, (value, partition) in enumerate(zip(*submission(number, count), strict=True)):
            found = offsets[number + 1, index]
            assert len(found) == 1, "told again is told the same"
            (offset,) = found
            assert stage.broker.log[partition or 0][offset] == value
    assert all(session.unsettled_records == 0 for session in stage.sessions.by_row.values())
    for chain in list(stage.chain_table):
        pages = chain.release_idle()
        if pages:
            stage.pool.give(pages)
    assert not any(stage.segment.owners.cast("Q").tolist()), "every page is back"
    assert stage.pool.taken_count == 0


def told_offsets(stage: SlotStage) -> dict[tuple[int, int], set[int]]:
    """(seq, record index) → the offsets it was told at."""
    row = row_of(ClientTable(stage.segment), CLIENT_ID)
    assert row is not None
    news = row.ring_slice_from(1)
    told: dict[tuple[int, int], set[int]] = {}
    for outcome in unpack_outcomes(news[2]) if news else []:
        assert outcome.kind == OutcomeKind.DELIVERED, outcome
        if outcome.shape == Shape.RANGE:
            indexes = list(range(outcome.first_index, outcome.first_index + outcome.count))
        else:
            bits = int.from_bytes(outcome.indexes, "little")
            indexes = [outcome.first_index + i for i in range(bits.bit_length()) if bits >> i & 1]
        for place, index in enumerate(indexes):
            told.setdefault((outcome.seq, index), set()).add(outcome.base_offset + place)
    return told


def heir(stage: SlotStage, broker: MemoryBroker | None = None) -> SlotStage:
    """The successor of a worker that died where it stands."""
    following = SlotStage(stage.segment, broker or stage.broker, stage.segment.slot(0).incarnation + 1)
    following.broker.is_silent = False
    following.ask()
    return following


def test_accepted_and_not_yet_partitioned(segment: Segment) -> None:
    first = SlotStage(segment, MemoryBroker(), 1)
    session, known = first.attach()
    assert not known
    accept(first, session, range(5))
    second = heir(first)
    assert second.topics.waiting.entry_count == 5
    second.run()
    check_end(second, 5)


def test_partitioned_and_not_sent(segment: Segment) -> None:
    first = SlotStage(segment, MemoryBroker(), 1)
    first.know_topic()
    accept(first, first.attach()[0], range(5))
    second = heir(first)
    assert second.topics.waiting.entry_count == 0, "their words say where they go, metadata or not"
    second.run()
    check_end(second, 5)


def test_a_batch_larger_than_the_successors_request_buffers_goes_again(segment: Segment) -> None:
    """Its max.request.size is lower, and no record of a batch that has been sent is judged again."""
    first = SlotStage(segment, MemoryBroker(is_silent=True), 1)
    first.know_topic()
    first.accept(first.attach()[0], [b"x" * 5_000, b"value-1"], [0, 0])
    first.turn()
    first.turn()
    config = dataclasses.replace(first.config, max_request_size=1000)
    second = SlotStage(segment, first.broker, 2, config=config)
    second.buffers.limit_bytes = second.buffers.max_request_size * 2
    second.broker.is_silent = False
    second.ask()
    (batch, _), *_ = second.adopted
    assert batch.size_bytes > second.buffers.limit_bytes
    second.run()
    assert second.broker.log[0] == [b"x" * 5_000, b"value-1"]
    assert set(told_offsets(second)) == {(1, 0), (1, 1)}


def test_sent_and_not_answered_goes_again_as_it_was(segment: Segment) -> None:
    first = SlotStage(segment, MemoryBroker(is_silent=True), 1)
    first.know_topic()
    accept(first, first.attach()[0], range(8))
    first.turn()
    first.turn()
    sent = list(first.descriptors)
    assert {each.state for each in sent} == {DescriptorState.SENT_UNDER}
    log = {partition: list(values) for partition, values in first.broker.log.items()}
    assert log, "the broker has them"
    second = heir(first)
    assert second.verdicts == [Verdict.SEND_AGAIN] * 2
    assert all(batch.appended for batch, _ in second.adopted)
    second.run()
    assert all(second.broker.log[partition][: len(values)] == values for partition, values in log.items())
    check_end(second, 8)


def test_the_client_comes_back(segment: Segment) -> None:
    first = SlotStage(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    first.know_topic()
    accept(first, session, range(3))
    for _ in range(4):
        first.turn()
    row = session.row
    told = row.next_number
    assert told > 1
    row.ring_ack(1)
    second = heir(first)
    again, known = second.attach(row.secret)
    assert known
    assert again.streams[1].position == 3
    assert again.streams[1].topic_queue.topic == "t"
    news = again.row.ring_slice_from(again.sent_number + 1)
    assert news is not None
    assert news[0] == 2, "what was not acknowledged is told again"
    accept(second, again, range(3, 6))
    second.run()
    assert second.counters.get("records_delivered_total") == 24
    assert again.streams[1].position == 6


def test_a_position_that_only_the_journal_knows(segment: Segment) -> None:
    """The tail was stored and the row not yet."""
    first = SlotStage(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    accept(first, session, range(3))
    session.row.store_position(1, 2)
    first.counters.set("records_accepted_total", 8)
    second = heir(first)
    assert second.attach(session.row.secret)[0].streams[1].position == 3
    second.run()
    check_end(second, 3)


def test_failures_by_word_are_told_and_counted_once(segment: Segment) -> None:
    first = SlotStage(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    first.know_topic()
    queue = first.topics.get("t")
    assert queue is not None
    first.settlement.fail_records = lambda *_: None  # type: ignore[method-assign]  # it dies before the ring is written
    first.accept(session, [b"a", b"b", b"c"], [0, 77, 1])
    (entry,) = queue.chain.entries()
    first.topics.waiting._look_again(queue, entry.ordinal, 0.0, float("inf"))
    second = heir(first)
    counters = second.counters.read()
    assert (counters["records_accepted_total"], counters["records_held"]) == (3, 3)
    second.run()
    counters = second.counters.read()
    assert (counters["records_failed_total"], counters["records_held"]) == (0, 1), (
        "nobody has heard of it yet"
    )
    again, _ = second.attach(session.row.secret)
    news = again.row.ring_slice_from(1)
    assert news is not None
    second.acknowledge(again)
    counters = second.counters.read()
    assert (counters["records_delivered_total"], counters["records_failed_total"]) == (2, 1)
    failed = [o for o in unpack_outcomes(news[2]) if o.kind == OutcomeKind.FAILED]
    assert [(o.seq, o.first_index, o.count) for o in failed] == [(1, 1, 1)]
    assert describe_undelivered(segment) == []


def test_a_gap_before_what_was_sent(segment: Segment) -> None:
    """The first of three batches lost its identity (refused, freed); the later ones go under a new one after it."""
    broker = MemoryBroker(is_silent=True)
    first = SlotStage(segment, broker, 1)
    first.know_topic()
    session, _ = first.attach()
    accept(first, session, range(2))
    broker.is_silent = False
    first.turn()
    first.turn()
    first.turn()
    broker.is_silent = True
    broker.refuse_once = {0: Code.NOT_ENOUGH_REPLICAS}
    for number in range(2, 8):
        accept(first, session, range(number, number + 1))
        first.turn()
    sent = [each for each in first.descriptors if each.partition == 0]
    assert len(sent) >= 2
    oldest = min(sent, key=lambda each: each.first_cursor)
    first.descriptors.free(oldest.index)
    second = heir(first)
    second.run()
    check_end(second, 8)


def test_the_broker_forgot_the_producer(segment: Segment) -> None:
    broker = MemoryBroker()
    first = SlotStage(segment, broker, 1)
    first.know_topic()
    session, _ = first.attach()
    accept(first, session, range(2))
    for _ in range(3):
        first.turn()
    broker.is_silent = True
    accept(first, session, range(2, 3))
    first.turn()
    broker.producers.clear()
    second = SlotStage(segment, broker, 2)
    second.ask()
    assert set(second.verdicts) == {Verdict.UNKNOWN}


@pytest.mark.parametrize("state", [DescriptorState.SETTLED, DescriptorState.COMPLETED])
@pytest.mark.parametrize("done", ["none", "half", "all"])
def test_decided_and_not_finished(segment: Segment, state: DescriptorState, done: str) -> None:
    """Settled: told again. Told: nothing more is told, the words become done, whatever part of them was."""
    first = SlotStage(segment, MemoryBroker(), 1)
    first.know_topic()
    session, _ = first.attach()
    accept(first, session, range(1))
    settled: list[ProducerBatch] = []
    first.settlement._acker.complete = lambda completions, now_ms: None  # type: ignore[method-assign]
    settle = first.settlement.settle

    def settle_and_note(effect: Completed, now_ms: float) -> None:
        settle(effect, now_ms)
        settled.extend(effect.batches)

    first.settlement.settle = settle_and_note  # type: ignore[method-assign]
    for _ in range(4):
        first.turn()
    assert len(settled) == 2
    for batch in settled:
        if state == DescriptorState.COMPLETED:
            first.descriptors.complete(batch.descriptor)
            if done != "none":
                (batch.records if done == "all" else batch.records.split()[0]).mark_done()
    first.counters.set("records_delivered_total", 0)  # it died before it counted
    second = heir(first)
    assert list(second.descriptors) == []
    second.run()
    told = told_offsets(second)
    assert len(told) == (4 if state == DescriptorState.SETTLED else 0)
    assert second.counters.get("records_delivered_total") == 4
    assert second.counters.get("records_accepted_total") == 4
    assert describe_undelivered(segment) == []


# --- store by store ------------------------------------------------------------------------------------------------

STORES: list[tuple[Any, str]] = [
    (descriptors, "store_release_u64"),
    (client_table, "store_release_u64"),
    (client_table, "compare_and_swap_u64"),
    (chain_table, "store_release_u64"),
    (buffer_pool, "take_pages"),
    (buffer_pool, "give_pages"),
    (buffer_pool, "store_release_u64"),
]


class Recorder:
    """The segment as it was before and after every publication, with what the broker had by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, segment: Segment, broker: MemoryBroker) -> None:
        self.segment, self.broker = segment, broker
        self.moments: dict[int, tuple[bytes, MemoryBroker]] = {}
        self._patch = monkeypatch.context()

    def used(self) -> int:
        """Slot 0's end; the clients' rows follow far behind."""
        return self.segment.layout.slot(1)

    def take(self) -> None:
        view = self.segment.view
        client = self.segment.layout.client(0)
        allocated = ClientIndex(self.segment).slot_of(CLIENT_ID) is not None
        parts = bytes(view[: self.used()]) + (
            bytes(view[client : client + layout.CLIENT_STRIDE]) if allocated else b""
        )
        packed = zlib.compress(parts, 1)
        self.moments.setdefault(hash((packed, self._broker_state())), (packed, self.broker.copy()))

    def _broker_state(self) -> int:
        return sum(map(len, self.broker.log.values())) * 1000 + len(self.broker.spool)

    def __enter__(self) -> Recorder:
        self._active = self._patch.__enter__()
        for module, name in STORES:
            self._active.setattr(module, name, self._wrapped(getattr(module, name)))
        return self

    def __exit__(self, *error: Any) -> None:
        self._patch.__exit__(*error)

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*arguments: Any) -> Any:
            self.take()
            result = function(*arguments)
            self.take()
            return result

        return recorded


def restore(segment: Segment, moment: bytes) -> None:
    data = zlib.decompress(moment)
    end = segment.layout.slot(1)
    segment.view[:end] = data[:end]
    client = data[end:]
    if client:
        position = segment.layout.client(0)
        segment.view[position : position + len(client)] = client
    segment._slots.clear()
    segment._clients = None


def finish_client(stage: SlotStage, submissions: int) -> None:
    """The stub sends again what was not accepted."""
    row = row_of(ClientTable(stage.segment), CLIENT_ID)
    session, _ = stage.attach(None if row is None else row.secret)
    position = session.streams[1].position if 1 in session.streams else 0
    accept(stage, session, range(position, submissions))


def successor(segment: Segment, broker: MemoryBroker) -> SlotStage:
    is_first = not segment.is_slot_prepared(0)
    return SlotStage(segment, broker, 1 if is_first else segment.slot(0).incarnation + 1)


def live(stage: SlotStage, submissions: int, record: Callable[[], None]) -> None:
    session, _ = stage.attach()
    for number in range(submissions):
        if number == 1:
            stage.know_topic()
        if number == 2:
            stage.broker.refuse_once = {0: Code.NOT_ENOUGH_REPLICAS}
        accept(stage, session, range(number, number + 1))
        record()
        stage.turn()
        record()
    for _ in range(4):
        stage.turn()
        record()


@pytest.mark.slow
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_every_store(monkeypatch: pytest.MonkeyPatch, segment: Segment, is_interrupted: bool) -> None:
    """A worker dies before or after each of its stores; also in each store of the adoption that follows."""
    submissions = 4
    broker = MemoryBroker()
    with Recorder(monkeypatch, segment, broker) as recorder:
        first = SlotStage(segment, broker, 1)
        live(first, submissions, recorder.take)
    check_end(first, submissions)
    moments = list(recorder.moments.values())
    assert len(moments) > 60
    if is_interrupted:
        seconds: list[tuple[bytes, MemoryBroker]] = []
        for moment, state in moments[:: max(1, len(moments) // 12)]:
            restore(segment, moment)
            second_broker = state.copy()
            with Recorder(monkeypatch, segment, second_broker) as again:
                stage = successor(segment, second_broker)
                stage.ask()
                finish_client(stage, submissions)
                stage.run()
            seconds += list(again.moments.values())[::5]
        moments = seconds
    for moment, state in moments:
        restore(segment, moment)
        following = successor(segment, state.copy())
        following.ask()
        finish_client(following, submissions)
        following.run()
        check_end(following, submissions)


def test_the_heartbeat_moves_with_the_adoption(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is in the slot, its controller sees after each part of it that the adoption gets on."""
    monkeypatch.setattr(adoption, "RUN_ENTRIES", 4)
    first = SlotStage(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    first.know_topic()
    accept(first, session, range(20))
    second = SlotStage(segment, first.broker, 2)
    steps = [after - before for before, after in zip(second.beats, second.beats[1:], strict=False)]
    assert sum(steps) >= 16 * 4, "all but the last part"
    assert max(steps) <= 4 * 4, "no more than so many submissions without one"
    second.run()
    check_end(second, 20)


def deadlines(stage: SlotStage) -> list[float]:
    """How long each batch still has, in seconds."""
    return [
        (batch.deadline_ms - stage.now_ms) / 1000 for batch in stage.accumulator.incomplete.oldest_first()
    ]


def test_delivery_timeout_goes_on_at_adoption(segment: Segment) -> None:
    """It counts while somebody could deliver, over any number of workers; not while nobody was there."""
    config = producer_config(delivery_timeout_ms=120_000, linger_ms=0)
    broker = MemoryBroker(is_silent=True)
    first = SlotStage(segment, broker, 1, config=config, now_ms=10_000.0)
    session, _ = first.attach()
    first.know_topic()
    first.accept(session, [b"sent"], [0])
    first.turn()
    first.turn()
    first.accept(session, [b"not sent"], [1])
    segment.slot(0).store_heartbeat(int(100_000 * 1e6))  # 90 s later it dies
    second = SlotStage(
        segment, broker, 2, config=config, now_ms=5_000_000.0
    )  # and nobody is there for an hour
    assert len(deadlines(second)) == 2
    assert all(30 <= left <= 32 for left in deadlines(second))
    segment.slot(0).store_heartbeat(int(5_020_000 * 1e6))
    third = SlotStage(segment, broker, 3, config=config, now_ms=5_020_000.0)
    assert all(10 <= left <= 12 for left in deadlines(third))
    third.broker.is_silent = False
    third.ask()
    third.run()
    assert third.broker.log == {0: [b"sent"], 1: [b"not sent"]}


def test_old_records_expire_in_time_behind_younger_ones_of_another_topic(segment: Segment) -> None:
    """Topics are read one after the other, each from its oldest record on."""
    config = producer_config(delivery_timeout_ms=120_000, linger_ms=0)
    first = SlotStage(segment, MemoryBroker(), 1, config=config, now_ms=10_000.0)
    session, _ = first.attach()
    first.know_topic()
    assert first.topics.get("t") is not None, "it has the first chain"
    first.accept(session, [b"old"], [0], OTHER_TOPIC)
    first.now_ms += 100_000.0
    first.accept(session, [b"young"], [0])
    segment.slot(0).store_heartbeat(int(first.now_ms * 1e6))
    second = SlotStage(segment, first.broker, 2, config=config, now_ms=first.now_ms)
    assert [20 <= left <= 22 for left in deadlines(second)] == [True, False], "oldest first"
    second.now_ms += 30_000.0
    expired = second.accumulator.incomplete.expired(second.now_ms)
    assert [batch.topic for batch in expired] == [OTHER_TOPIC]


def test_a_submission_accepted_after_the_last_heartbeat_is_new(segment: Segment) -> None:
    config = producer_config(delivery_timeout_ms=120_000, linger_ms=0)
    first = SlotStage(segment, MemoryBroker(), 1, config=config, now_ms=10_000.0)
    session, _ = first.attach()
    first.know_topic()
    first.now_ms += 3_000.0
    first.accept(session, [b"x"], [0])
    second = SlotStage(segment, first.broker, 2, config=config, now_ms=10_500.0)
    assert deadlines(second) == [120]


def test_a_time_of_acceptance_counts_for_eighteen_hours(segment: Segment) -> None:
    """What is older counts as younger than it is, never as older."""
    config = producer_config(delivery_timeout_ms=86_400_000, linger_ms=0)
    first = SlotStage(segment, MemoryBroker(), 1, config=config, now_ms=1_000.0)
    session, _ = first.attach()
    first.know_topic()
    first.accept(session, [b"x"], [0])
    slot = segment.slot(0)
    for incarnation, (at_s, left_s) in enumerate(((60_000, 26_400), (66_000, 86_400)), 2):
        slot.store_heartbeat(int(at_s * 1e9))
        heir = SlotStage(segment, first.broker, incarnation, config=config, now_ms=at_s * 1000.0)
        (left,) = deadlines(heir)
        assert left_s - 600 <= left <= left_s + 2


@pytest.mark.parametrize("acks", ["all to 1", "1 to all"])
def test_a_partition_keeps_its_order_when_acks_is_changed_with_a_backlog(segment: Segment, acks: str) -> None:
    """What was sent in the lane of before has its end before anything goes out in the other one."""
    configs = [
        producer_config(batch_size=120, linger_ms=0),
        producer_config(batch_size=120, linger_ms=0, acks=1, enable_idempotence=False),
    ]
    before, after = configs if acks == "all to 1" else reversed(configs)
    broker = MemoryBroker(is_silent=True)
    first = SlotStage(segment, broker, 1, config=before)
    session, _ = first.attach()
    first.know_topic()
    first.accept(session, [b"1"], [0])
    first.turn()
    first.turn()
    assert len(list(first.descriptors)) == 1
    broker.log.clear()  # it died before it sent a byte
    broker.producers.clear()
    first.accept(session, [b"2"], [0])
    first.accept(session, [b"other"], [1])
    second = SlotStage(segment, broker, 2, config=after)
    second.broker.is_silent = False
    second.know_topic()
    for _ in range(4):
        second.turn()
    assert second.broker.log == {1: [b"other"]}, "it waits for the fate of what was sent, its partition alone"
    second.ask()
    second.run()
    assert second.broker.log == {0: [b"1", b"2"], 1: [b"other"]}
    assert describe_undelivered(segment) == []


@pytest.mark.parametrize("may_ask", [True, False])
@pytest.mark.parametrize("table", ["with room", "full"])
def test_half_of_a_batch_that_is_there_whole_is_not_doubled_by_a_successor(
    segment: Segment, may_ask: bool, table: str
) -> None:
    """The whole was appended and its answer lost, then the topic took smaller batches only, then the worker died. A
    broker refuses the halves as out of order, whether it has the whole or lacks what is before them."""
    config = producer_config(batch_size=1_000, linger_ms=0)
    broker = MemoryBroker(is_silent=True)
    first = SlotStage(segment, broker, 1, config=config)
    session, _ = first.attach()
    first.know_topic()
    values = [b"%d" % number for number in range(4)]
    first.accept(session, values, [0] * 4)
    first.turn()
    first.turn()
    assert broker.log == {0: values}
    broker.records_max, broker.is_silent = 2, False
    if table == "full":
        first.descriptors.free_indexes = first.descriptors.free_indexes[:1]
    first.cut()
    first.turn()
    broker.is_silent = True
    first.turn()
    second = SlotStage(segment, broker, 2, config=config)
    assert {batch.count for batch, _ in second.adopted} == {4 if table == "full" else 2}
    broker.is_silent = False
    second.ask(may_ask=may_ask)
    second.run()
    assert broker.log == {0: values}


@pytest.mark.parametrize("refused", ["too large with a full table", "invalid"])
def test_a_half_that_never_left_does_not_pass_what_is_before_it_at_a_successor(
    segment: Segment, refused: str
) -> None:
    """A successor sends what has a descriptor first, and a broker that does not know the producer id takes any
    sequence."""
    config = producer_config(batch_size=1_000, linger_ms=0)
    values = [b"%d" % number for number in range(4)]
    is_invalid = refused == "invalid"
    broker = MemoryBroker(records_max=2 if is_invalid else 1, invalid_value=values[0] if is_invalid else None)
    first = SlotStage(segment, broker, 1, config=config)
    session, _ = first.attach()
    first.know_topic()
    first.accept(session, values, [0] * 4)
    while len(list(first.descriptors)) != 2:
        first.turn()
    if not is_invalid:
        first.descriptors.free_indexes = first.descriptors.free_indexes[:1]
    first.turn(stop_after=Split)
    assert not broker.log and not first.sender.is_idle
    second = heir(first)
    second.run()
    assert second.broker.log == {0: values[1:] if refused == "invalid" else values}


def test_what_a_refused_batch_left_does_not_go_behind_a_later_one_at_a_successor(segment: Segment) -> None:
    """A batch with invalid records was set apart, a later one is in doubt, and the worker died. The broker takes the
    later one: it has forgotten the producer id."""
    config = producer_config(batch_size=1, linger_ms=0)
    first = SlotStage(segment, MemoryBroker(), 1, config=config)
    session, _ = first.attach()
    first.know_topic()
    for value in (b"left", b"in doubt", b"new"):
        first.accept(session, [value], [0])
    _, later, _ = first.accumulator.incomplete.oldest_first()
    later.identify(4000, 0, 7)
    assert publish_all(first.descriptors, [later], 1)
    second = SlotStage(segment, first.broker, 2, config=config)
    second.ask(may_ask=False)
    second.run()
    assert second.broker.log == {0: [b"in doubt", b"new"]}
    assert second.counters.get("records_failed_total") == 0, "not told before its client asks"
