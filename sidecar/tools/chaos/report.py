"""The results of a chaos run, as a table for the terminal and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from sidecar.tools.chaos.books import Books
from sidecar.tools.chaos.ledger import Counts
from sidecar.tools.chaos.plan import FaultKind
from sidecar.tools.chaos.recovery import RecoveryTimes
from sidecar.tools.chaos.transactional_ledger import TransactionCounts


@dataclass
class ChaosReport:
    """The results; ``ok`` decides the exit status."""

    seed: int
    seconds: float
    counts: Counts
    books: Books
    faults: Counter[FaultKind]
    kills: int
    recoveries: Mapping[FaultKind, RecoveryTimes]
    transactions: TransactionCounts | None = None
    """None of a run without transactions."""
    problems: list[str] = field(default_factory=list)
    """One sentence per problem: errors of clients, missing recoveries, the first wrong records."""
    alarms: list[str] = field(default_factory=list)
    """Lines of the daemon's log that indicate a bug."""

    @property
    def ok(self) -> bool:
        is_whole = self.transactions is None or not self.transactions.wrong
        return is_whole and not self.counts.wrong and not self.problems and self.books.held == 0

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "kills": self.kills,
            "records": asdict(self.counts),
            "daemon": asdict(self.books) | {"held": self.books.held},
            "transactions": None if self.transactions is None else asdict(self.transactions),
            "faults": {
                kind.name.lower(): {
                    "count": count,
                    "recovery_median_s": _seconds(self.recoveries.get(kind), "median_s"),
                    "recovery_max_s": _seconds(self.recoveries.get(kind), "max_s"),
                }
                for kind, count in sorted(self.faults.items())
            },
            "problems": self.problems,
            "alarms": self.alarms,
        }

    def tables(self) -> list[Table]:
        """The ledger, the transactions if there were any, and the faults."""
        found = [ledger_table(self.counts, self.books), self._faults_table()]
        if self.transactions is not None:
            found.insert(1, _transactions_table(self.transactions))
        return found

    def _faults_table(self) -> Table:
        faults = Table(
            title=f"Faults: {sum(self.faults.values())}, of them {self.kills} kills, in {self.seconds:.0f} s "
            f"(seed {self.seed})",
            title_justify="left",
        )
        for column in ("fault", "times", "records flow again: median", "slowest"):
            faults.add_column(column, justify="left" if column == "fault" else "right")
        for kind in FaultKind:
            if self.faults[kind]:
                times = self.recoveries.get(kind)
                median = "-" if times is None else f"{times.median_s * 1000:,.0f} ms"
                slowest = "-" if times is None else f"{times.max_s * 1000:,.0f} ms"
                faults.add_row(kind.value, str(self.faults[kind]), median, slowest)
        return faults


def _transactions_table(counts: TransactionCounts) -> Table:
    table = Table(title="Transactions", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("transactions", justify="right")
    for text, number, must_be_zero in (
        ("begun", counts.begun, False),
        ("committed, as their clients were told", counts.committed, False),
        ("aborted by a fault", counts.aborted_by_fault, False),
        ("in the topic", counts.found, False),
        ("THERE IN PART", counts.half, True),
        ("fatal errors of living clients", counts.producers_lost, True),
    ):
        table.add_row(text, f"[bold red]{number:,}[/]" if must_be_zero and number else f"{number:,}")
    return table


def ledger_table(counts: Counts, books: Books) -> Table:
    """The table of the records' outcomes; red where a count must be zero and is not."""
    ledger = Table(title="Ledger", title_justify="left", show_header=False)
    ledger.add_column("what")
    ledger.add_column("records", justify="right")
    for text, number, must_be_zero in (
        ("sent, or about to be when the client was killed", counts.sent, False),
        ("accepted, as the daemon counts", books.accepted, False),
        ("delivered, as the daemon counts", books.delivered, False),
        ("in the topic", counts.found, False),
        ("acked", counts.told_delivered, False),
        ("    at an offset that the broker no longer knew", counts.offset_unknown, False),
        ("failed", counts.told_failed, False),
        ("    possibly persisted", counts.possibly_persisted, False),
        ("delivered for a killed client before it heard of it", counts.untold_found, False),
        ("never accepted from a killed client", counts.untold_gone, False),
        ("adopted from dead workers", books.adopted, False),
        ("resent where the broker could not say", books.resent_unknown, False),
        ("dead-lettered", books.dead_lettered, False),
        ("of aborted transactions, never sent", books.aborted, False),
        ("in stages that nobody includes", books.staged, False),
        ("accepted and without an end", books.held, True),
        ("LOST", counts.lost, True),
        ("DOUBLED", counts.doubled, True),
        ("REORDERED", counts.reordered, True),
        ("acked at a wrong offset", counts.wrong_offset, True),
        ("failed for certain, and there", counts.failed_yet_there, True),
        ("there and never sent", counts.never_sent, True),
        ("callback never called", counts.never_told, True),
        ("callback called twice", counts.told_twice, True),
    ):
        shown = f"{number:,}"
        ledger.add_row(text, f"[bold red]{shown}[/]" if must_be_zero and number else shown)
    return ledger


def _seconds(times: RecoveryTimes | None, name: str) -> float | None:
    return None if times is None else round(float(getattr(times, name)), 4)
