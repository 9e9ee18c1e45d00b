"""Prometheus collector of the counters in the shared segment. A dead worker's counters stay.

The exporter calls it in the controller, and `status` and `top` in their own processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar.shm.counters import COUNTER_ROWS
from sidecar.shm.histograms import read_histograms
from sidecar.shm.segment import Segment
from sidecar.telemetry.metric_table import (
    CONNECTIONS_SAVED,
    FAILED_RECORDS,
    HISTOGRAM_METRICS,
    PROCESS_METRICS,
    SEGMENT_METRICS,
    STATE_METRICS,
    MetricRow,
)
from sidecar.telemetry.process_rows import read_processes
from sidecar.telemetry.state_rows import Samples, Status

_OF_THE_SEGMENT: Final = ("records_held", "records_staged")
"""Their records wait in the segment of a dead worker."""
_GAUGES: Final = [row.name for row in COUNTER_ROWS if row.kind == "gauge" and row.name not in _OF_THE_SEGMENT]
"""Gauges that are 0 for a dead worker. Its held records stay, as they are in the segment for its successor."""


def read_counters(segment: Segment) -> dict[int, dict[str, int]]:
    """Slot → its counter values, for every slot that ever had a worker. Only reads, also a dead daemon's segment."""
    found: dict[int, dict[str, int]] = {}
    for index in segment.prepared_slots():
        slot = segment.slot(index)
        if slot.incarnation:
            found[index] = slot.counters.read()
            if not slot.is_owned:
                # Its worker is dead: its counters stay valid, but its gauges do not.
                found[index] |= dict.fromkeys(_GAUGES, 0)
    return found


def sum_counters(by_slot: dict[int, dict[str, int]]) -> dict[str, int]:
    """The totals over all slots."""
    totals = {row.name: 0 for row in COUNTER_ROWS}
    for values in by_slot.values():
        for name, value in values.items():
            totals[name] += value
    return totals


class SegmentCollector(Collector):
    """A collector with a family for every row of the metric table.

    ``status`` returns the controller's state, and ``failures`` the failed records by (topic, error).
    """

    def __init__(
        self, segment: Segment, status: Callable[[], Status], failures: Callable[[], Samples]
    ) -> None:
        self._segment = segment
        self._status = status
        self._failures = failures

    def describe(self) -> Iterator[Metric]:
        """Empty, as registering must not read the segment."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        by_slot = read_counters(self._segment)
        slots = [((str(slot),), values) for slot, values in by_slot.items()]
        for source, metric, scale in SEGMENT_METRICS:
            yield _family(metric, [(label, values[source] * scale) for label, values in slots])
        yield from self._histograms(by_slot)
        status = self._status()
        for row, metric in STATE_METRICS:
            yield _family(metric, row.samples(status))
        yield _family(FAILED_RECORDS, self._failures())
        yield _family(CONNECTIONS_SAVED, [((), _connections_saved(sum_counters(by_slot), status))])
        processes = list(read_processes(status))
        for metric in PROCESS_METRICS:
            samples = [(labels, values[metric.name]) for labels, values in processes if metric.name in values]
            yield _family(metric, samples)

    def _histograms(self, slots: Iterable[int]) -> Iterator[Metric]:
        """The histograms, merged over the slots; they include the counts of dead workers."""
        merged: dict[tuple[str, str], list[int]] = {}
        for slot in slots:
            for counts in read_histograms(self._segment.slot(slot)):
                key = counts.row.name, counts.broker
                values = [*counts.buckets, counts.total]
                if key in merged:
                    values = [a + b for a, b in zip(merged[key], values, strict=True)]
                merged[key] = values
        for row, metric in HISTOGRAM_METRICS:
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            bounds = [*(str(float(bound)) for bound in row.bounds), "+Inf"]
            for (name, broker), (*buckets, total) in merged.items():
                if name == row.name and (any(buckets) or not metric.labels):
                    labels = [broker] if metric.labels else []
                    family.add_metric(
                        labels, list(zip(bounds, accumulate(buckets), strict=True)), total / row.steps
                    )
            yield family


def _connections_saved(totals: dict[str, int], status: Status) -> float:
    brokers = sum(each["state"] == "up" for each in status["brokers"])
    return float(max(totals["clients_connected"] * brokers - totals["broker_connections"], 0))


def _family(metric: MetricRow, samples: Samples) -> Metric:
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "counter":
        family = CounterMetricFamily(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)
    else:
        family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
