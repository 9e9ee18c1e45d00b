"""The tables of ``kafka-sidecar top``: the facts of one sample, sorted, and as plain rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sidecar.common.wording import printable
from sidecar.telemetry.page import duration, oldest_held

SORTS: Final = ("rate", "held", "clients", "name")
"""Orders of topics and clients: fastest, most of the pool or longest held, most clients or topics, by name."""
RATES: Final = (
    ("records_accepted_total", "records accepted"),
    ("records_delivered_total", "records delivered"),
    ("records_failed_total", "records failed"),
    ("records_dead_lettered_total", "records dead lettered"),
    ("records_aborted_total", "records aborted"),
    ("bytes_accepted_total", "bytes accepted"),
    ("bytes_sent_total", "bytes sent"),
    ("batches_sent_total", "batches sent"),
    ("batches_retried_total", "batches sent again"),
    ("requests_total", "requests"),
    ("request_errors_total", "requests without an answer"),
    ("holds_total", "streams held back"),
)
LEVELS: Final = (
    ("records_held", "records held"),
    ("records_staged", "records staged"),
    ("clients_connected", "clients connected"),
    ("buffer_pages_taken", "buffer pages in use"),
    ("in_flight_requests", "requests in flight"),
    ("broker_connections", "broker connections"),
)

Cell = str | int | float
Row = dict[str, Any]


class Sample(NamedTuple):
    """One sample of a daemon. ``rates``: (label, per second, total), ``levels``: (label, present value)."""

    info: Mapping[str, Any]
    rates: list[tuple[str, float, int]]
    levels: list[tuple[str, int]]
    topics: list[Row]
    clients: list[Row]
    counts: tuple[int, int]
    """The number of all topics and of all clients."""

    def to_json(self) -> dict[str, Any]:
        """The line of ``--json``: the daemon's last report, and the present facts from the segment."""
        return {
            **self.info,
            "rates": {label: round(rate, 1) for label, rate, _ in self.rates},
            "totals": {label: total for label, _, total in self.rates} | dict(self.levels),
            "topics": self.topics,
            "clients": self.clients,
        }


class Table(NamedTuple):
    """A table. ``word`` begins each plain row; numbers are right-aligned."""

    word: str
    title: str
    columns: tuple[str, ...]
    rows: list[list[Cell]]


def sample_of(
    info: Mapping[str, Any],
    now: Mapping[str, int],
    before: Mapping[str, int],
    seconds: float,
    flows: Mapping[str, Any],
) -> Sample:
    """Make a sample. ``now`` and ``before`` are counters by name, read ``seconds`` apart; ``flows`` is from
    ``Flows.sample``.
    """
    waiting: dict[str, list[Row]] = {}
    for hold in info.get("holds", ()):
        waiting.setdefault(hold["client"], []).append(hold)
    for client in flows["clients"]:
        holds = waiting.get(client["client"], [])
        client["waits_for"] = ", ".join(sorted({hold["reason"] for hold in holds}))
        client["held_seconds"] = max((hold["since_seconds"] for hold in holds), default=0.0)
    return Sample(
        {**info, "counters": dict(now)},
        [(label, (now[name] - before[name]) / seconds, now[name]) for name, label in RATES],
        [(label, now[name]) for name, label in LEVELS],
        flows["topics"],
        flows["clients"],
        (flows["topic_count"], flows["client_count"]),
    )


def _sorted(
    rows: list[Row], keys: Mapping[str, Callable[[Row], Any]], sort: str, *, flips: bool
) -> list[Row]:
    """Sorted with the largest first, names from a to z; ``flips`` reverses the order."""
    return sorted(rows, key=keys[sort], reverse=(sort != "name") is not flips)


_TOPIC_KEYS: Final[Mapping[str, Callable[[Row], Any]]] = {
    "rate": lambda row: row.get("bytes_per_second", 0.0),
    "held": lambda row: row["held_bytes"],
    "clients": lambda row: row["clients"],
    "name": lambda row: row["topic"],
}
_CLIENT_KEYS: Final[Mapping[str, Callable[[Row], Any]]] = {
    "rate": lambda row: row.get("submissions_per_second", 0.0),
    "held": lambda row: row["held_seconds"],
    "clients": lambda row: row["topic_count"],
    "name": lambda row: row["client"],
}


def tables_of(sample: Sample, sort: str, rows: int, *, flips: bool) -> list[Table]:
    """The tables that are not empty."""
    info = sample.info
    topics = _sorted(sample.topics, _TOPIC_KEYS, sort, flips=flips)
    clients = _sorted(sample.clients, _CLIENT_KEYS, sort, flips=flips)
    listed = info.get("brokers")
    made = [
        Table("rate", "", ("", "per second", "total"), [[*each] for each in sample.rates]),
        Table("now", "", ("", "now"), [[*each] for each in sample.levels]),
        _broker_table(listed if isinstance(listed, list) else ()),
        _topic_table(f"Topics ({sample.counts[0]:,}, by {sort})", topics),
        _client_table(f"Clients ({sample.counts[1]:,}, by {sort})", clients),
        _failure_table(info.get("failures", ())),
        _worker_table(f"Workers ({info.get('restarts', 0)} restarts)", info["workers"]),
    ]
    return [
        each._replace(rows=each.rows if each.word in {"rate", "now"} else each.rows[:rows])
        for each in made
        if each.rows
    ]


