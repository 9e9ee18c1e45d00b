"""Goal: the table of topics of a slot is nobody's alone: a name lasts as long as something refers to it.

Method: clients of a harness on a real segment open topics until the table is full, leave, and others come. After each
step the segment is read by a reader of its own, as an adopter would.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from client_stub.contract.wire import Kind
from sidecar.common.model import Node
from sidecar.kernel import fail_remaining, load_acquire_u64, mark_failed_done, store_release_u64
from sidecar.metadata.snapshot import MetadataSnapshot, PartitionState, TopicState
from sidecar.producer.lanes import PLAIN_LANE
from sidecar.shm import chain_table as chain_table_module
from sidecar.shm.chain_table import ChainTable, FreeRows
from sidecar.shm.layout import CHAINS_MAX, STREAMS_MAX
from sidecar.worker.stubs.name_queue import CHECK_MS, STAY_MS, WAITING_MAX
from sidecar.worker.topics.topics import CHECK_MS as NAMES_CHECK_MS
from sidecar.worker.topics.topics import (
    IDLE_MS,
    NAMES_PER_FREE_ROW,
    ROWS_FOR_KNOWN,
    ROWS_FOR_NEWCOMERS,
    VACATE_MS,
)
from tests.worker.harness import INCARNATION, Harness
from tests.worker.port_harness import Peer, PortHarness

from .harness import GRACE_MS


@pytest.fixture
def port_harness(harness: Harness) -> PortHarness:
    port_harness = PortHarness(harness)
    # A submission without room: the stream has its place and nothing is accepted, so that 1,024 topics need no pages.
    port_harness.holds._take = lambda stream, needed: None  # type: ignore[method-assign]
    port_harness.shares.claim = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    return port_harness


def opens(peer: Peer, stream: int, topic: str) -> str:
    """Result of the first submission of a stream: HOLD (it has its place), LINE (it waits for one), or the code of
    its refusal.
    """
    peer.submit(1, stream=stream, topic=topic)
    (answer,) = peer.heard(Kind.HOLD, Kind.REFUSED)
    if answer[0] == Kind.HOLD:
        return "LINE" if "topics that Kafka has" in answer[3] else "HOLD"
    return str(answer[1])


def knows(port_harness: PortHarness, *topics: str) -> None:
    """A metadata push in which Kafka has these topics."""
    nodes = {1: Node(1, "h", 9092)}
    states = {name: TopicState(name, partitions=(PartitionState(1, 1),)) for name in topics}
    port_harness.topics.on_snapshot(MetadataSnapshot(nodes=nodes, topics=states), port_harness.clock.now_ms())
    port_harness.openings.names_known()


def fill(port_harness: PortHarness) -> Peer:
    """Names that nobody made take all that they may have; returns the last client that brought some."""
    for number in range(1_000):
        peer = port_harness.client(f"flood-{number}", pid=10_000 + number)
        if opens(peer, 1, f"nobody-{number}-1") != "HOLD":
            port_harness.clock.advance(STAY_MS)
            port_harness.holds.timed_due(port_harness.clock.now_ms())
            return peer
        stream = 2
        while opens(peer, stream, f"nobody-{number}-{stream}") == "HOLD":
            stream += 1
    raise AssertionError("the table has no end")


def leave(port_harness: PortHarness, *peers: Peer) -> None:
    for peer in peers:
        peer.send([Kind.BYE, True])
    port_harness.rooms.stubs.clients.reclaim_rows(port_harness.clock.now_ms())
    port_harness.clock.advance(VACATE_MS)


def agrees(port_harness: PortHarness) -> dict[str, int]:
    """Names and ids as a reader finds them, which must be those of the owner; no stream names another's topic."""
    harness = port_harness.harness
    read = ChainTable(harness.segment, 0, incarnation=INCARNATION + 1)
    assert read.ids() == harness.chain_table.ids()
    topics = {name.chain_id: name.topic for name in read.names()}
    assert len(topics) == len(read)
    for session in harness.sessions:
        for stream, chain_id, _ in session.row.streams():
            assert topics[chain_id] == session.streams[stream].topic_queue.topic
    for queue in port_harness.topics:
        assert topics[queue.chain.chain_id] == queue.topic
    return {name.topic: name.chain_id for name in read.names()}


