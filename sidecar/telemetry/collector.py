"""Prometheus collector over the counters of the shared segment; a dead worker's counters stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar.shm.counters import COUNTER_ROWS, Kind
from sidecar.shm.layout import SLOT_COUNT
from sidecar.shm.segment import Segment
from sidecar.shm.slots import process_start_ticks

PREFIX: Final = "kafka_sidecar_"
Status = dict[str, Any]
Sample = tuple[tuple[str, ...], float]


class StateRow(NamedTuple):
    """A metric of the daemon's state: from ``status()``, not from the segment. The rest as in CounterRow."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[Status], list[Sample]]
    worry: str = ""


STATE_ROWS: Final = (
    StateRow(
        "up",
        "gauge",
        "0 or 1",
        "1 while the daemon takes records.",
        (),
        lambda status: [((), float(status["takes_records"]))],
        "0: `kafka-sidecar status` and `/healthz` say why.",
    ),
    StateRow(
        "worker_ready",
        "gauge",
        "0 or 1",
        "1 while the worker takes clients.",
        ("worker",),
        lambda status: [
            ((str(worker["index"]),), float(worker["state"] == "ready")) for worker in status["workers"]
        ],
        "0 for longer than a start takes: the worker's log says why.",
    ),
    StateRow(
        "worker_clients",
        "gauge",
        "clients",
        "Clients assigned to the worker.",
        ("worker",),
        lambda status: [((str(worker["index"]),), float(worker["clients"])) for worker in status["workers"]],
    ),
    StateRow(
        "worker_restarts_total",
        "counter",
        "restarts",
        "Workers replaced after a death.",
        (),
        lambda status: [((), float(status["restarts"]))],
        "Any growth: the log has the exit status of each.",
    ),
    StateRow(
        "topic_records_failed_total",
        "counter",
        "records",
        "Records that failed, by topic and error; the 200 topics that failed first, the rest as `other`. Counted when "
        "the failure is decided, since the daemon's start.",
        ("topic", "error"),
        lambda status: status["failure_counts"],
        "Any growth: `kafka-sidecar status` and the log have the reason and what to do.",
    ),
    StateRow(
        "control_refused_total",
        "counter",
        "messages",
        "Refusals at the control socket (HELLO and TOPICS), by code.",
        ("code",),
        lambda status: [((code,), float(count)) for code, count in sorted(status["refused"].items())],
        "NOT_ADMITTED or MALFORMED_FRAME: a client with a wrong token, or none of ours; the log names its process.",
    ),
    StateRow(
        "slots_held",
        "gauge",
        "slots",
        "Slots that hold records of a dead worker.",
        (),
        lambda status: [((), float(len(status["held_slots"])))],
        "Above 0 for minutes: a worker cannot adopt them, or a dead one does not go (state D).",
    ),
    StateRow(
        "info",
        "gauge",
        "1",
        "Constant 1; the labels name version and instance.",
        ("version", "instance"),
        lambda status: [((status["version"], status["instance"]), 1.0)],
    ),
    StateRow(
        "start_time_seconds",
        "gauge",
        "seconds",
        "Start of the daemon, Unix time.",
        (),
        lambda status: [((), status["started_ms"] / 1000.0)],
        "It changes without a restart of yours.",
    ),
)
"""docs/metrics.md is printed from it and from COUNTER_ROWS."""
_GAUGES = [row.name for row in COUNTER_ROWS if row.kind == "gauge" and row.name != "records_held"]
"""Gauges that a dead worker no longer has. Its records stay held: they are in the segment, for its successor."""


def read_counters(segment: Segment) -> dict[int, dict[str, int]]:
    """Counter values by slot, for every slot that ever had a worker. Reads only; works on a dead daemon's
    too."""
    found: dict[int, dict[str, int]] = {}
    for index in range(SLOT_COUNT):
        if segment.is_slot_prepared(index):
            slot = segment.slot(index)
            if slot.incarnation:
                found[index] = slot.counters.read()
                if process_start_ticks(slot.pid) != slot.start_time:
                    # Its worker is dead: what it counted stays true, what it held at that moment does not.
                    found[index] |= dict.fromkeys(_GAUGES, 0)
    return found


def sum_counters(by_slot: dict[int, dict[str, int]]) -> dict[str, int]:
    """Totals over the slots."""
    totals = {row.name: 0 for row in COUNTER_ROWS}
    for values in by_slot.values():
        for name, value in values.items():
            totals[name] += value
    return totals


class SegmentCollector(Collector):
    """Families of every counter row with label ``slot``, and of the daemon's state from ``status()``."""

    def __init__(self, segment: Segment, status: Callable[[], Status]) -> None:
        self._segment = segment
        self._status = status

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read the segment."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        by_slot = read_counters(self._segment)
        for row in COUNTER_ROWS:
            name = PREFIX + row.name
            family: CounterMetricFamily | GaugeMetricFamily
            if row.kind == "counter":
                family = CounterMetricFamily(name.removesuffix("_total"), row.help, labels=["slot"])
            else:
                family = GaugeMetricFamily(name, row.help, labels=["slot"])
            for slot, values in by_slot.items():
                family.add_metric([str(slot)], values[row.name])
            yield family
        yield from self._state()

    def _state(self) -> Iterator[Metric]:
        status = self._status()
        for row in STATE_ROWS:
            name = PREFIX + row.name
            family: CounterMetricFamily | GaugeMetricFamily
            if row.kind == "counter":
                family = CounterMetricFamily(name.removesuffix("_total"), row.help, labels=row.labels)
            else:
                family = GaugeMetricFamily(name, row.help, labels=row.labels)
            for labels, value in row.samples(status):
                family.add_metric(labels, value)
            yield family
