"""Goal: histograms in shared words count what they should, in both kernels, and readers see no half of a write."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.kernel import _kernel
from tests.kernel.journal import Journal
from tests.kernel.oracle import reference

KERNELS = (_kernel, reference)
BOUNDS = (10, 100, 1000)


class Meters:
    """A block with three histograms and what a worker does with them."""

    def __init__(self, kernel: ModuleType) -> None:
        self.block = bytearray(8 * 40)
        self.ages, self.sizes, self.counts, self.answers = (
            kernel.Histogram(self.block, first, BOUNDS) for first in (1, 10, 20, 30)
        )
        self.meter = kernel.SendMeter(self.ages, self.sizes, self.counts)

    def words(self, first: int) -> list[int]:
        return memoryview(self.block).cast("Q")[first : first + 5].tolist()


@pytest.mark.parametrize("kernel", KERNELS)
def test_values_are_counted_at_their_bounds(kernel: ModuleType) -> None:
    meters = Meters(kernel)
    for value in (-5, 0, 10, 10.9, 11, 100, 101, 1000, 1001, 1e12):
        meters.answers.observe(value)
    assert meters.words(30) == [4, 2, 2, 2, 10 + 10 + 11 + 100 + 101 + 1000 + 1001 + 10**12]
    assert meters.words(0)[0] == 20, "even again, a write for each"


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_record_is_as_old_as_its_submission(kernel: ModuleType) -> None:
    """Also after a split, and behind the end of the 32 bits in which the times are kept."""
    for start_ms in (0.0, 2**32 / 10 - 5, 1e12):
        meters, journal = Meters(kernel), Journal(kernel)
        batch = kernel.BatchRecords()
        for age_ms, count in ((9.0, 2), (9.0, 3), (1.0, 4), (-3.0, 1)):
            block = journal.index(journal.add([[None, b"v"]] * count))
            batch.try_append(block, 0, count, 1 << 20, start_ms + 10 - age_ms)
        first, second = batch.split()
        meters.answers.observe_ages(first, start_ms + 10)
        meters.answers.observe_ages(second, start_ms + 10)
        assert meters.words(30)[:4] == [5, 5, 0, 0]
        assert abs(meters.words(30)[4] - 5 * 90 - 4 * 10) <= 9, "tenths of a millisecond, cut off"


@pytest.mark.parametrize("kernel", KERNELS)
def test_requests_of_one_client_each_are_counted(kernel: ModuleType) -> None:
    meters, journal = Meters(kernel), Journal(kernel, page_count=500)

    def batch(*rows: int) -> Any:
        made = kernel.BatchRecords()
        for row in rows:
            block = journal.index(journal.add([[None, b"v"]], client_row=row))
            made.try_append(block, 0, 1, 1 << 20, 1.0)
        return made

    for batches, saved in (
        ([(1,)], 0),
        ([(1, 2, 1), (2, 70, 500)], 3),
        ([(9,), (9, 9)], 3),
        ([(1,), (2,)], 4),
    ):
        meters.meter.begin_request()
        for rows in batches:
            meters.meter.count(batch(*rows), 2.0, True)
        assert meters.meter.requests_saved == saved
    ages_before = meters.words(1)
    meters.meter.begin_request()
    meters.meter.count(batch(1), 2.0, False)
    assert meters.words(1) == ages_before, "a retry: these records were sent before"
    assert sum(meters.words(10)[:4]) == sum(meters.words(20)[:4]) == 8
    ended = batch(12)
    ended.mark_done()
    meters.meter.count(ended, 2.0, True)
    assert meters.meter.requests_saved == 4, "nothing is read of entries that have ended"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(
        st.tuples(
            st.booleans(),
            st.lists(st.tuples(st.integers(0, 90), st.integers(1, 6), st.integers(0, 400)), min_size=1),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_both_count_the_same(batches: list[tuple[bool, list[tuple[int, int, int]]]]) -> None:
    found = []
    for kernel in KERNELS:
        meters, journal = Meters(kernel), Journal(kernel, page_count=5_000)
        for is_new_request, submissions in batches:
            records = kernel.BatchRecords()
            for row, count, age_ms in submissions:
                block = journal.index(journal.add([[None, b"v" * row]] * count, client_row=row))
                records.try_append(block, 0, count, 1 << 20, 1_000.0 - age_ms)
            if is_new_request:
                meters.meter.begin_request()
            meters.meter.count(records, 1_000.0, is_new_request)
            meters.answers.observe_ages(records, 1_000.0)
        found.append((bytes(meters.block), meters.meter.requests_saved))
    assert found[0] == found[1]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("size", "first", "bounds"),
    [(64, 1, ()), (64, 1, (2, 1)), (64, 0, (1,)), (64, 6, (1,)), (512, 1, range(33))],
)
def test_a_histogram_stays_within_its_block(kernel: ModuleType, size: int, first: int, bounds: Any) -> None:
    with pytest.raises(ValueError, match=r"bounds|words"):
        kernel.Histogram(bytearray(size), first, bounds)


COUNTED = {"accepted": 1, "held": 2, "failed": 4}


@pytest.mark.parametrize("kernel", KERNELS)
def test_counters_are_added_in_one_write_and_gauges_stop_at_zero(kernel: ModuleType) -> None:
    block = bytearray(8 * 5)
    counters = kernel.CounterBlock(block, COUNTED)
    counters.add({"accepted": 3, "held": 3})
    counters.add({"held": -5, "failed": 2})
    counters.inc("accepted")
    counters.inc("accepted", 2)
    counters.set("failed", 2**64 - 1)
    assert memoryview(block).cast("Q").tolist() == [10, 6, 0, 0, 2**64 - 1], "even again, two for each write"
    assert [counters.get(row) for row in COUNTED] == [6, 0, 2**64 - 1]


@pytest.mark.parametrize("kernel", KERNELS)
def test_unknown_counter_is_an_error_and_ends_the_write(kernel: ModuleType) -> None:
    block = bytearray(8 * 5)
    counters = kernel.CounterBlock(block, COUNTED)
    for call in (
        counters.inc,
        counters.get,
        lambda row: counters.set(row, 1),
        lambda row: counters.add({row: 1}),
    ):
        with pytest.raises(KeyError):
            call("lost")
    assert not any(memoryview(block).cast("Q")[1:]) and not block[0] & 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_counters_of_a_reader_are_not_written(kernel: ModuleType) -> None:
    counters = kernel.CounterBlock(memoryview(bytes(8 * 5)), COUNTED)
    assert counters.get("held") == 0
    for call in (counters.inc, lambda row: counters.set(row, 1), lambda row: counters.add({row: 1})):
        with pytest.raises(TypeError):
            call("held")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("index", [0, 5])
def test_a_counter_outside_of_its_block_is_refused(kernel: ModuleType, index: int) -> None:
    with pytest.raises(ValueError, match="not every row"):
        kernel.CounterBlock(bytearray(8 * 5), {"one": index})
