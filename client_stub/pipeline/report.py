"""The reconciliation of a run: rows read, counted and sent, with the offsets by which a reader can check them.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from client_stub.pipeline.status import OK


@dataclass
class PartitionCount:
    """Offsets are -1 where the broker gave none."""

    first: int
    last: int
    rows: int

    @property
    def offsets(self) -> int:
        """How many there are from the first to the last one. More than ``rows`` if others write to the topic, too."""
        return self.last - self.first + 1

    def add(self, first: int, last: int, rows: int) -> None:
        self.first = min((each for each in (self.first, first) if each >= 0), default=-1)
        self.last = max(self.last, last)
        self.rows += rows


@dataclass
class OutputReport:
    """``counted`` is what Spark counted before the sink, ``rows`` what the sink sent."""

    topic: str
    view: str
    has_fixed_topic: bool
    counted: int = 0
    rows: int = 0
    bad_rows: int = 0
    bad_rows_kept: int = 0
    tasks: int = 0
    retried_tasks: int = 0
    duplicates: int = 0
    """How many rows may be in Kafka twice, at most."""
    partitions: dict[tuple[str, int], PartitionCount] = field(default_factory=dict)

    def add_commit(self, commit: Mapping[str, Any], starts: Mapping[int, int]) -> None:
        """Add the counts that a write left (see client_stub/spark/write_report.py)."""
        self.rows += commit["rows"]
        self.tasks += len(commit["tasks"])
        self._add_repeats(commit, starts)
        for topic, partitions in commit["topics"].items():
            for partition, (first, last, rows) in partitions.items():
                count = self.partitions.setdefault((topic, int(partition)), PartitionCount(-1, -1, 0))
                count.add(first, last, rows)

    def add_bad_commit(self, commit: Mapping[str, Any], starts: Mapping[int, int]) -> None:
        """Add the counts of a write of bad rows to their topic."""
        self.bad_rows_kept += commit["rows"]
        self._add_repeats(commit, starts)

    def _add_repeats(self, commit: Mapping[str, Any], starts: Mapping[int, int]) -> None:
        """``starts``: task → how often it was started. Each start but one may have sent all rows of its task again."""
        for task, rows in commit["tasks"].items():
            repeats = starts.get(int(task), 1) - 1
            if repeats > 0:
                self.retried_tasks += 1
                self.duplicates += rows * repeats

    def differences(self) -> list[str]:
        """One sentence for each sum that does not agree."""
        found = []
        if self.counted != self.rows + self.bad_rows:
            found.append(
                f"output {self.topic}: {self.counted:,} rows came to it, and {self.rows:,} were sent and "
                f"{self.bad_rows:,} bad"
            )
        if self.bad_rows != self.bad_rows_kept:
            found.append(
                f"output {self.topic}: {self.bad_rows:,} rows were bad, and {self.bad_rows_kept:,} were kept"
            )
        placed = sum(count.rows for count in self.partitions.values())
        if placed != self.rows:
            found.append(f"output {self.topic}: {self.rows:,} rows were sent, and {placed:,} have an offset")
        for place, count in sorted(self.partitions.items()):
            if count.first >= 0 and count.offsets < count.rows:
                found.append(
                    f"output {self.topic}: {count.rows:,} rows were sent to partition {partition_name(self, place)}, "
                    f"and there are {count.offsets:,} offsets from {count.first} to {count.last}: the topic was made "
                    "anew, or lost records"
                )
        return found


class Sample(NamedTuple):
    """How far the run was after ``seconds``."""

    seconds: float
    rows: int


class Ending(NamedTuple):
    """How a user or the time limit ended a run."""

    sentence: str
    is_whole: bool
    """A stream that ended after a micro-batch, so that its sums can agree."""
    status: int
    """Of the command."""


@dataclass
class Report:
    pipeline: str
    run_id: str
    source: str
    seconds: float = 0.0
    rows_read: int | None = None
    """None where it is not known."""
    steps: dict[str, int | None] = field(default_factory=dict)
    """Rows of each step; None where counting would have cost a filter of the source."""
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """View → the views that it reads."""
    outputs: list[OutputReport] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    batches: int = 0
    """Micro-batches of a stream."""
    error: str | None = None
    ending: Ending | None = None
    """None for a run that ended by itself."""
    differing_reads: set[str] = field(default_factory=set)

    def differences(self) -> list[str]:
        found = [each for output in self.outputs for each in output.differences()]
        for output in self.outputs:
            rows = self.rows_read if output.view == "source" else self.steps.get(output.view)
            if rows is not None and rows != output.counted and not self.batches:
                found.append(
                    f"output {output.topic}: step {output.view} has {rows:,} rows, and {output.counted:,} came to it"
                )
        found += [
            f"{name} had another number of rows for each output" for name in sorted(self.differing_reads)
        ]
        return found

    @property
    def ok(self) -> bool:
        return self.failure() is None

    def failure(self) -> str | None:
        """Why the run is no success."""
        if self.error is not None:
            return self.error
        if self.ending is not None and self.ending.status != OK:
            return self.ending.sentence
        return "; ".join(self.differences()) or None

    def note_rows(self, name: str, rows: int) -> None:
        """The rows of a view in the job of one output; every job must find the same."""
        known = self.rows_read if name == "source" else self.steps.get(name)
        if known is not None and known != rows:
            self.differing_reads.add(name)
        if name == "source":
            self.rows_read = rows
        else:
            self.steps[name] = rows

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "run_id": self.run_id,
            "seconds": round(self.seconds, 3),
            "rows_read": self.rows_read,
            "steps": [{"name": name, "rows": rows} for name, rows in self.steps.items()],
            "outputs": [
                {
                    "topic": output.topic,
                    "rows": output.rows,
                    "bad_rows": output.bad_rows,
                    "partitions": {
                        partition_name(output, place): {
                            "first": count.first,
                            "last": count.last,
                            "rows": count.rows,
                        }
                        for place, count in sorted(output.partitions.items())
                    },
                    "retried_tasks": output.retried_tasks,
                    "duplicates": output.duplicates,
                }
                for output in self.outputs
            ],
            "ok": self.ok,
            "error": self.failure(),
        }

    def as_text(self) -> str:
        rows = [("rows read", count_text(self.rows_read), self.source)]
        before = self.rows_read
        for name, count in self.steps.items():
            rows.append((f"step {name}", count_text(count), _dropped(before, count)))
            before = count
        for output in self.outputs:
            rows.append((f"sent to {output.topic}", count_text(output.rows), f"in {output.tasks} tasks"))
            if output.bad_rows:
                rows.append(("    bad rows", count_text(output.bad_rows), "kept apart"))
            if output.retried_tasks or output.duplicates:
                text = f"at most; tasks that were started again: {output.retried_tasks}"
                rows.append(("    possible duplicates", count_text(output.duplicates), text))
            for place, part in sorted(output.partitions.items()):
                rows.append(
                    (
                        f"    partition {partition_name(output, place)}",
                        count_text(part.rows),
                        _offsets(part),
                    )
                )
        sent = sum(output.rows for output in self.outputs)
        rate = f"{sent / self.seconds:,.0f} rows/s" if self.seconds else ""
        rows.append(("seconds", f"{self.seconds:,.1f}", rate))
        if self.batches:
            rows.append(("micro-batches", count_text(self.batches), ""))
        names = max(len(name) for name, *_ in rows)
        counts = max(len(count) for _, count, _ in rows)
        lines = [f"{name:<{names}}  {count:>{counts}}  {text}".rstrip() for name, count, text in rows]
        return "\n".join([f"Pipeline {self.pipeline}, run {self.run_id}", *lines, self.verdict()])

    def verdict(self) -> str:
        if self.error is not None:
            return f"The run failed: {self.error}"
        if self.ending is not None and not self.ending.is_whole:
            return self.ending.sentence
        differences = self.differences()
        sums = f"The sums do not agree: {'; '.join(differences)}." if differences else "All sums agree."
        return sums if self.ending is None else f"{self.ending.sentence} {sums}"


def partition_name(output: OutputReport, place: tuple[str, int]) -> str:
    """The partition; with its topic, as Kafka writes it, where the output has several."""
    return str(place[1]) if output.has_fixed_topic else f"{place[0]}-{place[1]}"


def count_text(rows: int | None) -> str:
    return "not counted" if rows is None else f"{rows:,}"


def _offsets(count: PartitionCount) -> str:
    text = f"offsets {count.first} to {count.last}"
    return (
        text
        if count.offsets == count.rows
        else f"{text} ({count.offsets:,}: retries and other writers have the rest)"
    )


def _dropped(before: int | None, rows: int | None) -> str:
    if before is None or rows is None or rows == before:
        return ""
    return f"{before - rows:,} dropped" if rows < before else f"{rows - before:,} more"
