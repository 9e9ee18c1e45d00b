"""Intake against a pool and rows that a test can fill by hand: what is taken, what is held, what the stub is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from client_stub.contract.wire import Format, Kind
from sidecar.kernel import Histogram, StickyPartitioner
from sidecar.shm.layout import STREAMS_MAX
from sidecar.worker.streams.refusal import Refusal
from sidecar.worker.streams.session import ClientSession
from sidecar.worker.streams.topic_queue import TopicQueue
from sidecar.worker.stubs.express import Express
from sidecar.worker.stubs.holds import RESERVATION_MS_MAX, Holds
from sidecar.worker.stubs.intake import Intake
from sidecar.worker.stubs.openings import StreamOpenings
from sidecar.worker.stubs.shares import Shares

from .manual_worker import ListedOutboxes, ManualHost, no_limits

EPOCH = 7
PAGE_BYTES = 1000
PAYLOAD = b"\x92\xc0\xa1x" * 4


class FakePool:
    pages_max = 100

    def __init__(self, pages: int) -> None:
        self.free = list(range(pages))
        self.waiters: list[tuple[Any, int]] = []

    def take(self, count: int) -> list[int] | None:
        if self.waiters or len(self.free) < count:
            return None
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def give(self, pages: list[int]) -> None:
        self.free += pages

    def enqueue(self, waiter: Any, pages: int) -> None:
        self.waiters.append((waiter, pages))

    def cancel(self, waiter: Any) -> None:
        self.waiters = [each for each in self.waiters if each[0] is not waiter]

    def grant(self) -> tuple[Any, list[int]]:
        waiter, count = self.waiters.pop(0)
        taken, self.free = self.free[:count], self.free[count:]
        return waiter, taken


class NoOtherWorkers:
    """The words of a worker that is alone on its segment."""

    def claim(self, chain_id: int, needed_bytes: int, *, is_stalled: bool) -> None: ...

    def store_topic(self, chain_id: int, held_bytes: int) -> None: ...

    def store_stalled(self, held_bytes: int) -> None: ...

    def store_waits(self, waits: bool) -> None: ...

    def topic_elsewhere(self, topic: str) -> int:
        return 0

    def stalled_elsewhere(self, now_ms: float) -> int:
        return 0


class FakeEntry:
    """Result of an append."""

    ordinal = 0

    def __init__(self, count: int, seq: int) -> None:
        self.count = count
        self.seq = seq


class FakeChain:
    """Every entry takes one page."""

    chain_id = 3
    live_records = 0
    tail = 0

    def __init__(self) -> None:
        self.page_count = 0
        self.appended: list[dict[str, Any]] = []
        self.linked: list[int] = []

    def pages_needed(self, count: int, payload_bytes: int) -> int:
        return 1

    @property
    def live_entries(self) -> int:
        return self.page_count

    def link_pages(self, pages: list[int]) -> None:
        self.linked += pages
        self.page_count += len(pages)

    def append(self, payload: Any, **fields: Any) -> FakeEntry:
        assert len(self.linked) > len(self.appended), "an entry needs its pages first"
        self.appended.append({"payload": bytes(payload), **fields})
        return FakeEntry(fields["count"], fields["seq"])


class FakeRow:
    index = 4
    generation = 9
    pid = 0
    acked_number = 0
    ring_bytes = 1000

    def __init__(self) -> None:
        self.ring_free_bytes = 1000
        self.positions: dict[int, int] = {}

    def place_stream(self, stream: int, chain_id: int) -> bool:
        self.positions[stream] = 0
        return True

    def store_position(self, stream: int, position: int) -> None:
        self.positions[stream] = position


class FakeCounters(Counter[str]):
    def inc(self, name: str, amount: int = 1) -> None:
        self[name] += amount

    def add(self, amounts: Mapping[str, int]) -> None:
        self.update(amounts)


class FakeCommit:
    """A disk that has not written anything yet."""

    refusal = ""

    def __init__(self) -> None:
        self.pending: list[Any] = []

    def add(self, queue: TopicQueue, stream: Any, entry: Any, payload: Any) -> None:
        self.pending.append(payload)


class ManualTopics:
    """Topics that a test makes; ``entries`` are those that were accepted."""

    def __init__(self, open_topic: Callable[[str], TopicQueue]) -> None:
        self._open = open_topic
        self.entries: list[Any] = []

    def open(
        self,
        topic: str,
        names: int,
        now_ms: float,
        process: int = 0,
        *,
        is_wanted: bool = True,
        transaction: object = None,
        is_staged: bool = False,
    ) -> TopicQueue:
        return self._open(topic)

    def on_entry(self, queue: TopicQueue, entry: Any, now_ms: float, flush_follows: bool) -> None:
        self.entries.append(entry)


class ManualSettlement:
    """Notes why records were refused."""

    def __init__(self) -> None:
        self.refused: list[Refusal] = []

    def refuse(self, queue: TopicQueue, entry: Any, refusal: Refusal, now_ms: float) -> None:
        self.refused.append(refusal)


class Harness:
    def __init__(self, pages: int = 8, page_count: int = 8, commit: FakeCommit | None = None) -> None:
        self.pool = FakePool(pages)
        self.row = FakeRow()
        self.session = ClientSession(b"r", self.row, "test", 0.0)  # type: ignore[arg-type]
        self.outboxes = ListedOutboxes()
        self.topics = ManualTopics(self.queue)
        self.settlement = ManualSettlement()
        self.host = ManualHost()
        self.counters = FakeCounters()
        self.queues: dict[str, TopicQueue] = {}
        self.shares = Shares(
            page_count=page_count,
            page_bytes=PAGE_BYTES,
            request_timeout_ms=1000.0,
            queues=self.queues.values(),
            words=NoOtherWorkers(),  # type: ignore[arg-type]
            staged_share=0.7,
        )
        topics: Any = self.topics
        counters: Any = self.counters
        pool: Any = self.pool
        limits = no_limits()
        self.openings = StreamOpenings(topics, limits, self.outboxes, counters)
        self.holds = Holds(pool, self.shares, self.outboxes, counters, self.openings)
        self.intake = Intake(
            worker_epoch=EPOCH,
            shares=self.shares,
            submission_sizes=Histogram(bytearray(64), 1, (1,)),
            submission_bytes_max=100_000,
            counters=counters,
            topics=topics,
            settlement=self.settlement,  # type: ignore[arg-type]
            outboxes=self.outboxes,
            openings=self.openings,
            holds=self.holds,
            express=Express(topics, self.holds, self.shares),
            host=self.host,
            limits=limits,
        )
        self.intake.commit = commit  # type: ignore[assignment]

    def queue(self, topic: str) -> TopicQueue:
        queue = self.queues.get(topic)
        if queue is None:
            queue = self.queues[topic] = TopicQueue(topic, 0, FakeChain())  # type: ignore[arg-type]
            queue.update_partitions(1, [0], [0], lambda usable: StickyPartitioner(1, usable, 1, 1))
        return queue

    def chain(self, topic: str = "t") -> FakeChain:
        return self.queue(topic).chain  # type: ignore[return-value]

    def submit(
        self, seq: int, *, stream: int = 1, topic: str = "t", epoch: int = EPOCH, count: int = 4
    ) -> None:
        fields = [epoch, stream, seq, topic, 1_700_000_000_000, Format.MSGPACK, 0, count]
        self.intake.submit(self.session, fields, PAYLOAD, 5.0)

    def take_sent(self) -> list[list[Any]]:
        sent, self.outboxes.sent = self.outboxes.sent, []
        return [message for _, message in sent]

    def take_accepted(self) -> list[tuple[int, int]]:
        """Streams whose position is due to their stub, with it."""
        streams, self.session.accepted_streams = self.session.accepted_streams, set()
        return [(stream.stream, stream.accepted) for stream in streams]

    @property
    def held_reason(self) -> str:
        """Of the last HOLD that was not taken yet."""
        return str([message[3] for _, message in self.outboxes.sent if message[0] == Kind.HOLD][-1])


@pytest.mark.rule("A1")
def test_the_next_submission_is_taken_and_its_position_is_part_of_the_entry() -> None:
    harness = Harness()
    harness.submit(1)
    harness.submit(2)
    assert [each["seq"] for each in harness.chain().appended] == [1, 2]
    assert harness.row.positions == {1: 2}
    assert harness.session.accepted_bytes == 2 * len(PAYLOAD)
    assert harness.take_accepted() == [(1, 2)]
    assert harness.counters["records_accepted_total"] == 8


def test_a_payload_that_waits_for_the_disk_outlives_its_receive_buffer() -> None:
    commit = FakeCommit()
    harness = Harness(commit=commit)
    received = bytearray(PAYLOAD)
    fields = [EPOCH, 1, 1, "t", 1_700_000_000_000, Format.MSGPACK, 0, 4]
    harness.intake.submit(harness.session, fields, memoryview(received), 5.0)
    received[:] = bytes(len(received))  # the next message
    assert [bytes(payload) for payload in commit.pending] == [PAYLOAD]


def test_a_repeat_gets_its_position_and_is_not_accepted_again() -> None:
    harness = Harness()
    harness.submit(1)
    harness.take_accepted()
    harness.submit(1)
    assert len(harness.chain().appended) == 1
    assert harness.take_accepted() == [(1, 1)]


def test_a_gap_is_answered_with_one_resend_until_the_missing_one_arrives() -> None:
    harness = Harness()
    harness.submit(3)
    harness.submit(4)
    assert harness.take_sent() == [[Kind.RESEND, 1, 1]]
    for seq in (1, 2, 3):
        harness.submit(seq)
    assert [each["seq"] for each in harness.chain().appended] == [1, 2, 3]
    harness.submit(9)
    assert harness.take_sent() == [[Kind.RESEND, 1, 4]]
    assert harness.counters["frames_resent_total"] == 3, "3 and 4 before the stream was open, and 9"


def test_another_epoch_must_say_hello_again() -> None:
    harness = Harness()
    harness.submit(1, epoch=EPOCH - 1)
    assert harness.take_sent() == [[Kind.HELLO_AGAIN, EPOCH]]
    assert not harness.queues


@pytest.mark.rule("A2")
def test_a_full_pool_holds_the_stream_and_its_turn_keeps_the_pages() -> None:
    harness = Harness(pages=1)
    harness.submit(1)
    harness.submit(2)
    assert [message[:3] for message in harness.take_sent()] == [[Kind.HOLD, 1, 2]]
    harness.submit(2)  # what was under way when the HOLD came is dropped without an answer
    harness.submit(3)
    assert harness.take_sent() == []
    assert len(harness.chain().appended) == 1

    harness.pool.give(harness.chain().linked[:1])
    stream, pages = harness.pool.grant()
    harness.holds.pool_granted(stream, pages, 10.0)
    assert harness.take_sent() == [[Kind.RESUME, 1, 2]]
    harness.submit(1, stream=2, topic="other")  # somebody quicker does not get the pages that were waited for
    assert harness.chain("other").appended == []
    harness.submit(2)
    assert [each["seq"] for each in harness.chain().appended] == [1, 2]
    counters = harness.counters
    assert (counters["holds_total"], counters["frames_resent_total"]) == (2, 4), (
        "2 twice, 3, and the other stream"
    )


@pytest.mark.rule("A2")
def test_pages_kept_for_a_stub_that_does_not_come_back_go_to_others() -> None:
    harness = Harness(pages=1)
    harness.submit(1)
    harness.submit(2)
    harness.pool.give([0])
    stream, pages = harness.pool.grant()
    harness.holds.pool_granted(stream, pages, 10.0)
    harness.holds.reclaim_reservations([stream], 10.0 + RESERVATION_MS_MAX)
    assert harness.pool.free == []
    harness.holds.reclaim_reservations([stream], 11.0 + RESERVATION_MS_MAX)
    assert len(harness.pool.free) == 1


@pytest.mark.rule("A2")
def test_a_client_that_leaves_gives_back_its_place_and_its_pages() -> None:
    harness = Harness(pages=1)
    harness.submit(1)
    harness.submit(2)
    assert len(harness.pool.waiters) == 1
    harness.holds.forget(harness.session)
    assert harness.pool.waiters == []


def test_a_topic_over_its_share_is_held_and_others_continue() -> None:
    harness = Harness(pages=8, page_count=9)
    for seq in range(1, 6):
        harness.submit(seq)
    assert len(harness.chain().appended) == 4  # half of the pool, with the index of what is in them
    assert harness.take_sent()[0][:3] == [Kind.HOLD, 1, 5]
    harness.submit(1, stream=2, topic="other")
    assert len(harness.chain("other").appended) == 1
    harness.chain().page_count = 3
    harness.holds.shares_freed(6.0)
    assert harness.take_sent() == []  # at the edge it would be held again at once
    harness.chain().page_count = 1
    harness.holds.shares_freed(6.0)
    assert harness.take_sent() == [[Kind.RESUME, 1, 5]]


def test_a_client_over_its_share_is_held_in_all_its_topics_and_others_continue() -> None:
    harness = Harness(pages=8, page_count=8)
    harness.session.unsettled_bytes = 4 * PAGE_BYTES
    harness.submit(1)
    assert "client test holds its share" in harness.held_reason
    assert harness.take_sent()[0][0] == Kind.HOLD
    harness.session.unsettled_bytes = 2 * PAGE_BYTES
    harness.holds.shares_freed(6.0)
    assert harness.take_sent() == [[Kind.RESUME, 1, 1]]


def test_topics_that_do_not_move_leave_a_quarter_of_the_pool() -> None:
    harness = Harness(pages=16, page_count=17)
    for number, topic in enumerate(("a", "b", "c"), 1):
        harness.queue(topic).has_leader = False
        for seq in range(1, 8):
            harness.submit(seq, stream=number, topic=topic)
    assert sum(harness.chain(topic).page_count for topic in ("a", "b", "c")) == 12
    assert "does not move" in harness.held_reason
    for seq in range(1, 5):
        harness.submit(seq, stream=9, topic="good")
    assert harness.chain("good").page_count == 4
    harness.take_sent()
    harness.queue("a").has_leader = True
    harness.shares.count_all(6.0)
    harness.holds.shares_freed(6.0)
    assert {message[1] for message in harness.take_sent() if message[0] == Kind.RESUME} == {2, 3}


def test_a_topic_counts_as_stalled_only_after_the_request_timeout() -> None:
    harness = Harness(pages=16, page_count=16)
    harness.submit(1)
    queue = harness.queue("t")
    assert not harness.shares.is_stalled(queue, queue.last_settled_ms + 1000.0)
    assert harness.shares.is_stalled(queue, queue.last_settled_ms + 1000.1)


def test_a_client_that_does_not_read_its_outcomes_is_held_until_it_acks() -> None:
    harness = Harness()
    harness.row.ring_free_bytes = 100
    harness.submit(1)
    assert harness.take_sent()[0][:3] == [Kind.HOLD, 1, 1]
    harness.row.ring_free_bytes = 400
    harness.holds.ring_acked(harness.session)
    assert harness.take_sent() == []
    harness.row.ring_free_bytes = 900
    harness.holds.ring_acked(harness.session)
    assert harness.take_sent() == [[Kind.RESUME, 1, 1]]


def test_a_stream_without_a_place_in_its_row_is_refused_alone() -> None:
    harness = Harness(pages=STREAMS_MAX + 1, page_count=STREAMS_MAX + 1)
    for stream in range(1, STREAMS_MAX + 2):
        harness.submit(1, stream=stream, topic=f"t{stream}")
    assert [message[:2] for message in harness.take_sent()] == [[Kind.REFUSED, "TOO_MANY_STREAMS"]]
    assert harness.row.positions == dict.fromkeys(range(1, STREAMS_MAX + 1), 1)
    assert f"t{STREAMS_MAX + 1}" not in harness.queues, "nothing is made for it"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([EPOCH, 1, 1, "t", 0, Format.MSGPACK, 0, 0], "record count"),
        ([EPOCH, 1, 1, "t", 0, Format.MSGPACK, 0, 70_000], "record count"),
        ([EPOCH, 1, 1, "t", 0, Format.MSGPACK, 0, 17], "do not fit"),
        ([EPOCH, 1, 1, "t", -1, Format.MSGPACK, 0, 1], "timestamp"),
        ([EPOCH, 1, 1, "t", 0, 99, 0, 1], "format"),
    ],
)
def test_impossible_submissions_are_refused_and_change_nothing(fields: list[Any], reason: str) -> None:
    harness = Harness()
    with pytest.raises(ValueError, match=reason):
        harness.intake.submit(harness.session, fields, PAYLOAD, 5.0)
    assert harness.chain().appended == []
    assert len(harness.pool.free) == 8


def test_a_draining_worker_takes_nothing() -> None:
    harness = Harness()
    harness.intake.draining = True
    harness.submit(1)
    assert harness.chain().appended == []
