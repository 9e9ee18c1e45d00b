"""Goal: a slot's histograms outlive its worker, and old ones are where they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.shm.histograms import (
    BROKERS_MAX,
    HISTOGRAM_ROWS,
    OTHER_BROKERS,
    REQUEST_ROW,
    HistogramCounts,
    SlotHistograms,
    read_histograms,
)
from sidecar.shm.segment import Segment
from sidecar.shm.slots import SlotView


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[SlotView]:
    made = Segment.create(
        tmp_path / "segment", page_bytes=4096, buffer_memory_bytes=1 << 20, clients_max=16, instance_id=b"i"
    )
    made.prepare_slot(0)
    made.slot(0).claim(incarnation=1)
    yield made.slot(0)
    made.close()


def found(slot: SlotView, name: str, broker: str = "") -> HistogramCounts:
    (one,) = [each for each in read_histograms(slot) if (each.row.name, each.broker) == (name, broker)]
    return one


def test_a_successor_continues_where_its_predecessor_stopped(slot: SlotView) -> None:
    for incarnation in (2, 3):
        slot.claim(incarnation=incarnation)
        histograms = SlotHistograms(slot)
        histograms.submission_sizes.observe(65)
        histograms.of_broker(7).observe(11)
        histograms.of_broker(0).observe(9)
    assert found(slot, "submission_bytes").buckets[:3] == [0, 2, 0]
    assert found(slot, "submission_bytes").total == 130
    assert found(slot, "request_seconds", "7").buckets[:3] == [0, 2, 0]
    assert found(slot, "request_seconds", "0").buckets[:3] == [2, 0, 0]
    assert slot.counters.read()["records_accepted_total"] == 0, "not among the counter rows"


def test_brokers_beyond_the_bound_share_one_row(slot: SlotView) -> None:
    histograms = SlotHistograms(slot)
    for broker in range(100, 100 + BROKERS_MAX + 3):
        histograms.of_broker(broker).observe(1)
    brokers = [each.broker for each in read_histograms(slot) if each.row is REQUEST_ROW]
    assert brokers == [OTHER_BROKERS, *(str(broker) for broker in range(100, 100 + BROKERS_MAX))]
    assert sum(found(slot, "request_seconds", OTHER_BROKERS).buckets) == 3
    assert found(slot, "request_seconds", "100").buckets[0] == 1, "nothing is written over another row"


def test_each_has_words_of_its_own(slot: SlotView) -> None:
    histograms = SlotHistograms(slot)
    each = (
        histograms.delivery_times,
        histograms.queue_times,
        histograms.batch_sizes,
        histograms.batch_counts,
        histograms.submission_sizes,
    )
    for times, (histogram, row) in enumerate(zip(each, HISTOGRAM_ROWS, strict=True), 1):
        for _ in range(times):
            histogram.observe(row.bounds[-1] * row.steps + 1)
            histogram.observe(row.bounds[0] * row.steps)
    for times, row in enumerate(HISTOGRAM_ROWS, 1):
        counts = found(slot, row.name).buckets
        assert (counts[0], counts[-1], sum(counts)) == (times, times, 2 * times)
