"""Shares of the pool with several workers on one segment: the pool is one, and so are the shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_stub.contract.wire import Format, Kind
from sidecar.common.condition import HoldCause
from sidecar.kernel import Chain, Histogram, StickyPartitioner, fail_remaining, held_bytes, mark_failed_done
from sidecar.producer.lanes import IDEMPOTENT_LANE
from sidecar.shm import layout
from sidecar.shm.buffer_pool import BufferPool
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.reclaim import reclaim_slot
from sidecar.shm.segment import Segment
from sidecar.shm.share_words import ShareWords
from sidecar.worker.streams.session import ClientSession
from sidecar.worker.streams.topic_queue import TopicQueue
from sidecar.worker.stubs.express import Express
from sidecar.worker.stubs.holds import RESERVATION_MS_MAX, Holds
from sidecar.worker.stubs.intake import Intake
from sidecar.worker.stubs.openings import StreamOpenings
from sidecar.worker.stubs.shares import CLIENT_SHARE, LOOK_SHARE, STALLED_SHARE, TOPIC_SHARE, Shares
from tests.worker.manual_worker import ListedOutboxes, ManualHost, no_limits
from tests.worker.test_intake import FakeCounters, FakeRow, ManualSettlement, ManualTopics

EPOCH = 7
NOW = 50_000.0
PAGE_BYTES = 4096
PAGES = 256
REQUEST_TIMEOUT_MS = 30_000.0
PAYLOAD = b"\x92\xc0\xc5" + (3955).to_bytes(2, "big") + b"v" * 3955
"""One record; with its entry it fills a page."""


class Harness:
    """One worker's hand in the segment: intake, shares and pool are real, the rest is not there."""

    def __init__(self, segment: Segment, slot: int, workers: int) -> None:
        segment.prepare_slot(slot)
        self.slot = slot
        self.segment = segment
        self.view = segment.slot(slot)
        self.view.claim(incarnation=slot + 1)
        self.view.store_heartbeat(int(NOW * 1e6))
        self.rung = 0
        self.pool = BufferPool(segment, incarnation=slot + 1, workers=workers, wake_others=self.ring)
        self.table = ChainTable(segment, slot, incarnation=slot + 1)
        self.queues: dict[str, TopicQueue] = {}
        self.shares = Shares(
            page_count=segment.page_count,
            page_bytes=segment.page_bytes,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            queues=self.queues.values(),
            words=ShareWords(segment, slot),
            staged_share=0.7,
        )
        self.outboxes = ListedOutboxes()
        topics: Any = ManualTopics(self.queue)
        counters: Any = FakeCounters()
        limits = no_limits()
        self.openings = StreamOpenings(topics, limits, self.outboxes, counters)
        self.holds = Holds(self.pool, self.shares, self.outboxes, counters, self.openings)
        self.intake = Intake(
            worker_epoch=EPOCH,
            shares=self.shares,
            counters=counters,
            submission_sizes=Histogram(bytearray(64), 1, (1,)),
            submission_bytes_max=1 << 30,
            topics=topics,
            settlement=ManualSettlement(),  # type: ignore[arg-type]
            outboxes=self.outboxes,
            openings=self.openings,
            holds=self.holds,
            express=Express(topics, self.holds, self.shares),
            host=ManualHost(),
            limits=limits,
        )
        self.clients: dict[str, ClientSession] = {}
        self.seqs: dict[str, int] = {}

    def ring(self) -> None:
        self.rung += 1

    def queue(self, topic: str) -> TopicQueue:
        queue = self.queues.get(topic)
        if queue is None:
            chain = self.table.open(IDEMPOTENT_LANE, topic)
            assert chain is not None
            queue = self.queues[topic] = TopicQueue(topic, IDEMPOTENT_LANE, chain)
            if not topic.startswith("unknown"):
                queue.update_partitions(1, [0], [0], lambda usable: StickyPartitioner(1, usable, 1, 1))
        return queue

    def submit(self, topic: str, client: str = "", payload: bytes = PAYLOAD) -> bool:
        """One record of a client, a page long; False when its stream is held."""
        name = client or f"client of {topic}"
        session = self.clients.get(name)
        if session is None:
            session = self.clients[name] = ClientSession(b"r", FakeRow(), name, NOW)  # type: ignore[arg-type]
        stream = sum(map(ord, topic))
        seq = self.seqs.get(name + topic, 0) + 1
        fields = [EPOCH, stream, seq, topic, 1_700_000_000_000, Format.MSGPACK, 0, 1]
        self.intake.submit(session, fields, payload, NOW)
        if session.streams[stream].position < seq:
            return False
        self.seqs[name + topic] = seq
        return True

    def fill(self, topic: str, client: str = "", payload: bytes = PAYLOAD) -> int:
        """Until it is held; how many were taken."""
        taken = 0
        while self.submit(topic, client, payload):
            taken += 1
        return taken

    def settle(self, topic: str, entries: int) -> None:
        """The oldest entries are told and done: what the driver does then."""
        queue = self.queues[topic]
        chain: Chain = queue.chain
        for entry in list(chain.entries())[:entries]:
            mark_failed_done(chain, entry, fail_remaining(chain, entry, 0xFF01))
        for session in self.clients.values():
            session.unsettled_bytes = 0
        queue.last_settled_ms = NOW
        self.pool.give(chain.release_pages())
        self.shares.count(queue, NOW)

    def resumed(self) -> list[int]:
        """Streams that were told to go on since the last call."""
        sent, self.outboxes.sent = self.outboxes.sent, []
        return [message[1] for _, message in sent if message[0] == Kind.RESUME]

    def resumed_clients(self) -> list[str]:
        sent, self.outboxes.sent = self.outboxes.sent, []
        return [name for name, message in sent if message[0] == Kind.RESUME]


