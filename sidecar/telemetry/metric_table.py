"""The single table of all metrics, as Prometheus sees them: docs/metrics.md, the dashboard and the tests read it.

Made at the import; the exporter, `status` and the generators of pages read it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from sidecar.shm.counters import COUNTER_ROWS, CounterRow, Kind
from sidecar.shm.histograms import HISTOGRAM_ROWS, REQUEST_ROW, HistogramRow
from sidecar.telemetry.process_rows import PROCESS_LABELS, PROCESS_ROWS
from sidecar.telemetry.state_rows import STATE_ROWS

PREFIX: Final = "kafka_sidecar_"


class MetricRow(NamedTuple):
    """A metric. ``name`` includes the prefix, and counters end in ``_total``; ``worry`` says when to look closer, and
    at what.
    """

    name: str
    kind: Kind | Literal["histogram"]
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    worry: str = ""


class SegmentMetric(NamedTuple):
    """A counter of the segment as a metric; milliseconds are shown in seconds."""

    source: str
    metric: MetricRow
    scale: float


FAILED_RECORDS: Final = MetricRow(
    PREFIX + "topic_records_failed_total",
    "counter",
    "records",
    "Records that failed, by topic and error; 200 topics with most failures, the rest as `other`. Counted when "
    "the failure is decided, since the daemon's start.",
    ("topic", "error"),
    "Any growth: `kafka-sidecar status` and the log have the reason and what to do.",
)

CONNECTIONS_SAVED: Final = MetricRow(
    PREFIX + "connections_saved",
    "gauge",
    "connections",
    "Additional connections to brokers that one Kafka client in each process would need: clients times brokers that "
    "are up, less the connections of the workers.",
)


def _segment_metric(row: CounterRow) -> SegmentMetric:
    name, unit, scale = row.name, row.unit, 1.0
    if unit == "milliseconds":
        stem = name.removesuffix("_total")
        name = stem.removesuffix("_ms") + "_seconds" + name.removeprefix(stem)
        unit, scale = "seconds", 0.001
    return SegmentMetric(
        row.name, MetricRow(PREFIX + name, row.kind, unit, row.help, ("slot",), row.worry), scale
    )


def _histogram_metric(row: HistogramRow, labels: tuple[str, ...]) -> tuple[HistogramRow, MetricRow]:
    return row, MetricRow(PREFIX + row.name, "histogram", row.unit, row.help, labels, row.worry)


HISTOGRAM_METRICS: Final = (
    *(_histogram_metric(row, ()) for row in HISTOGRAM_ROWS),
    _histogram_metric(REQUEST_ROW, ("broker",)),
)
SEGMENT_METRICS: Final = tuple(map(_segment_metric, COUNTER_ROWS))
STATE_METRICS: Final = tuple(
    (row, MetricRow(PREFIX + row.name, row.kind, row.unit, row.help, row.labels, row.worry))
    for row in STATE_ROWS
)
PROCESS_METRICS: Final = tuple(
    MetricRow(row.name, row.kind, row.unit, row.help, PROCESS_LABELS, row.worry) for row in PROCESS_ROWS
)
METRICS: Final = (
    *(metric for _, metric in STATE_METRICS),
    FAILED_RECORDS,
    CONNECTIONS_SAVED,
    *(each.metric for each in SEGMENT_METRICS),
    *(metric for _, metric in HISTOGRAM_METRICS),
    *PROCESS_METRICS,
)
