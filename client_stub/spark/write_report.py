"""What one write has put into Kafka, for the program that asked for it: rows and offsets of its tasks.

The data source runs in processes of Spark, so it leaves files in the folder that the internal option
``sidecar.report`` names: ``commit.json`` by commit(), which runs on the driver's host, and one for each task attempt
while it runs, where that folder is also there.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import WriterCommitMessage

from client_stub.record_metadata import OffsetRange
from client_stub.system.originals import monotonic

COMMIT_FILE: Final = "commit.json"
PROGRESS_S: Final = 0.3
"""From one progress file of a task to the next."""


@dataclass
class TaskWritten(WriterCommitMessage):
    """A task's message to commit()."""

    rows: int
    task: int = 0
    attempt: int = 0
    bytes: int = 0
    """Of its rows as Spark handed them over."""
    stage: int = 0
    start: int = 0
    """The number of this attempt among all of the application."""
    offsets: dict[str, dict[int, tuple[int, int, int]]] = field(default_factory=dict)
    """Topic → partition → (first offset, last offset, rows); an offset is -1 where the broker gave none. Only with a
    report.
    """

    def add_offsets(self, topic: str, ranges: Iterable[OffsetRange]) -> None:
        for each in ranges:
            _add(self.offsets, topic, each.partition, (each.first_offset, each.end_offset - 1, each.count))


def _add(
    places: dict[str, dict[int, tuple[int, int, int]]], topic: str, partition: int, more: tuple[int, int, int]
) -> None:
    of_topic = places.setdefault(topic, {})
    first, last, rows = of_topic.get(partition, (-1, -1, 0))
    known = [each for each in (first, more[0]) if each >= 0]
    of_topic[partition] = (min(known, default=-1), max(last, more[1], -1), rows + more[2])


def write_commit(folder: str, messages: Iterable[Any]) -> None:
    """For commit(): leave the sums of all tasks in ``folder``; nothing without one."""
    if not folder:
        return
    tasks: list[TaskWritten] = [each for each in messages if isinstance(each, TaskWritten)]
    places: dict[str, dict[int, tuple[int, int, int]]] = {}
    for task in tasks:
        for topic, partitions in task.offsets.items():
            for partition, place in partitions.items():
                _add(places, topic, partition, place)
    _replace(
        Path(folder) / COMMIT_FILE,
        {
            "rows": sum(task.rows for task in tasks),
            "tasks": {task.task: task.rows for task in tasks},
            "stage": tasks[0].stage if tasks else None,
            "topics": places,
        },
    )


class TaskProgress:
    """Leaves the counts of a running task attempt in a file; does nothing without a folder, as on other hosts."""

    def __init__(self, folder: str, written: TaskWritten) -> None:
        name = f"task-{written.start}.json"
        self._path = Path(folder) / name if folder and os.access(folder, os.W_OK) else None
        self._written = written
        self._acknowledged = self._acknowledged_bytes = self._bytes = 0
        self._next_s = 0.0

    def handed_over(self, size: int) -> None:
        self._bytes += size
        self._show()

    def acknowledged(self, rows: int, size: int) -> None:
        self._acknowledged += rows
        self._acknowledged_bytes += size
        self._show()

    def close(self) -> None:
        self._next_s = 0.0
        self._show()

    def _show(self) -> None:
        now = monotonic()
        if self._path is None or now < self._next_s:
            return
        self._next_s = now + PROGRESS_S
        counts = {
            "rows": self._written.rows,
            "bytes": self._bytes,
            "acknowledged": self._acknowledged,
            "acknowledged_bytes": self._acknowledged_bytes,
        }
        # A full disk, or a program that has ended, is no reason to end a task.
        with contextlib.suppress(OSError):
            _replace(self._path, counts)


def _replace(path: Path, content: object) -> None:
    """Write the file so that a reader finds it whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content))
    partial.replace(path)
