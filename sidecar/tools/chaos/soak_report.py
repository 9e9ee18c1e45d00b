"""The results of a soak: the ledger, the disturbances, and whether anything grew."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from rich.table import Table

from sidecar.tools.chaos.books import Books
from sidecar.tools.chaos.ledger import Counts
from sidecar.tools.chaos.recovery import RecoveryTimes
from sidecar.tools.chaos.report import ledger_table
from sidecar.tools.chaos.samples import Sample
from sidecar.tools.chaos.trend import JUDGED_S_MIN, Bound, Points, Trend, trend_of


class SoakStep(StrEnum):
    CLIENT_ENDED = "client ended, another one came"
    CLIENT_KILLED = "client killed, another one came"
    WORKER_KILLED = "worker killed"
    BROKER_RESTARTED = "broker restarted"
    BROKER_KILLED = "broker killed and started"


WARM_UP_SHARE = 0.2
"""The first part of the samples is shown but not judged, as caches fill."""
LIFE_SHARE = 0.5
"""Processes that ran for at least this share of the judged time are judged."""
RSS_BOUND = Bound(per_hour=2.0, step=1.0)
FDS_BOUND = THREADS_BOUND = Bound(per_hour=1.0, step=0.5)
TABLE_BOUNDS: Mapping[str, Bound] = {
    "pages": Bound(per_hour=40.0, step=10.0),
    "client_rows": Bound(per_hour=2.0, step=1.0),
    "chain_rows": Bound(per_hour=1.0, step=0.5),
    "batch_descriptors": Bound(per_hour=10.0, step=5.0),
}
P50_BOUND, P99_BOUND = Bound(per_hour=2.0, step=0.5), Bound(per_hour=10.0, step=2.0)


def trends_of(samples: Sequence[Sample]) -> list[Trend]:
    """The trends of each process that stayed, of each table, and of the latency in calm times."""
    return [trend for trend in _trends(samples[int(len(samples) * WARM_UP_SHARE) :]) if trend is not None]


def _trends(samples: Sequence[Sample]) -> Iterator[Trend | None]:
    lives: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        for process in sample.processes:
            lives[process.role, process.pid].append(sample)
    for (role, pid), seen in lives.items():
        if len(seen) < LIFE_SHARE * len(samples):
            continue
        of_it = [
            (sample.at_s, process) for sample in seen for process in sample.processes if process.pid == pid
        ]
        # While a broker is away memory is a backlog; the calm times show whether all of it comes back.
        calm_s = {sample.at_s for sample in seen if sample.is_calm}
        memory = [(at_s, each.rss_mb) for at_s, each in of_it if at_s in calm_s]
        yield trend_of(f"{role}: memory in calm times", "MB", memory, RSS_BOUND)
        yield trend_of(f"{role}: fds", "", [(at_s, float(each.fds)) for at_s, each in of_it], FDS_BOUND)
        yield trend_of(
            f"{role}: threads", "", [(at_s, float(each.threads)) for at_s, each in of_it], THREADS_BOUND
        )
    calm = [sample for sample in samples if sample.is_calm]
    for name, bound in TABLE_BOUNDS.items():
        points: Points = [(sample.at_s, float(getattr(sample.tables, name))) for sample in calm]
        yield trend_of(f"segment: {name.replace('_', ' ')}", "", points, bound)
    for name, bound in (("p50_ms", P50_BOUND), ("p99_ms", P99_BOUND)):
        points = [(sample.at_s, value) for sample in calm if (value := getattr(sample, name)) is not None]
        yield trend_of(f"probe: {name.removesuffix('_ms')} in calm times", "ms", points, bound)


@dataclass
class SoakReport:
    """The results. ``ok``: the ledger balances, nothing grew, and nothing else went wrong."""

    seconds: float
    counts: Counts
    books: Books
    events: list[tuple[float, SoakStep]]
    """(seconds since the start, what was done)."""
    recoveries: Mapping[SoakStep, RecoveryTimes]
    samples: list[Sample]
    trends: list[Trend]
    problems: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.counts.wrong or self.problems or self.books.held or self.growing)

    @property
    def growing(self) -> list[Trend]:
        return [trend for trend in self.trends if trend.grows]

    @property
    def verdict(self) -> str:
        if not any(trend.is_judged for trend in self.trends):
            return f"too short to judge growth: that takes {JUDGED_S_MIN:g} s after a first fifth of the time"
        grows = ", ".join(f"{each.what} {each.per_hour:+.2f} {each.unit}/h" for each in self.growing)
        return f"GROWS: {grows}" if grows else "nothing grows"

    def as_json(self) -> dict[str, Any]:
        done = Counter(step for _, step in self.events)
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 3),
            "records": asdict(self.counts),
            "daemon": asdict(self.books) | {"held": self.books.held},
            "steps": {
                step.name.lower(): {
                    "count": count,
                    "recovery_median_s": round(self.recoveries[step].median_s, 4),
                    "recovery_max_s": round(self.recoveries[step].max_s, 4),
                }
                for step, count in sorted(done.items())
                if step in self.recoveries
            },
            "trends": [
                asdict(trend) | {"judged": trend.is_judged, "grows": trend.grows} for trend in self.trends
            ],
            "events": [[round(at_s, 2), step.value] for at_s, step in self.events],
            "samples": [asdict(sample) | {"tables": sample.tables._asdict()} for sample in self.samples],
            "problems": self.problems,
            "alarms": self.alarms,
        }

    def tables(self) -> list[Table]:
        """The ledger, what was done, and the trends."""
        return [ledger_table(self.counts, self.books), self._steps_table(), self._trends_table()]

    def _steps_table(self) -> Table:
        table = Table(
            title=f"Done in {self.seconds:.0f} s, with {len(self.samples)} samples", title_justify="left"
        )
        for column in ("what", "times", "records flow again: median", "slowest"):
            table.add_column(column, justify="left" if column == "what" else "right")
        for step, count in Counter(step for _, step in self.events).items():
            times = self.recoveries.get(step)
            median = "-" if times is None else f"{times.median_s * 1000:,.0f} ms"
            slowest = "-" if times is None else f"{times.max_s * 1000:,.0f} ms"
            table.add_row(step.value, str(count), median, slowest)
        return table

    def _trends_table(self) -> Table:
        table = Table(title=self.verdict, title_justify="left")
        for column in (
            "what",
            "first fifth",
            "median",
            "last fifth",
            "floors rose by",
            "per hour",
            "at most",
        ):
            table.add_column(column, justify="left" if column == "what" else "right")
        for trend in self.trends:
            style = "bold red" if trend.grows else ""
            table.add_row(
                trend.what,
                *(f"{value:.4g} {trend.unit}" for value in (trend.first, trend.median, trend.last)),
                f"{trend.rise:+.2f} {trend.unit}",
                f"{trend.per_hour:+.2f} {trend.unit}",
                f"{trend.bound.per_hour:g} {trend.unit}",
                style=style,
            )
        return table
