"""Rates of topics: what is let through over time, on a clock that all workers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_stub.contract.wire import Kind
from sidecar.producer.topic_settings import TopicRules
from sidecar.shm import layout, rate_words
from sidecar.shm.rate_words import IDLE_MS, RateClock, find_clock
from sidecar.shm.segment import Segment
from sidecar.worker.streams.rate_limit import BURST_MS, RateLimit, RateLimits
from tests.configs import producer_config
from tests.worker.test_intake import Harness

IDLE_US = IDLE_MS * 1_000


def limit(clocks: dict[str, RateClock] | None = None, *, workers: int = 1, **own: int) -> RateLimit:
    names = {"rate": "rate", "records": "records.per.second"}
    settings = TopicRules(producer_config(), {"*": {names[name]: value for name, value in own.items()}}).of(
        "t"
    )

    def find(name: str, now_us: int | None) -> RateClock | None:
        return None if clocks is None else clocks.setdefault(name, RateClock(bytearray(8), 0))

    made = RateLimit.of("t", settings, workers=workers, find_clock=find)
    assert made is not None
    return made


def let_through(limits: list[RateLimit], frame: tuple[int, int], from_ms: float, to_ms: float) -> int:
    """Frames of (records, bytes) taken when every limit's worker tries each millisecond."""
    taken = 0
    for now_ms in range(int(from_ms), int(to_ms)):
        for each in limits:
            while each.refusal(float(now_ms)) is None:
                each.charge(*frame, float(now_ms))
                taken += 1
    return taken


def test_a_topic_without_a_rate_has_no_limit() -> None:
    settings = TopicRules(producer_config()).of("t")
    assert RateLimit.of("t", settings, workers=1, find_clock=lambda name, now_us: None) is None


def test_bytes_per_second() -> None:
    taken = let_through([limit({}, rate=100_000)], (1, 1_000), 1e6, 1e6 + 10_000)
    assert 1_000 <= taken <= 1_000 + 100 * BURST_MS / 1_000 + 1


def test_records_per_second() -> None:
    taken = let_through([limit({}, records=500)], (5, 1_000_000), 1e6, 1e6 + 10_000)
    assert 1_000 <= taken <= 1_000 + 100 * BURST_MS / 1_000 + 1


def test_the_stricter_of_both_counts_and_is_named() -> None:
    both = limit({}, rate=1_000_000, records=10)
    both.charge(10, 10, 5_000.0)
    refusal = both.refusal(5_000.0)
    assert refusal is not None
    assert refusal[0] == "topic t is at its records.per.second of 10"
    assert refusal[1] == pytest.approx(6_000 - BURST_MS)


def test_workers_share_one_rate() -> None:
    clocks: dict[str, RateClock] = {}
    two = [limit(clocks, rate=100_000, workers=2) for _ in range(2)]
    assert let_through(two, (1, 1_000), 1e6, 1e6 + 5_000) <= 500 + 11


def test_without_a_shared_clock_each_worker_keeps_to_its_part() -> None:
    two = [limit(None, rate=100_000, workers=2) for _ in range(2)]
    assert 500 <= let_through(two, (1, 1_000), 1e6, 1e6 + 5_000) <= 500 + 12


def test_one_frame_larger_than_the_burst_passes_whole_and_is_paid_for() -> None:
    one = limit({}, rate=1_000)
    assert one.refusal(0.0) is None
    one.charge(1, 60_000, 0.0)
    refusal = one.refusal(0.0)
    assert refusal is not None
    assert refusal[1] == pytest.approx(60_000 - BURST_MS)
    assert one.refusal(60_000 - BURST_MS) is None


def test_silence_is_not_saved_up_for_more_than_the_burst() -> None:
    one = limit({}, rate=100_000)
    let_through([one], (1, 1_000), 0, 1_000)
    assert let_through([one], (1, 1_000), 1e6, 1e6 + 1) <= 100 * BURST_MS / 1_000 + 1


def test_clocks_of_the_segment_are_found_by_name_until_all_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    segment = Segment.create(
        path, page_bytes=16_384, buffer_memory_bytes=1 << 20, clients_max=16, instance_id=b"test"
    )
    other = Segment.attach(path)
    try:
        mine, theirs = find_clock(segment, "rate a"), find_clock(other, "rate a")
        assert mine is not None and theirs is not None
        mine.charge(500, 1_000)
        assert theirs.paid_at_us() == 1_500
        theirs.charge(500, 1_000)
        assert mine.paid_at_us() == 2_000
        for number in range(layout.RATE_ROWS_MAX - 1):
            assert find_clock(segment, f"rate {number}") is not None
        assert find_clock(segment, "one more") is None
        assert find_clock(other, "rate a") is not None
    finally:
        other.close()
        segment.close()


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    made = Segment.create(
        tmp_path / "segment",
        page_bytes=16_384,
        buffer_memory_bytes=1 << 20,
        clients_max=16,
        instance_id=b"test",
    )
    yield made
    made.close()