def test_a_full_table_always_has_a_name_left_for_who_has_none(port_harness: PortHarness) -> None:
    """Greedy clients take their share in turn; the nearer the table is to its end, the less that is."""
    greedy = [port_harness.client(f"greedy-{number}") for number in range(8)]
    counts = dict.fromkeys(range(8), 0)
    refused: set[int] = set()
    while len(refused) < len(greedy):
        for number, peer in enumerate(greedy):
            if number in refused:
                continue
            topic = f"of-{number}-{counts[number]}"
            if opens(peer, counts[number] + 1, topic) == "HOLD":
                counts[number] += 1
            else:
                refused.add(number)
    free = CHAINS_MAX - len(agrees(port_harness))
    assert free >= 10
    assert max(counts.values()) - min(counts.values()) <= NAMES_PER_FREE_ROW
    assert opens(port_harness.client("modest"), 1, "good") == "HOLD"
    assert opens(greedy[0], 900, "of-1-0") == "HOLD", "a name that is there is not a new one"


def test_names_that_nobody_made_never_fill_the_table(port_harness: PortHarness) -> None:
    """Processes that came one after the other filled it with names under which records waited, and a newcomer whose
    topic Kafka has was refused.
    """
    fill(port_harness)
    assert CHAINS_MAX - len(agrees(port_harness)) == ROWS_FOR_KNOWN
    newcomer = port_harness.client("newcomer", pid=5_000)
    port_harness.topics.missing.take_unrequested()
    assert opens(newcomer, 1, "good") == "LINE"
    assert "good" in port_harness.topics.missing.take_unrequested(), (
        "the controller is asked whether Kafka has it"
    )
    newcomer.submit(2, stream=1, topic="good")
    newcomer.submit(1, stream=1, topic="good")
    assert not newcomer.heard(Kind.HOLD, Kind.REFUSED, Kind.RESEND), "its place in the line is one"
    knows(port_harness, "good")
    port_harness.port.end_turn(port_harness.clock.now_ms())
    assert newcomer.heard(Kind.RESUME) == [[Kind.RESUME, 1, 1]]
    assert opens(newcomer, 1, "good") == "HOLD"
    assert "good" in agrees(port_harness)


def test_a_stream_in_the_line_continues_when_a_row_is_free_and_one_that_is_gone_leaves_nothing(
    port_harness: PortHarness,
) -> None:
    fill(port_harness)
    stays, goes = port_harness.client("stays"), port_harness.client("goes")
    assert opens(stays, 1, "not-made") == opens(goes, 1, "neither-made") == "LINE"
    port_harness.clock.advance(CHECK_MS - 1)
    port_harness.holds.timed_due(port_harness.clock.now_ms())
    assert not stays.heard(Kind.RESUME)
    leave(port_harness, goes)
    assert "neither-made" not in port_harness.topics.missing.names
    port_harness.holds.timed_due(port_harness.clock.now_ms())
    port_harness.port.end_turn(port_harness.clock.now_ms())
    assert stays.heard(Kind.RESUME) == [[Kind.RESUME, 1, 1]]
    assert not port_harness.openings.queue.waiting
    assert "not-made" not in port_harness.topics.missing.names
    assert opens(stays, 1, "not-made") == "HOLD", "rows of the flood that nothing used are free by now"