MakeHarnesses = Callable[[int], list[Harness]]


@pytest.fixture
def harnesses(tmp_path: Path) -> Iterator[MakeHarnesses]:
    segment = Segment.create(
        tmp_path / "segment",
        page_bytes=PAGE_BYTES,
        buffer_memory_bytes=PAGES * PAGE_BYTES,
        clients_max=16,
        instance_id=b"test",
    )
    yield lambda workers: [Harness(segment, slot, workers) for slot in range(workers)]
    segment.close()


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_topics_that_do_not_move_leave_a_quarter_of_the_pool_however_many_workers(
    harnesses: MakeHarnesses, workers: int
) -> None:
    all_harnesses = harnesses(workers)
    for number in range(6):
        all_harnesses[number % workers].fill(f"unknown {number}")
    held = sum(harness.pool.taken_count for harness in all_harnesses)
    assert PAGES * STALLED_SHARE * 0.95 < held <= PAGES * STALLED_SHARE
    for harness in all_harnesses:
        for number in range(max(harness.pool.floor_pages - 2, 4)):
            assert harness.submit("good"), f"page {number} of the good client at worker {harness.slot}"


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_topic_has_one_share_at_all_workers_together(harnesses: MakeHarnesses, workers: int) -> None:
    all_harnesses = harnesses(workers)
    is_open = [True] * workers
    while any(is_open):  # in turns, so that none has it all
        is_open = [
            still and harness.submit("t") for still, harness in zip(is_open, all_harnesses, strict=True)
        ]
    held = sum(harness.pool.taken_count for harness in all_harnesses)
    assert PAGES * TOPIC_SHARE * 0.9 < held <= PAGES * TOPIC_SHARE
    assert all(harness.submit("other") for harness in all_harnesses)