def _broker_table(brokers: Iterable[Row]) -> Table:
    names = ("broker", "address", "state", "since", "in flight", "throttled", "held", "oldest", "last error")
    rows: list[list[Cell]] = [
        [
            each["id"],
            each.get("address", ""),
            "known, not connected" if each["state"] == "known" else each["state"],
            duration(each["since_seconds"]),
            each["in_flight"],
            f"{each['throttle_ms']:,} ms" if each["throttle_ms"] else "",
            each["held_records"],
            duration(each["oldest_held_seconds"]) if each.get("oldest_held_seconds") else "",
            each.get("last_error") or "",
        ]
        for each in brokers
    ]
    return Table("broker", "Brokers", names, rows)


def _topic_table(title: str, topics: Iterable[Row]) -> Table:
    rows: list[list[Cell]] = [
        [
            each["topic"],
            each.get("bytes_per_second", 0.0),
            each["journal_bytes"],
            each["held_bytes"],
            each["clients"],
        ]
        for each in topics
    ]
    return Table("topic", title, ("topic", "bytes/s", "journal bytes", "in the pool", "clients"), rows)


def _client_table(title: str, clients: Iterable[Row]) -> Table:
    rows: list[list[Cell]] = [
        [
            each["client"],
            str(each["pid"] or ""),
            each.get("submissions_per_second", 0.0),
            each["topic_count"],
            each["waits_for"],
            duration(each["held_seconds"]) if each["waits_for"] else "",
        ]
        for each in clients
    ]
    return Table("client", title, ("client", "pid", "submissions/s", "topics", "waits for", "since"), rows)


def _failure_table(failures: Iterable[Row]) -> Table:
    now_s = time.time()
    rows: list[list[Cell]] = [
        [
            each["topic"],
            each["error"],
            each["records"],
            f"{duration(now_s - each['last_ms'] / 1000.0)} ago",
            each["client"],
            each["text"],
        ]
        for each in failures
    ]
    return Table("failed", "Last failures", ("topic", "error", "records", "last", "client", "text"), rows)


def _worker_table(title: str, workers: Iterable[Row]) -> Table:
    rows: list[list[Cell]] = [
        [
            each["index"],
            each["state"],
            str(each["pid"]),
            each["slot"],
            each.get("restarts", 0),
            each.get("last_death", ""),
        ]
        for each in workers
    ]
    return Table("worker", title, ("worker", "state", "pid", "slot", "restarts", "last death"), rows)


def head(sample: Sample) -> list[str]:
    """The first lines: state, advice, the pool, and the oldest record."""
    info = sample.info
    notices = [str(each) for each in info["notices"]]
    lines = [
        f"{info['state']}: {info['sentence'] or ('this needs a look' if notices else 'everything runs')}"
    ]
    if info["advice"]:
        lines.append(str(info["advice"]))
    lines += notices
    pool, used = info["pool"], dict(sample.levels)["buffer pages in use"]
    lines.append(f"pool: {100 * used // pool['pages']} % of {pool['pages']:,} pages")
    oldest = oldest_held(info)
    if oldest:
        lines.append(f"oldest held record: {oldest}")
    return [printable(line) for line in lines]


def plain(sample: Sample, sort: str, rows: int) -> str:
    """Rows without borders; the first word of each names its table. A line with # before that word names the columns.
    An empty line ends the sample.
    """
    lines = [f"state  {line}" for line in head(sample)]
    for table in tables_of(sample, sort, rows, flips=False):
        names = [f"#{table.word}", *((each or "what").replace(" ", "_") for each in table.columns)]
        cells = [[text_of(cell, "") for cell in (table.word, *row)] for row in table.rows]
        widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
        first = (table.word, *table.rows[0])
        lines.append(_line(first, names, widths))
        for row, shown in zip(table.rows, cells, strict=True):
            lines.append(_line((table.word, *row), shown, widths))
    return "\n".join([*lines, ""])


def _line(row: Sequence[Cell], shown: Sequence[str], widths: Sequence[int]) -> str:
    """The texts of a row, or of its columns' names: those of numbers to the right."""
    padded = [
        text.rjust(width) if isinstance(cell, int | float) else text.ljust(width)
        for cell, text, width in zip(row, shown, widths, strict=True)
    ]
    return "  ".join(padded).rstrip()


def text_of(cell: Cell, separator: str = ",") -> str:
    """A cell as one line, whatever it contains; numbers with ``separator``."""
    if isinstance(cell, str):
        return printable(cell) or "-"
    return f"{cell:{separator}.0f}"
