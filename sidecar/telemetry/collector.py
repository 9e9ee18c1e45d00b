"""Prometheus collector over the counters of the shared segment; a dead worker's counters stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar.shm.counters import COUNTER_ROWS
from sidecar.shm.layout import SLOT_COUNT
from sidecar.shm.segment import Segment
from sidecar.shm.slots import process_start_ticks

PREFIX = "kafka_sidecar_"
_GAUGES = [row.name for row in COUNTER_ROWS if row.kind == "gauge" and row.name != "records_held"]
"""What a dead worker has no more. Its records stay held: they are in the segment, and its successor has them."""


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

    def __init__(self, segment: Segment, status: Callable[[], dict[str, Any]]) -> None:
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
        up = GaugeMetricFamily(PREFIX + "up", "1 while the daemon takes records.")
        up.add_metric([], float(status["takes_records"]))
        yield up
        ready = GaugeMetricFamily(
            PREFIX + "worker_ready", "1 while the worker takes clients.", labels=["worker"]
        )
        clients = GaugeMetricFamily(
            PREFIX + "worker_clients", "Clients assigned to the worker.", labels=["worker"]
        )
        for worker in status["workers"]:
            ready.add_metric([str(worker["index"])], float(worker["state"] == "ready"))
            clients.add_metric([str(worker["index"])], float(worker["clients"]))
        yield ready
        yield clients
        restarts = CounterMetricFamily(PREFIX + "worker_restarts", "Workers replaced after a death.")
        restarts.add_metric([], status["restarts"])
        yield restarts
        held = GaugeMetricFamily(PREFIX + "slots_held", "Slots that hold records of a dead worker.")
        held.add_metric([], len(status["held_slots"]))
        yield held
        info = GaugeMetricFamily(
            PREFIX + "info", "Constant 1; the labels tell.", labels=["version", "instance"]
        )
        info.add_metric([status["version"], status["instance"]], 1.0)
        yield info
        started = GaugeMetricFamily(PREFIX + "start_time_seconds", "Start of the daemon, Unix time.")
        started.add_metric([], status["started_ms"] / 1000.0)
        yield started