def test_two_workers_that_judge_at_the_same_moment_do_not_take_the_same_rest(
    harnesses: MakeHarnesses,
) -> None:
    one, two = harnesses(2)
    for harness in (one, two):
        for _ in range(PAGES * 3 // 8 - 3):
            assert harness.submit(f"unknown {harness.slot}")
    # Three pages are left of the share, for one of the two. Both decide before either has taken.
    sessions = [harness.clients[f"client of unknown {harness.slot}"] for harness in (one, two)]
    refusals = [
        harness.shares.claim(harness.queues[f"unknown {harness.slot}"], session, 2, NOW)
        for harness, session in zip((one, two), sessions, strict=True)
    ]
    assert [refusal is None for refusal in refusals] in ([True, False], [False, True], [False, False])
    one.shares.count(one.queues["unknown 0"], NOW)
    two.shares.count(two.queues["unknown 1"], NOW)
    assert 0 < one.fill("unknown 0") <= 3, "what was claimed and not taken is free again"


def test_pages_given_back_by_another_worker_resume_held_streams(harnesses: MakeHarnesses) -> None:
    one, two = harnesses(2)
    assert two.fill("unknown two") > 0
    assert one.fill("unknown one") > 0  # holds the rest of the share
    two.outboxes.sent.clear()
    assert not two.submit("unknown three")
    assert not one.shares.check_is_due
    one.settle("unknown one", one.queues["unknown one"].chain.live_entries)
    assert one.shares.check_is_due and one.shares.others_wait(), "the other worker is to be rung"
    # A quarter of the share must be free before a held stream goes on: it has its own to give, too.
    two.settle("unknown two", PAGES // 4)
    two.holds.shares_freed(NOW)
    assert two.resumed() == [sum(map(ord, "unknown two")), sum(map(ord, "unknown three"))]
    assert not one.shares.others_wait(), "nobody is held any more"


def test_a_little_that_goes_back_rings_nobody(harnesses: MakeHarnesses) -> None:
    one, two = harnesses(2)
    one.fill("unknown one")
    one.fill("unknown one more")
    assert not two.submit("unknown two")
    one.shares.checked()
    few = int(PAGES * LOOK_SHARE) - 1
    one.settle("unknown one", few)
    assert not one.shares.check_is_due
    one.settle("unknown one", 2)
    assert one.shares.check_is_due


def test_a_topic_that_moves_again_frees_its_share_at_every_worker(harnesses: MakeHarnesses) -> None:
    one, two = harnesses(2)
    one.fill("unknown one")
    one.fill("unknown one more")
    assert not two.submit("unknown two")
    for queue in one.queues.values():
        queue.update_partitions(1, [0], [0], lambda usable: StickyPartitioner(1, usable, 1, 1))
        queue.last_settled_ms = NOW
    one.shares.count_all(NOW)
    assert one.shares.check_is_due and one.shares.others_wait()
    two.holds.shares_freed(NOW)
    assert len(two.resumed()) == 1


def test_pages_of_a_dead_worker_count_until_its_slot_is_adopted(harnesses: MakeHarnesses) -> None:
    one, two = harnesses(2)
    assert one.fill("unknown one") and one.fill("unknown more")
    assert not two.submit("unknown two"), "its words stay when it dies"
    successor = Harness(two.segment, one.slot, 2)
    assert not two.submit("unknown three"), "and until its successor knows what is there"
    successor.shares.begin(NOW)  # it found nothing: as after a slot was reclaimed
    assert two.submit("unknown four")


def test_pages_of_a_worker_that_does_not_beat_do_not_move(harnesses: MakeHarnesses) -> None:
    one, two = harnesses(2)
    for topic in ("a", "b"):
        one.fill(topic)
    assert one.pool.taken_count > PAGES * STALLED_SHARE
    one.view.store_heartbeat(int((NOW - 3_001) * 1e6))
    assert not two.submit("unknown")
    one.view.store_heartbeat(int(NOW * 1e6))
    assert two.submit("unknown too"), "its topics move"


def test_stages_have_one_share_at_all_workers_together(harnesses: MakeHarnesses) -> None:
    """What finds it full is not held: it would wait for a commit that cannot come. Plain topics have the rest."""
    one, other = harnesses(2)
    limit = int(0.7 * PAGES)
    assert one.shares.claim_staged(limit - 10)
    one.shares.staged_bytes = (limit - 10) * PAGE_BYTES  # as counted once it is accepted
    assert not other.shares.claim_staged(11)
    assert other.shares.claim_staged(10)
    other.shares.staged_bytes = 10 * PAGE_BYTES
    assert not one.shares.claim_staged(1)
    assert other.submit("plain")
    assert one.shares.staged_everywhere == limit * PAGE_BYTES
    reclaim_slot(one.segment, one.slot)
    assert other.shares.staged_everywhere == 10 * PAGE_BYTES


def test_a_row_with_another_topic_is_known_as_such(harnesses: MakeHarnesses) -> None:
    one, two = harnesses(2)
    assert two.submit("t") and two.submit("late")
    one.fill("t")
    assert not two.submit("t")
    assert two.submit("late")
    one.settle("t", one.queues["t"].chain.live_entries)
    one.pool.give(one.queues["t"].chain.release_idle())
    one.table.vacate(IDEMPOTENT_LANE, "t")
    del one.queues["t"]
    one.fill("late", client="another")
    assert one.table.ids() == {(IDEMPOTENT_LANE, "late"): 0}, "the row of before"
    two.holds.shares_freed(NOW)
    assert two.resumed() == [sum(map(ord, "t"))]
    assert not two.submit("late", client="another")
    assert two.submit("t", client="another")
    ((_, seen),) = two.shares._words._others
    assert list(seen._offsets) == ["late"], "nothing is kept of a topic that no row names"


def test_a_worker_with_nothing_of_a_topic_always_takes_one_entry_of_it(harnesses: MakeHarnesses) -> None:
    """A large record must not wait until a topic that is busy elsewhere is empty there for a moment."""
    one, two = harnesses(2)
    one.fill("t")
    assert two.submit("t")
    assert not two.submit("t")
    two.settle("t", 1)
    two.pool.give(two.queues["t"].chain.release_idle())
    two.holds.shares_freed(NOW)
    assert two.resumed() == [sum(map(ord, "t"))]


def test_a_reclaimed_slot_holds_nothing(harnesses: MakeHarnesses) -> None:
    one, two = harnesses(2)
    one.fill("unknown one")
    one.fill("unknown two")
    assert not one.submit("unknown one")
    reclaim_slot(one.segment, one.slot)
    assert two.shares.refusal(two.queue("unknown one"), session(two), 1, NOW) is None
    assert not two.shares.others_wait()


def test_the_words_lie_in_room_that_older_segments_have_as_zeros() -> None:
    assert layout.SLOT_STALLED_OFFSET + 8 * layout.SLOT_COUNT == layout.HEADER_BYTES
    assert layout.CHAIN_ROW.size + layout.TOPIC_BYTES_MAX <= layout.CHAIN_HELD_OFFSET
    assert max(layout.DEAD_LETTERING_OFFSET, layout.SPARED_OFFSET) + 8 <= layout.CHAIN_NAMES_OFFSET
    assert layout.CHAIN_NAMES_OFFSET + 8 <= layout.SHARE_WAITS_OFFSET
    assert layout.SHARE_WAITS_OFFSET + 8 <= layout.IN_WORK_OFFSET


def test_pages_kept_for_a_stub_that_go_back_wake_the_other_worker(harnesses: MakeHarnesses) -> None:
    one, two = harnesses(2)
    held = one.pool.take(one.pool.pages_max)
    assert held is not None
    one.submit("t")  # waits for a page
    stream = one.clients["client of t"].streams[sum(map(ord, "t"))]
    one.pool.give(held[:2])
    ((waiter, pages),) = one.pool.poll(NOW)
    one.holds.pool_granted(waiter, pages, NOW)
    two.pool.enqueue("waits", two.pool.pages_max)
    one.rung = 0
    one.holds.reclaim_reservations([stream], NOW + RESERVATION_MS_MAX + 1)
    assert one.rung == 1
    # The same when more was kept than is needed now.
    stream.reserved_pages = held[2:5]
    one.submit("t")
    assert one.rung == 2


def session(harness: Harness) -> ClientSession:
    return ClientSession(b"r", FakeRow(), "anybody", NOW)  # type: ignore[arg-type]


def test_small_submissions_do_not_pass_a_large_one_of_their_topic_or_client_for_ever(
    harnesses: MakeHarnesses,
) -> None:
    """They would keep the share too full for it, as long as they came faster than the topic drains."""
    (harness,) = harnesses(1)
    large = b"\x92\xc0\xc6" + (40 * 4032).to_bytes(4, "big") + b"v" * (40 * 4032)
    for number in range(100):
        assert harness.submit("t", f"small {number % 3}")
    assert not harness.submit("t", "large", large)
    assert not harness.submit("t", "small 0"), "there is room for it, and somebody waits"
    assert harness.submit("other", "small 1"), "only that share is waited for"
    goes_on: list[tuple[str, ...]] = []
    while not goes_on or "large" not in goes_on[-1]:
        harness.settle("t", 10)
        harness.holds.shares_freed(NOW)
        goes_on.append(tuple(harness.resumed_clients()))
        assert goes_on[-1] == () or goes_on[-1][0] == "large"
    assert goes_on[-1] == ("large", "small 0")
    assert harness.queues["t"].chain.live_entries, "it was not waited until nothing was left"
    assert harness.submit("t", "large", large)
    assert harness.submit("t", "small 0")


def test_a_clients_share_counts_what_the_journal_keeps_of_it(harnesses: MakeHarnesses) -> None:
    """12 bytes are 128 in the journal and 64 of index: a client of many topics has one share all the same."""
    (harness,) = harnesses(1)
    for number in range(4):
        harness.fill(f"topic {number}", "bulk", b"\x92\xc0\xc4\x08" + b"v" * 8)
    share = PAGES * CLIENT_SHARE * 128 / held_bytes(1, 12)
    assert share * 0.95 < harness.pool.taken_count <= share * 1.05
    assert harness.submit("good", client="another")


def test_a_stream_stands_once_in_the_line_for_pages_whatever_else_it_waited_for_before(
    harnesses: MakeHarnesses,
) -> None:
    (harness,) = harnesses(1)
    holds, pool = harness.holds, harness.pool
    assert harness.submit("a", "c")
    session = harness.clients["c"]
    (stream,) = session.streams.values()
    holds.hold_until(stream, HoldCause.RATE, ("the topic is at its rate", NOW + 1_000), NOW)
    holds.forget(session)  # it lost its connection, and comes back within its grace
    rest = pool.take(pool.page_count - pool.taken_count)
    assert rest is not None
    assert not harness.submit("a", "c")
    assert stream.hold_cause is HoldCause.POOL
    holds.timed_due(NOW + 1_000)
    assert not harness.submit("a", "c"), "it keeps its place"
    assert pool.waiting_count == 1
    pool.give(rest)
    for waiter, pages in pool.poll(NOW):
        holds.pool_granted(waiter, pages, NOW)
    holds.forget(session)
    assert pool.taken_count == harness.queues["a"].chain.page_count, "pages that nobody has"
