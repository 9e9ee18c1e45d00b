"""docs/metrics.md, printed from the tables of metrics: ``python -m sidecar.tools.pages.metrics > docs/metrics.md``."""

from __future__ import annotations

import re
from typing import Final

from sidecar.telemetry.metric_table import METRICS, PREFIX, MetricRow

_HEAD: Final = """# Metrics

For those who watch a daemon: its metrics for Prometheus, at `/metrics` of `http.listen` (`kafka-sidecar status` shows
the address). Names begin with `kafka_sidecar_`, except those of processes. Times are in seconds and sizes in bytes.

- **Workers' metrics** have the label `slot`: a worker's place in the shared segment. A replacement takes the slot of
  the dead worker, and its counters continue where they were. Sum over the slots for the host:
  `sum(rate(kafka_sidecar_records_delivered_total[1m]))`.
- They are read from the segment at each scrape, so they are right also while a worker hangs. Gauges of a dead worker
  read 0, except `records_held` and `records_staged`: these records wait in the segment.
- The counters of the ledger change in one step: at every scrape
  `records_accepted_total` = `records_delivered_total` + `records_failed_total` + `records_dead_lettered_total` +
  `records_aborted_total` + `records_held` + `records_staged`.
- Counts of requests, batches and bytes sent, and all gauges but the ledger's and `clients_connected`, are
  published twice a second.
- **The daemon's metrics** come from the controller. Those of one worker have the label `worker`, its index.
  `worker_info` has its present slot:
  `kafka_sidecar_records_held * on(slot) group_left(worker) kafka_sidecar_worker_info`. Slots without a worker drop out
  of that product.
- **`process_*`** are the process metrics of Prometheus' client libraries, with the label `role`: `controller`, `worker`
  (and its index in `worker`) or `standby`.
- **Histograms** are in the segment too: a dead worker's counts stay, and those of all workers are merged. In
  `delivery_seconds` and `queue_seconds` each record counts, in steps of 0.1 ms. A 99th percentile:
  `histogram_quantile(0.99, sum by (le) (rate(kafka_sidecar_delivery_seconds_bucket[5m])))`.
- Of all labels only `run_id` of `kafka_sidecar_info` changes with each start.
- All counters from the segment begin at 0 with a new one: after a clean stop, or after a reboot of the host. A
  takeover keeps the segment while it holds records, else it makes a new one.

The column *look closer* says when a value needs attention, and where to look. Where it is empty the value alone is
neither good nor bad.

*This page is printed by `python -m sidecar.tools.pages.metrics` from `sidecar/telemetry/metric_table.py`, and a test
compares them: edit the tables that it reads.*

Alerts and recording rules are in `deploy/prometheus/rules.yml`; each alert has a page in
[runbooks](runbooks/README.md). `deploy/grafana/dashboard.json` has a panel for every metric, and is printed by
`python -m sidecar.tools.pages.dashboard`.
"""

_COLUMNS: Final = "\n| name | type | labels | unit | meaning | look closer |\n|---|---|---|---|---|---|\n"

_GROUPS: Final = (
    ("The daemon", "", r""),
    ("The ledger of records", "slot", r"records_|record_|dead_letter"),
    ("From clients", "slot", r"bytes_accepted|submissions|malformed|frames|holds|client|accept_|poison"),
    (
        "To brokers",
        "slot",
        r"bytes_sent|batch|incomplete|request|in_flight|late|produce_throttle|epoch|broker_",
    ),
    ("Times and sizes, merged over the workers", "histogram", r""),
    ("Memory, metadata and the worker's loop", "slot", r""),
    ("Processes", "role", r""),
)
"""(title, a label or the kind of its metrics, how names begin). A row is shown in the first group that fits."""


def reference_markdown() -> str:
    """The whole page."""
    grouped: dict[str, list[str]] = {title: [] for title, _, _ in _GROUPS}
    for row in METRICS:
        grouped[group_of(row)].append(_line(row))
    return _HEAD + "".join(f"\n## {title}\n{_COLUMNS}{''.join(lines)}" for title, lines in grouped.items())


def group_of(row: MetricRow) -> str:
    """The title of the group in which the metric is shown, here and on the dashboard."""
    kinds = {"slot", "role", "histogram"} & {*row.labels, row.kind} or {""}
    name = row.name.removeprefix(PREFIX)
    return next(title for title, label, start in _GROUPS if label in kinds and re.match(start, name))


def _line(row: MetricRow) -> str:
    shown = ", ".join(f"`{label}`" for label in row.labels)
    return f"| `{row.name}` | {row.kind} | {shown} | {row.unit} | {row.help} | {row.worry} |\n"


if __name__ == "__main__":
    print(reference_markdown(), end="")
