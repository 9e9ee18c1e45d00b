"""History: the last 15 minutes of a daemon's totals and latencies, in a ring of fixed size.

The exporter fills it each second, on the controller's loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from sidecar.shm.counters import ROW_INDEX
from sidecar.shm.histograms import HISTOGRAM_ROWS, read_delivery_times
from sidecar.shm.segment import Segment
from sidecar.shm.slots import FIRST_ROW_WORD

INTERVAL_S: Final = 5.0
SAMPLES_MAX: Final = 181
"""15 minutes with both ends included."""
COLUMNS: Final = (
    "records_accepted_total",
    "records_delivered_total",
    "records_failed_total",
    "records_dead_lettered_total",
    "bytes_accepted_total",
    "bytes_sent_total",
    "records_held",
    "buffer_pages_taken",
)
_PAGES: Final = "buffer_pages_taken"
_WORD_OF: Final = [(name, FIRST_ROW_WORD + ROW_INDEX[name]) for name in COLUMNS]
_BOUNDS: Final = next(row.bounds for row in HISTOGRAM_ROWS if row.name == "delivery_seconds")


class History:
    """Totals over all workers, with one sample per ``INTERVAL_S``."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, ...]] = deque(maxlen=SAMPLES_MAX)
        self._latencies: deque[tuple[float | None, float | None]] = deque(maxlen=SAMPLES_MAX)
        self._deliveries: list[int] = []

    def add(self, wall_ms: int, counters: Mapping[str, int], deliveries: list[int]) -> None:
        """Add a sample. ``counters``: totals by name (``sum_counters``); ``deliveries``: number of records by delivery
        time, in the buckets of the histogram (``delivery_counts``).
        """
        self._samples.append((wall_ms, *(counters[name] for name in COLUMNS)))
        before, self._deliveries = self._deliveries or deliveries, deliveries
        since = [max(now - then, 0) for now, then in zip(deliveries, before, strict=True)]
        self._latencies.append((quantile(since, 0.5), quantile(since, 0.99)))

    def to_json(self) -> dict[str, Any]:
        """``columns`` by name, each as long as ``at_ms`` (Unix time), oldest first. The quantiles in ``latency`` are
        as long; each is of the records delivered since the previous sample.
        """
        columns = list(zip(*self._samples, strict=True)) or [()] * (1 + len(COLUMNS))
        return {
            "interval_seconds": INTERVAL_S,
            "at_ms": list(columns[0]),
            "latency": {
                "p50_seconds": [p50 for p50, _ in self._latencies],
                "p99_seconds": [p99 for _, p99 in self._latencies],
            },
            "columns": {name: list(column) for name, column in zip(COLUMNS, columns[1:], strict=True)},
        }


def column_totals(segment: Segment) -> dict[str, int]:
    """The totals of COLUMNS over the slots, as from ``sum_counters``, but without building a dictionary per slot."""
    totals = dict.fromkeys(COLUMNS, 0)
    for index in segment.prepared_slots():
        slot = segment.slot(index)
        words = slot.counters.read_words()
        for name, word in _WORD_OF:
            # A dead worker has no pages. Whether a worker lives is only checked when it has pages.
            if words[word] and (name != _PAGES or slot.is_owned):
                totals[name] += words[word]
    return totals


def delivery_counts(segment: Segment) -> list[int]:
    """The number of records by delivery time, of all present and past workers: a count per bound, and one above the
    last.
    """
    totals = [0] * (len(_BOUNDS) + 1)
    for slot in segment.prepared_slots():
        counts = read_delivery_times(segment.slot(slot))
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
    return totals


def quantile(counts: list[int], part: float) -> float | None:
    """The time in seconds within which this part of the records was delivered, interpolated between two bounds; None
    without records.

    Above the last bound it is that bound, as in Prometheus.
    """
    wanted = part * sum(counts)
    if not wanted:
        return None
    below, seconds = 0, 0.0
    for count, bound in zip(counts, _BOUNDS, strict=False):
        if below + count >= wanted:
            return round(seconds + (bound - seconds) * (wanted - below) / count, 6)
        below, seconds = below + count, bound
    return seconds
