"""docs/metrics.md, printed from the tables of metrics: ``python -m sidecar.telemetry.reference > docs/metrics.md``."""

from __future__ import annotations

import re
from typing import Final

from sidecar.shm.counters import COUNTER_ROWS, CounterRow
from sidecar.telemetry.collector import PREFIX, STATE_ROWS, StateRow

_HEAD: Final = """# Metrics

The daemon serves its metrics for Prometheus at `/metrics` of `http.listen`
(`kafka-sidecar status` shows the address). Every name begins with `kafka_sidecar_`.

- **Workers' metrics** have the label `slot`: a worker's place in the shared segment. A replacement takes the slot of
  the dead worker, and its counters continue where they were. Sum over the slots for the host:
  `sum(rate(kafka_sidecar_records_delivered_total[1m]))`.
- They are read from the segment at each scrape, so they are right also while a worker hangs. Gauges of a dead worker
  read 0, but for `records_held`: its records wait in the segment.
- The counters of the ledger change in one step: at every scrape
  `records_accepted_total` = `records_delivered_total` + `records_failed_total` + `records_dead_lettered_total` +
  `records_held`.
- Counts of requests, batches and bytes sent, and all gauges but `records_held` and `clients_connected`, are published
  twice a second.
- All counters begin at 0 with a new segment: after a clean stop, or a reboot of the host.

The column *look closer* says when, and where to look. Where it is empty the value alone is neither good nor bad.

*This page is printed by `python -m sidecar.telemetry.reference` from the tables in `sidecar/shm/counters.py` and
`sidecar/telemetry/collector.py`, and a test compares them: edit the tables.*

| alert | expression |
|---|---|
| no records are taken | `kafka_sidecar_up == 0` for 1 min |
| the backlog grows | `deriv(sum(kafka_sidecar_records_held)[10m:]) > 0` and the sum is above a minute's intake |
| records failed | `increase(kafka_sidecar_topic_records_failed_total[10m]) > 0` |
| letters wait for a replay | `increase(kafka_sidecar_records_dead_lettered_total[10m]) > 0` |
| workers die | `increase(kafka_sidecar_worker_restarts_total[10m]) > 0` |
| a bug | `increase(kafka_sidecar_sender_exceptions_total[1h]) + increase(kafka_sidecar_accept_errors_total[1h]) > 0` |
"""

_COLUMNS: Final = "\n| name | type | labels | unit | meaning | look closer |\n|---|---|---|---|---|---|\n"

_GROUPS: Final = (
    ("The ledger of records", r"records_|record_|dead_letter"),
    ("From clients", r"bytes_accepted|submissions|malformed|frames|holds|client|accept_|poison"),
    (
        "To brokers",
        r"bytes_sent|batch|incomplete|request|in_flight|late|produce_throttle|epoch|broker_",
    ),
    ("Memory, metadata and the worker's loop", r""),
)
"""Title and names; a row is shown in the first group whose pattern matches the start of its name."""


def reference_markdown() -> str:
    """The whole page."""
    parts = [_HEAD, "\n## The daemon\n", _COLUMNS]
    parts += [_line(row, row.labels) for row in STATE_ROWS]
    grouped: dict[str, list[str]] = {title: [] for title, _ in _GROUPS}
    for row in COUNTER_ROWS:
        title = next(title for title, pattern in _GROUPS if re.match(pattern, row.name))
        grouped[title].append(_line(row, ("slot",)))
    for title, lines in grouped.items():
        parts += [f"\n## {title}\n", _COLUMNS, *lines]
    return "".join(parts)


def _line(row: CounterRow | StateRow, labels: tuple[str, ...]) -> str:
    shown = ", ".join(f"`{label}`" for label in labels)
    return f"| `{PREFIX}{row.name}` | {row.kind} | {shown} | {row.unit} | {row.help} | {row.worry} |\n"


if __name__ == "__main__":
    print(reference_markdown(), end="")
