"""How far a run is: a bar on a terminal, a line every 30 s elsewhere. Keeps the samples for the report's picture."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from client_stub.pipeline.report import Sample

REFRESH_S: Final = 0.5
LINE_S: Final = 30.0
_BAR_WIDTH: Final = 24


class Counts(NamedTuple):
    """Rows and bytes that tasks have handed to a daemon, and rows that the brokers have acknowledged."""

    rows: int = 0
    acknowledged: int = 0
    bytes: int = 0


class RunProgress:
    """The sums of all writes of a run, from the files that their tasks leave. On other hosts those files are not seen:
    then the counts move when a write is over.
    """

    def __init__(self, share: Callable[[], float | None]) -> None:
        self._share = share
        self._folder: Path | None = None
        self._before = Counts()
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self.samples: list[Sample] = [Sample(0.0, 0)]

    @contextmanager
    def writing(self, folder: Path) -> Iterator[None]:
        """``folder`` has the files of the write that the block does."""
        with self._lock:
            self._folder = folder
        try:
            yield
        finally:
            with self._lock:
                self._before, self._folder = self._sum(), None

    def counts(self) -> Counts:
        with self._lock:
            return self._sum()

    def committed(self, rows: int, seen: Counts) -> None:
        """Count a write of ``rows`` rows whose tasks left no files here; ``seen`` was counted before it."""
        with self._lock:
            if self._before.acknowledged < seen.acknowledged + rows:
                self._before = Counts(seen.rows + rows, seen.acknowledged + rows, self._before.bytes)

    def _sum(self) -> Counts:
        rows, acknowledged, size = self._before
        if self._folder is not None:
            for path in self._folder.glob("task-*.json"):
                try:
                    found = json.loads(path.read_text())
                except (OSError, ValueError):  # it is being replaced
                    continue
                rows += found["rows"]
                acknowledged += found["acknowledged"]
                size += found["bytes"]
        return Counts(rows, acknowledged, size)

    @contextmanager
    def shown(self, *, quiet: bool) -> Iterator[None]:
        """Show the counts on stderr, and sample them, while the block works."""
        is_over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(is_over, quiet), name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self._sample()

    def _sample(self) -> Sample:
        sample = Sample(time.monotonic() - self._began, self.counts().acknowledged)
        self.samples.append(sample)
        return sample

    def _watch(self, is_over: threading.Event, quiet: bool) -> None:
        has_bar = not quiet and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        next_line_s = LINE_S
        while not is_over.wait(REFRESH_S):
            sample = self._sample()
            if has_bar:
                width = shutil.get_terminal_size().columns - 1
                sys.stderr.write(f"\r\x1b[K{self.text(with_bar=True)[:width]}")
                sys.stderr.flush()
            elif not quiet and sample.seconds >= next_line_s:
                next_line_s = sample.seconds + LINE_S
                print(self.text(with_bar=False), file=sys.stderr, flush=True)
        if has_bar:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def text(self, *, with_bar: bool) -> str:
        counts, share = self.counts(), self._share()
        seconds = time.monotonic() - self._began
        parts = [
            f"{counts.rows:,} rows ({counts.bytes / 1e6:,.0f} MB) handed over, {counts.acknowledged:,} in Kafka",
            f"{self._rate():,.0f} rows/s",
        ]
        if share:
            done = round(share * _BAR_WIDTH)
            if with_bar:
                parts.insert(0, f"[{'=' * done}{' ' * (_BAR_WIDTH - done)}] {share:4.0%}")
            else:
                parts.append(f"{share:.0%} of the tasks are over")
            if share < 1:
                parts.append(f"{seconds / share - seconds:,.0f} s left")
        return ", ".join(parts)

    def _rate(self) -> float:
        """Rows a second of the last samples."""
        recent = self.samples[-11:]
        seconds = recent[-1].seconds - recent[0].seconds
        return (recent[-1].rows - recent[0].rows) / seconds if seconds else 0.0
