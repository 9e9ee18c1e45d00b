"""BufferPool (rule A2): all or nothing, in turn, nothing lost, nobody starved."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sidecar.shm import layout
from sidecar.shm.buffer_pool import BufferPool
from sidecar.shm.segment import Segment
from tests.shm.conftest import PAGES

NOW = 50_000.0


def pool_of(
    segment: Segment,
    slot: int,
    *,
    workers: int,
    floor_pages: int | None = None,
    wake_others: Callable[[], None] = lambda: None,
) -> BufferPool:
    segment.prepare_slot(slot)
    view = segment.slot(slot)
    view.claim(incarnation=slot + 1)
    view.store_heartbeat(int(NOW * 1e6))
    return BufferPool(
        segment, incarnation=slot + 1, workers=workers, floor_pages=floor_pages, wake_others=wake_others
    )


def taken_words(segment: Segment) -> int:
    return sum(word != 0 for word in segment.owners.cast("Q"))


@pytest.mark.rule("A2")
def test_all_or_nothing(segment: Segment) -> None:
    pool = pool_of(segment, 0, workers=1)
    pages = pool.take(60)
    assert pages is not None and len(set(pages)) == 60
    assert pool.take(5) is None
    assert taken_words(segment) == pool.taken_count == 60
    assert pool.take(4) is not None
    pool.give(pages)
    assert taken_words(segment) == pool.taken_count == 4
    with pytest.raises(ValueError, match="given back twice"):
        pool.give(pages[:1])


@pytest.mark.rule("A2")
def test_more_than_the_pool_fails_at_once(segment: Segment) -> None:
    pool = pool_of(segment, 0, workers=1)
    with pytest.raises(ValueError, match="cannot be allocated"):
        pool.take(PAGES + 1)
    with pytest.raises(ValueError, match=r"raise buffer\.memory"):
        pool.enqueue("a", PAGES + 1)
    with pytest.raises(ValueError, match="cannot be allocated"):
        pool.take(0)


@pytest.mark.rule("A2")
def test_waiters_are_served_in_turn(segment: Segment) -> None:
    pool = pool_of(segment, 0, workers=1)
    pages = pool.take(PAGES)
    assert pages is not None
    pool.enqueue("large", 10)
    pool.enqueue("small", 1)
    pool.give(pages[:5])
    assert pool.poll(NOW) == [], "the small request does not overtake the large one"
    assert pool.take(1) is None, "nor does who comes later"
    pool.give(pages[5:11])
    granted = pool.poll(NOW)
    assert [(waiter, len(got)) for waiter, got in granted] == [("large", 10), ("small", 1)]
    assert pool.waiting_count == 0
    assert taken_words(segment) == pool.taken_count == PAGES


@pytest.mark.rule("A2")
def test_a_waiter_that_leaves_the_queue_leaves_no_trace(segment: Segment) -> None:
    pool = pool_of(segment, 0, workers=1)
    pages = pool.take(PAGES)
    assert pages is not None
    pool.enqueue("gone", PAGES)
    pool.enqueue("patient", 2)
    assert pool.poll(NOW) == []
    pool.cancel("nobody")
    pool.cancel("gone")
    pool.give(pages)
    granted = pool.poll(NOW)
    assert [waiter for waiter, _ in granted] == ["patient"]
    pool.enqueue("gone too", 3)
    pool.cancel("gone too")
    assert pool.poll(NOW) == []
    pool.give(granted[0][1])
    assert taken_words(segment) == pool.taken_count == 0


def test_a_floor_is_nobody_elses(segment: Segment) -> None:
    greedy, modest = (pool_of(segment, slot, workers=2, floor_pages=10) for slot in (0, 1))
    assert greedy.pages_max == PAGES - 10
    got = [greedy.take(1) for _ in range(PAGES)]
    assert sum(page is not None for page in got) == PAGES - 10
    assert modest.take(11) is None
    own = modest.take(10)
    assert own is not None
    assert taken_words(segment) == PAGES
    modest.give(own)
    first = greedy.take(1)
    assert first is None, "the floor is kept free for its owner"


@pytest.mark.rule("A2")
def test_lendable_pages_are_shared_by_all_workers(segment: Segment) -> None:
    """Two that borrow leave a third its floor, although neither has borrowed all that may be lent."""
    one, two, third = (pool_of(segment, slot, workers=3, floor_pages=10) for slot in range(3))
    lendable = PAGES - 30
    assert one.take(10 + lendable // 2) is not None
    assert two.take(10 + lendable - lendable // 2 + 1) is None
    borrowed = two.take(10 + lendable - lendable // 2)
    assert borrowed is not None
    assert one.take(1) is None
    assert third.take(10) is not None
    assert taken_words(segment) == PAGES
    two.give(borrowed[:1])
    assert one.take(1) is not None, "what another gives back may be lent again"


def test_workers_take_turns_by_ticket(segment: Segment) -> None:
    rung: list[int] = []
    one = pool_of(segment, 0, workers=2, floor_pages=0, wake_others=lambda: rung.append(1))
    two = pool_of(segment, 1, workers=2, floor_pages=0, wake_others=lambda: rung.append(2))
    pages = one.take(PAGES)
    assert pages is not None
    two.enqueue("two-a", 20)
    two.enqueue("two-b", 1)
    one.enqueue("one-a", 2)
    one.give(pages[:10])
    assert rung == [1], "the other worker must be woken"
    assert one.poll(NOW) == [], "it is not our turn"
    assert two.poll(NOW) == []
    one.give(pages[10:30])
    granted = two.poll(NOW)
    assert [waiter for waiter, _ in granted] == ["two-a"], "after one request the turn passes"
    assert rung.count(2) == 1, "and who has it now is told"
    granted = one.poll(NOW)
    assert [waiter for waiter, _ in granted] == ["one-a"]
    granted = two.poll(NOW)
    assert [waiter for waiter, _ in granted] == ["two-b"]
    rung.clear()
    one.give(pages[30:31])
    assert not rung, "nobody waits"


@pytest.mark.parametrize("way", ["cancel", "die"])
def test_a_waiter_that_leaves_the_queue_wakes_the_next_worker(segment: Segment, way: str) -> None:
    rung: list[str] = []
    first = pool_of(segment, 0, workers=2, floor_pages=0, wake_others=lambda: rung.append(way))
    second = pool_of(segment, 1, workers=2, floor_pages=0)
    pages = second.take(PAGES)
    assert pages is not None
    first.enqueue("large", PAGES)
    second.enqueue("small", 1)
    second.give(pages[:1])
    assert second.poll(NOW) == [], "it is the other's turn"
    if way == "cancel":
        first.cancel("large")
    else:
        pool_of(segment, 0, workers=2, floor_pages=0, wake_others=lambda: rung.append(way))
    assert rung == [way]
    granted = second.poll(NOW)
    assert [waiter for waiter, _ in granted] == ["small"]


def test_a_dead_worker_does_not_hold_up_the_line(segment: Segment) -> None:
    dead, live = (pool_of(segment, slot, workers=2, floor_pages=0) for slot in (0, 1))
    pages = live.take(PAGES)
    assert pages is not None
    dead.enqueue("dead", 1)
    live.enqueue("live", 1)
    live.give(pages[:3])
    assert live.poll(NOW) == []
    granted = live.poll(NOW + 3_001)
    assert [waiter for waiter, _ in granted] == ["live"]


def test_below_its_floor_nobody_waits_for_a_ticket(segment: Segment) -> None:
    one, two = (pool_of(segment, slot, workers=2, floor_pages=8) for slot in (0, 1))
    pages = one.take(PAGES - 8)
    assert pages is not None
    one.enqueue("one", 5)
    assert two.take(8) is not None


def test_random_walk_keeps_the_books(segment: Segment) -> None:
    """Pages taken equal pages given back, whatever three workers do."""
    rng = random.Random(11)
    pools = [pool_of(segment, slot, workers=3, floor_pages=6) for slot in range(3)]
    held: list[list[list[int]]] = [[], [], []]
    now = NOW
    for step in range(4_000):
        now += rng.random()
        me = rng.randrange(3)
        pool = pools[me]
        segment.slot(me).store_heartbeat(int(now * 1e6))
        what = rng.random()
        if what < 0.4:
            pages = pool.take(rng.randint(1, 9))
            if pages:
                held[me].append(pages)
        elif what < 0.5:
            pool.enqueue(step, rng.randint(1, 20))
        elif what < 0.55:
            pool.cancel(step - rng.randint(1, 40))
        elif held[me]:
            pool.give(held[me].pop(rng.randrange(len(held[me]))))
        granted = pool.poll(now)
        held[me] += [pages for _, pages in granted]
        owned = [page for pages in held[me] for page in pages]
        assert len(owned) == len(set(owned)) == pool.taken_count
        assert taken_words(segment) == sum(each.taken_count for each in pools) <= PAGES
        start = layout.SLOT_BORROWED_OFFSET
        borrowed = list(segment.header[start : start + 24].cast("Q"))
        assert borrowed == [max(0, each.taken_count - 6) for each in pools]
    for pool, pages in zip(pools, held, strict=True):
        for entry in list(pool.waiters):
            pool.cancel(entry.waiter)
        for each in pages:
            pool.give(each)
    assert bytes(segment.owners) == bytes(len(segment.owners))
    words = segment.header[
        layout.SLOT_TICKETS_OFFSET : layout.SLOT_TAKEN_OFFSET + 8 * layout.SLOT_COUNT
    ].cast("Q")
    assert not any(words)