def test_a_process_takes_half_of_the_line_and_the_next_stream_is_refused(port_harness: PortHarness) -> None:
    fill(port_harness)
    greedy = port_harness.client("greedy", pid=5_000)
    stream = 1
    while (found := opens(greedy, stream, f"not-made-{stream}")) == "LINE":
        stream += 1
    assert (found, stream - 1) == ("TOPIC_TABLE_FULL", WAITING_MAX // 2)
    assert opens(port_harness.client("modest", pid=5_001), 1, "good") == "LINE"


def test_one_process_may_have_nearly_all_rows_for_topics_that_kafka_has(port_harness: PortHarness) -> None:
    """Producers of one process with 200 topics each: the last ones stood in the line for ever."""
    topics = [f"made-{number}" for number in range(1_000)]
    knows(port_harness, *topics)
    for topic in topics[800:]:
        queue = port_harness.topics.get(topic)
        assert queue is not None
        queue.waiting.append(1, 0.0)  # as if a record waited: nobody else gets the name
    peers = [port_harness.client(f"c{number}", pid=os.getpid()) for number in range(4)]
    for number, topic in enumerate(topics[:800]):
        peer = peers[number % 4]
        assert opens(peer, 1 + number // 4, topic) == "HOLD"
    assert CHAINS_MAX - len(agrees(port_harness)) >= ROWS_FOR_NEWCOMERS


def test_a_stream_leaves_the_line_after_a_while(port_harness: PortHarness) -> None:
    fill(port_harness)
    for queue in port_harness.topics:
        queue.waiting.append(1, 0.0)  # as if a record waited: nobody else gets the name
    peer = port_harness.client("peer")
    assert opens(peer, 1, "not-made") == "LINE"
    checks = int(STAY_MS / CHECK_MS)
    for _ in range(checks - 1):
        port_harness.clock.advance(CHECK_MS)
        port_harness.holds.timed_due(port_harness.clock.now_ms())
    port_harness.port.end_turn(port_harness.clock.now_ms())
    assert not peer.heard(Kind.RESUME)
    port_harness.clock.advance(CHECK_MS)
    port_harness.holds.timed_due(port_harness.clock.now_ms())
    port_harness.port.end_turn(port_harness.clock.now_ms())
    assert peer.heard(Kind.RESUME)
    assert opens(peer, 1, "not-made") == "LINE"


def test_topics_that_kafka_has_fill_the_whole_table_and_the_next_is_refused(
    port_harness: PortHarness,
) -> None:
    topics = [f"made-{number}" for number in range(CHAINS_MAX + 1)]
    knows(port_harness, *topics)
    in_use = {port_harness.topics.get(topic) for topic in topics[: CHAINS_MAX - 2]}
    for queue in in_use:
        assert queue is not None
        queue.waiting.append(1, 0.0)  # as if a record waited: nobody else gets the name
    assert opens(port_harness.client("last but one"), 1, topics[-3]) == "HOLD"
    assert opens(port_harness.client("last"), 1, topics[-2]) == "HOLD"
    assert len(agrees(port_harness)) == CHAINS_MAX
    assert opens(port_harness.client("one more"), 1, topics[-1]) == "TOPIC_TABLE_FULL"


def test_a_process_that_comes_back_as_another_client_has_the_names_it_brought(
    port_harness: PortHarness,
) -> None:
    """Two processes that attached again and again filled the table with names under which records waited."""
    refused = 0
    for turn in range(16):
        peer = port_harness.client(f"c{turn}", pid=4_242 + turn % 2)
        for stream in range(1, STREAMS_MAX + 1):
            refused += opens(peer, stream, f"t-{turn}-{stream}") != "HOLD"
            queue = port_harness.topics.get(f"t-{turn}-{stream}") if not refused else None
            if queue is not None:
                queue.waiting.append(1, 0.0)  # as if a record waited: nobody else gets the name
        leave(port_harness, peer)
    assert refused
    free = CHAINS_MAX - len(agrees(port_harness))
    assert free >= 30
    assert opens(port_harness.client("modest", pid=5_000), 1, "good") == "HOLD"
    unseen = port_harness.client("of another pid namespace")
    assert opens(unseen, 1, "also-good") == "HOLD"


def test_few_clients_may_have_two_hundred_topics_each(port_harness: PortHarness) -> None:
    for number in range(4):
        peer = port_harness.client(f"c{number}")
        for stream in range(1, STREAMS_MAX + 1):
            assert opens(peer, stream, f"t-{number}-{stream}") == "HOLD"


def test_names_that_nothing_uses_are_given_again(port_harness: PortHarness) -> None:
    first = [port_harness.client(f"first-{number}") for number in range(6)]
    for number, peer in enumerate(first):
        stream = 0
        while opens(peer, stream + 1, f"old-{number}-{stream}") == "HOLD":
            stream += 1
            if stream == STREAMS_MAX:
                break
    stays = first.pop()
    mine = {name: chain for name, chain in agrees(port_harness).items() if name.startswith("old-5-")}
    leave(port_harness, *first)
    second = [port_harness.client(f"second-{number}") for number in range(5)]
    for number, peer in enumerate(second):
        for stream in range(100):
            port_harness.clock.advance(VACATE_MS)
            assert opens(peer, stream + 1, f"new-{number}-{stream}") == "HOLD"
    names = agrees(port_harness)
    assert {name: names[name] for name in mine} == mine, "what a client's stream names keeps its row"
    assert opens(stays, 1_000, "new-0-0") == "HOLD"


def test_a_topic_without_a_backlog_gives_its_second_row_back(port_harness: PortHarness) -> None:
    """Each topic that once had a backlog kept two rows for its life."""
    names = [f"made-{number}" for number in range((CHAINS_MAX - ROWS_FOR_KNOWN) // 2 - 2)]
    knows(port_harness, *names, "kept", "new")
    queues = [port_harness.topics.get(name) for name in names]
    kept = port_harness.topics.get("kept")
    assert kept is not None and port_harness.topics.express_of(kept) is not None
    for queue in queues:
        assert queue is not None
        queue.waiting.append(1, 0.0)  # as if a record waited: nobody else gets the name
        port_harness.topics.express_of(queue)
    assert kept.express is not None
    kept.express.waiting.append(1, 0.0)
    assert len(port_harness.harness.chain_table) == 2 * (len(names) + 1) + 1, (
        "two each, and that of the harness"
    )
    port_harness.topics._vacate_unused()
    assert len(port_harness.harness.chain_table) == len(names) + 2
    assert all(queue is not None and queue.express is None for queue in queues)
    assert (
        kept.express is not None and port_harness.topics.by_chain[kept.express.chain.chain_id] is kept.express
    )
    first = queues[0]
    assert first is not None and port_harness.topics.express_of(first) is first.express is not None


def test_names_that_nothing_has_used_for_long_are_dropped(port_harness: PortHarness) -> None:
    """The controller places clients by the rows that are free."""
    stays, goes = port_harness.client("stays"), port_harness.client("goes")
    port_harness.topics.forget_idle(port_harness.clock.now_ms())
    assert opens(stays, 1, "used") == opens(goes, 1, "unused") == "HOLD"
    for queue in port_harness.topics:
        queue.last_used_ms = port_harness.clock.now_ms()
    goes.send([Kind.BYE, True])
    port_harness.rooms.stubs.clients.reclaim_rows(port_harness.clock.now_ms())
    rows = FreeRows()
    free = rows.of(port_harness.harness.segment, 0)
    assert free == port_harness.harness.chain_table.free_count
    port_harness.topics.forget_idle(port_harness.clock.advance(IDLE_MS - 1.0))
    assert "unused" in agrees(port_harness)
    port_harness.topics.forget_idle(port_harness.clock.advance(1.0))
    assert "unused" in agrees(port_harness), "it checks once a minute"
    port_harness.topics.forget_idle(port_harness.clock.advance(NAMES_CHECK_MS))
    assert "unused" not in agrees(port_harness)
    assert "used" in agrees(port_harness)
    assert rows.of(port_harness.harness.segment, 0) == port_harness.harness.chain_table.free_count > free


def test_a_name_that_is_given_again_leaves_nothing_but_numbers(port_harness: PortHarness) -> None:
    """A job that begins a topic of its own each hour, for years. Some have a chain from before a change of acks."""
    accumulator = port_harness.harness.rooms.core.accumulator
    for number in range(5):
        name = f"hour-{number}"
        if number % 2:
            port_harness.topics.keep_chain(name, PLAIN_LANE)
        knows(port_harness, name)
        queue = port_harness.topics.get(name)
        assert queue is not None and queue.partitioner is not None
        partition = accumulator.queue(name, queue.lane, 0)
        assert partition.partitioner is queue.partitioner
        accumulator.limit_growth(name, 100)
        while name in agrees(port_harness):
            port_harness.topics._vacate_unused()
        assert partition.partitioner is None
    assert not any(lane._partitioners for lane in accumulator.lanes.values())
    assert not accumulator._growth_by_topic
    assert not port_harness.topics._rules._found
    knows(port_harness, "hour-0")
    again = port_harness.topics.get("hour-0")
    assert again is not None
    assert accumulator.queue("hour-0", again.lane, 0).partitioner is again.partitioner is not None


def test_a_name_is_kept_while_records_of_it_wait_though_its_client_is_gone(harness: Harness) -> None:
    port_harness = PortHarness(harness)
    peer = port_harness.client()
    peer.submit(1, topic="waits")
    peer.send([Kind.BYE, False])
    harness.sessions.reclaim(port_harness.clock.advance(GRACE_MS + 1))
    queue = port_harness.topics.get("waits")
    assert queue is not None and queue.chain.live_entries == 1
    port_harness.topics._vacate_unused()
    assert "waits" in agrees(port_harness)
    assert port_harness.topics.get("waits") is queue


def test_a_row_with_another_name_keeps_its_tail_and_loses_its_sequences(harness: Harness) -> None:
    """An entry's ordinal in a chain never comes twice: it names a dead letter and what is in work."""
    port_harness = PortHarness(harness)
    queue = port_harness.topics.get("before")
    assert queue is not None
    chain_id = queue.chain.chain_id
    pages = harness.pool.take(queue.chain.pages_needed(1, 100))
    assert pages is not None
    queue.chain.link_pages(pages)
    entry = queue.chain.append(
        b"\x92\xc0\xc0".ljust(100, b"\0"),
        count=1,
        client_row=1,
        client_generation=1,
        stream=1,
        seq=1,
        base_timestamp_ms=0,
        format=1,
        flags=0,
    )
    port_harness.topics._vacate_unused()
    assert "before" in agrees(port_harness), "it holds a record"
    mark_failed_done(queue.chain, entry, fail_remaining(queue.chain, entry, 0xFF06))
    harness.pool.give(queue.chain.release_pages() + queue.chain.release_idle())
    while "before" in agrees(port_harness):
        port_harness.topics._vacate_unused()
    again = port_harness.topics.get("after")
    assert again is not None
    assert again.chain.chain_id == chain_id
    assert again.chain.tail > 0
    pages = harness.pool.take(again.chain.pages_needed(1, 100))
    assert pages is not None
    again.chain.link_pages(pages)


def test_a_death_at_any_store_of_it_leaves_a_table_that_can_be_read(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = harness.chain_table
    names = ["t", "a", "b-longer", "c"]
    for name in names[1:]:
        assert table.open(0, name) is not None
    before = {each.topic: each.chain_id for each in table.names()}
    images: list[bytes] = []
    area = harness.segment.slot(0).area

    class Watched:
        """As the area; the state before each write is kept."""

        def __setitem__(self, place: slice, data: bytes) -> None:
            for cut in range(len(data)):
                area[place.start : place.start + cut] = data[:cut]
                images.append(bytes(area))
            area[place] = data

    def store(buffer: object, position: int, value: int) -> None:
        images.append(bytes(area))
        store_release_u64(area, position, value)

    with monkeypatch.context() as patched:
        patched.setattr(chain_table_module, "store_release_u64", store)
        patched.setattr(
            chain_table_module, "load_acquire_u64", lambda _, position: load_acquire_u64(area, position)
        )
        patched.setattr(table, "_area", Watched())
        freed = table.vacate(0, "b-longer")
        assert table._name(0, "another") == freed
    assert len(images) > 10
    after = {**before, "another": freed}
    del after["b-longer"]
    now = bytes(area)
    for image in images:
        area[:] = image
        found = {each.topic: each.chain_id for each in ChainTable(harness.segment, 0).names()}
        assert {name: found[name] for name in ("t", "a", "c")} == {n: before[n] for n in ("t", "a", "c")}
        others = set(found) - {"t", "a", "c"}
        assert others in (set(), {"b-longer"}, {"another"}), "no reader sees half a name"
    area[:] = now
    assert {each.topic: each.chain_id for each in ChainTable(harness.segment, 0).names()} == after


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_whoever_comes_and_goes_names_and_streams_agree(port_harness: PortHarness, seed: int) -> None:
    chance = random.Random(seed)
    peers: list[Peer] = []
    streams: Counter[bytes] = Counter()
    for step in range(150):
        port_harness.clock.advance(chance.choice([0, VACATE_MS]))
        if len(peers) < 10 and chance.random() < 0.4:
            peers.append(port_harness.client(f"c{step}"))
        if peers and chance.random() < 0.3:
            leave(port_harness, peers.pop(chance.randrange(len(peers))))
        for peer in peers:
            for _ in range(chance.randrange(40)):
                if opens(peer, streams[peer.client_id] + 1, f"t{chance.randrange(3_000)}") in (
                    "HOLD",
                    "LINE",
                ):
                    streams[peer.client_id] += 1
        if step % 10 == 0:
            agrees(port_harness)
    agrees(port_harness)


def test_a_topic_is_asked_for_as_long_as_one_of_several_waits_for_it(port_harness: PortHarness) -> None:
    fill(port_harness)
    goes, stays = port_harness.client("goes", pid=5_001), port_harness.client("stays", pid=5_002)
    assert opens(goes, 1, "late") == opens(stays, 1, "late") == "LINE"
    goes.send([Kind.BYE, True])
    assert "late" in port_harness.topics.missing.names, "nobody would hear of it before the minute is over"
    stays.send([Kind.BYE, True])
    assert "late" not in port_harness.topics.missing.names