def clock_of(segment: Segment, name: str, now_us: int | None = None) -> RateClock:
    found = find_clock(segment, name, now_us)
    assert found is not None
    return found


def test_a_clock_that_owes_nothing_goes_to_the_next_name(segment: Segment) -> None:
    """A rate that a reload changes takes another clock, and each topic of a pattern has one: without end."""
    for number in range(10 * layout.RATE_ROWS_MAX):
        now_us = 10 * IDLE_US + number * IDLE_US
        clock = clock_of(segment, f"rate {number}", now_us)
        assert clock.charge(IDLE_US // 2, now_us)
        assert clock.paid_at_us() == now_us + IDLE_US // 2, "it begins with nothing owed"


def test_a_clock_that_owes_something_is_nobody_elses(segment: Segment) -> None:
    names = [f"rate {number}" for number in range(layout.RATE_ROWS_MAX)]
    clocks = [clock_of(segment, name) for name in names]
    for clock in clocks:
        clock.charge(1_000, 5 * IDLE_US)
    ends_us = 5 * IDLE_US + 1_000
    assert find_clock(segment, "one more", ends_us + IDLE_US - 1) is None
    clocks[7].charge(1, ends_us)  # all others were quiet longer
    taken = clock_of(segment, "one more", ends_us + IDLE_US)
    assert taken.charge(70, ends_us + IDLE_US)
    assert clocks[7].paid_at_us() == ends_us + 1
    lost = [clock for clock in clocks if not clock.charge(1, ends_us)]
    assert len(lost) == 1 and lost[0].paid_at_us() == 0, (
        "who lost it hears so, and pays nothing to the new name"
    )
    assert taken.paid_at_us() == ends_us + IDLE_US + 70


@pytest.mark.parametrize("step", range(1, 9))
@pytest.mark.parametrize("charge_is_outside", [True, False])
def test_a_charge_that_meets_the_taking_of_its_clock_is_never_paid_by_another(
    segment: Segment, monkeypatch: pytest.MonkeyPatch, step: int, charge_is_outside: bool
) -> None:
    """One of them happens between two steps of the other. The charge costs a day; the new name owes none of it."""
    day_us, now_us = 86_400_000_000, 100 * IDLE_US
    old = clock_of(segment, "old")
    for row in range(layout.RATE_ROWS_MAX - 1):
        clock_of(segment, f"row {row}").charge(1, now_us)
    taken: list[RateClock | None] = []

    def charge() -> None:
        old.charge(day_us, now_us)

    def take() -> None:
        taken.append(find_clock(segment, "new", now_us))

    outside, inside = (charge, take) if charge_is_outside else (take, charge)
    # Before it takes a clock it walks over all rows twice: by name, and by what they owe.
    calls = [2 - 3 * layout.RATE_ROWS_MAX if outside is take else 0]

    def then_inside(do: Callable[..., Any]) -> Callable[..., Any]:
        def doing(*given: Any) -> Any:
            done = do(*given)
            calls[0] += 1
            if calls[0] == step:
                inside()
            return done

        return doing

    with monkeypatch.context() as patch:
        for name in ("load_acquire_u64", "compare_and_swap_u64"):
            patch.setattr(rate_words, name, then_inside(getattr(rate_words, name)))
        outside()
    if not taken:
        take()
    assert taken[-1] is None or taken[-1].paid_at_us() <= now_us
    assert (taken[-1] is None) == (old.paid_at_us() > now_us), "it has one owner"


def test_a_limit_finds_a_clock_again_when_it_lost_its_own_or_had_none(segment: Segment) -> None:
    """With its clock it keeps the whole rate with others; without one its part; its debt stays owed."""
    for number in range(layout.RATE_ROWS_MAX):
        clock_of(segment, f"rate {number}").charge(1, 10_000_000)
    limits = [RateLimits(segment, workers=2) for _ in range(2)]
    settings = TopicRules(producer_config(), {"*": {"records.per.second": 100}}).of("t")
    one, two = (each.of("t", settings) for each in limits)
    assert one is not None and two is not None
    one.charge(100, 0, 10_000.0)
    refusal = one.refusal(10_000.0)
    assert refusal is not None and refusal[1] == pytest.approx(12_000 - BURST_MS), "a part of the rate"
    assert two.refusal(10_000.0) is None
    one.charge(0, 0, 11_500.0)  # the others have owed nothing for a second: there is a clock
    for each in (one, two):
        each.charge(0, 0, 11_500.0)
        refusal = each.refusal(11_500.0)
        assert refusal is not None and refusal[1] == pytest.approx(11_750 - BURST_MS), "half of what was owed"
    for number in range(layout.RATE_ROWS_MAX):
        clock_of(segment, f"later {number}", 60_000_000)  # now it has lost it
    assert one.refusal(60_000.0) is None
    one.charge(100, 0, 70_000.0)
    two.charge(100, 0, 70_000.0)
    refusal = two.refusal(70_000.0)
    assert refusal is not None and refusal[1] == pytest.approx(72_000 - BURST_MS), "on one clock again"


@pytest.mark.parametrize(
    ("own", "frame"),
    [
        ({"records": 10}, (65_535, 65_535)),
        ({"records": 1}, (65_535, 65_535)),
        ({"rate": 291}, (1, 1 << 20)),
        ({"rate": 1}, (1, 64 << 20)),
    ],
)
def test_a_submission_that_costs_hours_is_paid_for(own: dict[str, int], frame: tuple[int, int]) -> None:
    one = limit({}, **own)
    one.charge(*frame, 1e6)
    units = frame[0] if "records" in own else frame[1]
    costs_ms = 1_000 * units / next(iter(own.values()))
    assert costs_ms > 3_600_000
    refusal = one.refusal(1e6)
    assert refusal is not None
    assert refusal[1] == pytest.approx(1e6 + costs_ms - BURST_MS)
    assert one.refusal(refusal[1] - 1) is not None
    assert one.refusal(refusal[1]) is None


def test_a_single_record_costs_less_than_a_microsecond_and_still_counts() -> None:
    one = limit({}, records=3_000_000)
    let_through([one], (1, 100), 1e6, 1e6 + 1)  # the burst
    taken = let_through([one], (1, 100), 1e6 + 1, 1e6 + 51)
    assert 149_000 <= taken <= 151_000


def test_another_rate_owes_nothing() -> None:
    clocks: dict[str, RateClock] = {}
    limit(clocks, records=1).charge(65_535, 100, 0.0)
    assert limit(clocks, records=1).refusal(0.0) is not None
    assert limit(clocks, records=1_000_000).refusal(0.0) is None


def test_a_clock_from_before_the_host_was_started_again_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = Segment.create(
        tmp_path / "segment",
        page_bytes=16_384,
        buffer_memory_bytes=1 << 20,
        clients_max=16,
        instance_id=b"test",
    )
    try:
        clock = find_clock(segment, "rate a")
        assert clock is not None
        clock.charge(1_000, 1 << 50)
        monkeypatch.setattr("sidecar.shm.segment.current_boot_id", lambda: b"another boot id.")
        segment.begin_boot()
        again = find_clock(segment, "rate a")
        assert again is not None
        again.charge(1_000, 5_000)
        assert again.paid_at_us() == 6_000
    finally:
        segment.close()


@pytest.mark.rule("A1")
def test_a_stream_over_its_topics_rate_is_held_until_the_time_is_paid_for() -> None:
    harness = Harness()
    harness.queue("t").rate = limit({}, records=20)
    harness.submit(1)  # four records at 5 ms: paid for at 205 ms
    assert harness.holds.next_timed_ms == float("inf")
    harness.submit(2)
    assert harness.take_sent() == [[Kind.HOLD, 1, 2, "topic t is at its records.per.second of 20"]]
    harness.submit(1, stream=2, topic="other")
    assert len(harness.chain("other").appended) == 1
    due_ms = harness.holds.next_timed_ms
    assert due_ms == pytest.approx(205.0 - BURST_MS)
    harness.holds.timed_due(due_ms - 0.1)
    assert harness.take_sent() == []
    harness.holds.timed_due(due_ms)
    assert harness.take_sent() == [[Kind.RESUME, 1, 2]]
    assert harness.holds.next_timed_ms == float("inf")


def test_a_stream_whose_client_left_is_not_resumed() -> None:
    harness = Harness()
    harness.queue("t").rate = limit({}, records=1)
    harness.submit(1)
    harness.submit(2)
    harness.take_sent()
    harness.holds.forget(harness.session)
    harness.holds.timed_due(1e9)
    assert harness.take_sent() == []
