"""Grafana dashboard: ``python -m sidecar.tools.pages.dashboard > deploy/grafana/dashboard.json``.

The first rows give an overview of a host. Below them, collapsed, is a panel for every metric of the table.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from sidecar.telemetry.metric_table import METRICS, PREFIX, MetricRow
from sidecar.tools.pages.metrics import group_of

SCHEMA_VERSION: Final = 39
"""The schema version of Grafana 10 and later."""
COLUMNS: Final = 24
_WIDTH: Final = 8
_HEIGHT: Final = 7
_SELECT: Final = '{instance=~"$instance"}'
_UNITS: Final = {"seconds": "s", "bytes": "bytes"}
_RATE_UNITS: Final = {"seconds": "s", "bytes": "Bps"}


class Panel(NamedTuple):
    """A graph. ``queries`` are (expression, legend); ``#name`` in an expression is a metric of ours on the selected
    host.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def _quantiles(name: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"histogram_quantile({part}, sum by (le) (rate(#{name}_bucket[5m])))", legend)
        for part, legend in ((0.5, "median"), (0.99, "99th percentile"))
    )


_OVERVIEW: Final = (
    Panel("Accepts records, Kafka reachable", "short", (("#up", "accepts"), ("#kafka_reachable", "Kafka"))),
    Panel("Brokers up", "short", (("#broker_up", "broker {{broker}}"),)),
    Panel("Oldest held record", "s", (("#oldest_held_record_seconds", "{{cause}}"),)),
    Panel(
        "Records",
        "short",
        (
            ("sum(rate(#records_accepted_total[5m]))", "accepted a second"),
            ("sum(rate(#records_delivered_total[5m]))", "delivered a second"),
        ),
    ),
    Panel("Records held", "short", (("sum(#records_held)", "held"),)),
    Panel(
        "Records that failed",
        "short",
        (("sum by (topic, error) (increase(#topic_records_failed_total[5m]))", "{{topic}} {{error}}"),),
    ),
    Panel("Acceptance to acknowledgement", "s", _quantiles("delivery_seconds")),
    Panel("Time in queue", "s", _quantiles("queue_seconds")),
    Panel(
        "Requests, 99th percentile",
        "s",
        (
            (
                "histogram_quantile(0.99, sum by (broker, le) (rate(#request_seconds_bucket[5m])))",
                "broker {{broker}}",
            ),
        ),
    ),
    Panel("Pool in use", "percentunit", (("#pool_used_bytes / #pool_bytes", "{{instance}}"),)),
    Panel("Pool by topic", "bytes", (("#pool_topic_bytes", "{{topic}}"),)),
    Panel("Streams held", "short", (("#streams_held", "{{reason}}"),)),
    Panel(
        "Batch fill",
        "percentunit",
        (
            (
                "rate(#batch_bytes_sum[5m]) / rate(#batch_bytes_count[5m]) / #batch_size_limit_bytes",
                "of batch.size",
            ),
        ),
    ),
    Panel(
        "Bytes sent for each byte of batches",
        "percentunit",
        (("sum(rate(#bytes_sent_total[5m])) / sum(rate(#batch_bytes_sum[5m]))", "after compression"),),
    ),
    Panel(
        "Saved against one client in each process",
        "short",
        (
            ("sum(#connections_saved)", "connections"),
            ("sum(rate(#requests_saved_total[5m]))", "requests a second"),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    _place(panels, _OVERVIEW, 0)
    y = panels[-1]["gridPos"]["y"] + _HEIGHT
    groups: dict[str, list[MetricRow]] = {}
    for row in METRICS:
        groups.setdefault(group_of(row), []).append(row)
    for title, rows in groups.items():
        inside: list[dict[str, Any]] = []
        _place(inside, [_panel_of(row) for row in rows], y + 1)
        for panel, row in zip(inside, rows, strict=True):
            panel["description"] = f"{row.help} {row.worry}".strip()
        panels.append(
            {
                "type": "row",
                "title": f"All metrics: {title}",
                "collapsed": True,
                "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
                "panels": inside,
            }
        )
        y += 1
    for number, panel in enumerate((*panels, *(each for row in panels for each in row.get("panels", ()))), 1):
        panel["id"] = number
    return {
        "uid": "kafka-sidecar",
        "title": "kafka-sidecar",
        "description": "Printed by python -m sidecar.tools.pages.dashboard: do not edit it by hand.",
        "tags": ["kafka"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_DATASOURCE, _INSTANCE]},
        "panels": panels,
    }


_DATASOURCE: Final = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "current": {},
}
_INSTANCE: Final = {
    "name": "instance",
    "label": "Host",
    "type": "query",
    "datasource": {"type": "prometheus", "uid": "${datasource}"},
    "query": {"query": f"label_values({PREFIX}info, instance)", "refId": "instance"},
    "definition": f"label_values({PREFIX}info, instance)",
    "refresh": 2,
    "includeAll": True,
    "multi": True,
    "current": {"text": ["All"], "value": ["$__all"]},
}


def _panel_of(row: MetricRow) -> Panel:
    """A panel for one metric: the rate of a counter, quantiles of a histogram, the value of a gauge."""
    title = row.name.removeprefix(PREFIX)
    legend = " ".join(f"{label} {{{{{label}}}}}" for label in row.labels) or "{{instance}}"
    if row.kind == "histogram":
        return Panel(title, _UNITS.get(row.unit, "short"), _quantiles(title))
    name = f"#{title}" if row.name.startswith(PREFIX) else row.name + _SELECT
    if row.kind == "counter":
        return Panel(
            f"{title}, a second", _RATE_UNITS.get(row.unit, "short"), ((f"rate({name}[5m])", legend),)
        )
    return Panel(title, _UNITS.get(row.unit, "short"), ((name, legend),))


def _place(panels: list[dict[str, Any]], shown: Any, y: int) -> None:
    """Add panels as graphs, three in a line, from ``y`` on."""
    names = sorted((row.name.removeprefix(PREFIX) for row in METRICS), key=len, reverse=True)
    for place, panel in enumerate(shown):
        panels.append(
            {
                "type": "timeseries",
                "title": panel.title,
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "gridPos": {
                    "h": _HEIGHT,
                    "w": _WIDTH,
                    "x": place % 3 * _WIDTH,
                    "y": y + place // 3 * _HEIGHT,
                },
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
                "targets": [
                    {
                        "refId": chr(ord("A") + number),
                        "expr": _expression(query, names),
                        "legendFormat": legend,
                    }
                    for number, (query, legend) in enumerate(panel.queries)
                ],
            }
        )


def _expression(query: str, names: list[str]) -> str:
    """The query with each ``#name`` replaced by our metric and the host selector. Raises KeyError for a name that the
    table does not have.
    """
    parts = query.split("#")
    found = [parts[0]]
    for part in parts[1:]:
        name = next((each for each in names if part.startswith(each)), None)
        if name is None:
            raise KeyError(f"no metric begins {part!r}")
        rest = part.removeprefix(name)
        for suffix in ("_bucket", "_sum", "_count"):
            if rest.startswith(suffix):
                name, rest = name + suffix, rest.removeprefix(suffix)
        found.append(f"{PREFIX}{name}{_SELECT}{rest}")
    return "".join(found)


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
