"""How far a run is: a bar on a terminal, a line every 30 s elsewhere. Keeps the samples for the report's picture.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

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
_BAR_MIN, _BAR_MAX = 8, 40


class Counts(NamedTuple):
    """Rows and bytes that tasks have handed to a daemon, and those that the brokers have acknowledged."""

    rows: int = 0
    bytes: int = 0
    acknowledged: int = 0
    acknowledged_bytes: int = 0


class RunProgress:
    """The sums of all writes of a run, from the files that their tasks leave. On other hosts those files are not seen:
    then the counts move when a write is over.
    """

    def __init__(self) -> None:
        self.phase = "Spark starts"
        """What the run does before it writes; empty while it writes."""
        self.share: Callable[[], float | None] = lambda: None
        """The share of the work that is done, where that is known."""
        self._folder: Path | None = None
        self._before = Counts()
        self._lock = threading.Lock()
        self._began = self._wrote_at = time.monotonic()
        self._has_bar = False
        self.samples: list[Sample] = [Sample(0.0, 0)]

    def writes(self) -> None:
        """The rows move from now on: rate and time left count from here."""
        self.phase = ""
        self._wrote_at = time.monotonic()

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
            before = self._before
            if before.acknowledged < seen.acknowledged + rows:
                self._before = before._replace(rows=seen.rows + rows, acknowledged=seen.acknowledged + rows)

    def _sum(self) -> Counts:
        found = [self._before]
        if self._folder is not None:
            for path in self._folder.glob("task-*.json"):
                try:
                    found.append(Counts(**json.loads(path.read_text())))
                except (OSError, ValueError):  # it is being replaced
                    continue
        return Counts(*map(sum, zip(*found, strict=True)))

    @contextmanager
    def shown(self, *, quiet: bool) -> Iterator[None]:
        """Show the counts on stderr, and sample them, while the block works."""
        self._has_bar = not quiet and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        is_over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(is_over, quiet), name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self._has_bar = False
            self._sample()

    def note(self, text: str) -> None:
        """Print a line on stderr, in place of the bar, which comes back below it."""
        print(f"\r\x1b[K{text}\n" if self._has_bar else f"{text}\n", end="", file=sys.stderr, flush=True)

    def _sample(self) -> Sample:
        sample = Sample(time.monotonic() - self._began, self.counts().acknowledged)
        self.samples.append(sample)
        return sample

    def _watch(self, is_over: threading.Event, quiet: bool) -> None:
        next_line_s = LINE_S
        while not is_over.wait(REFRESH_S):
            sample = self._sample()
            if self._has_bar:
                sys.stderr.write(f"\r\x1b[K{self.bar(shutil.get_terminal_size().columns - 1)}")
                sys.stderr.flush()
            elif not quiet and sample.seconds >= next_line_s:
                next_line_s = sample.seconds + LINE_S
                print(f"{self.line()}\n", end="", file=sys.stderr, flush=True)
        if self._has_bar:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def line(self) -> str:
        """For a log."""
        return self._texts(self.share())[0]

    def bar(self, width: int) -> str:
        """For a terminal: the longest text that leaves some columns for a bar, where the share is known."""
        share = None if self.phase else self.share()
        texts = self._texts(share)
        if share is None:
            return next((text for text in texts if len(text) <= width), texts[-1][:width])
        taken = len("[]  ")
        text = next((each for each in texts if len(each) + taken + _BAR_MIN <= width), texts[-1])
        columns = min(width - len(text) - taken, _BAR_MAX)
        if columns < _BAR_MIN:
            return text[:width]
        done = round(share * columns)
        return f"[{'=' * done}{' ' * (columns - done)}]  {text}"

    def _texts(self, share: float | None) -> tuple[str, ...]:
        """The same in ever fewer characters."""
        now = time.monotonic()
        if self.phase:
            return (f"{self.phase} ({now - self._began:.0f} s)",)
        counts, rate = self.counts(), self._rate()
        size, acknowledged_size = _size(counts.bytes), _size(counts.acknowledged_bytes)
        rows, acknowledged = _short(counts.rows), _short(counts.acknowledged)
        head = "" if share is None else f"{share:.0%} "
        left = ""
        if share and share < 1:
            left = f", {_duration((now - self._wrote_at) * (1 - share) / share)} left"
        return tuple(
            f"{head}{text}{left}"
            for text in (
                f"{counts.rows:,} rows ({size}) handed over, {counts.acknowledged:,} ({acknowledged_size}) "
                f"acknowledged, {rate:,.0f} rows/s",
                f"{rows} rows ({size}) handed over, {acknowledged} ({acknowledged_size}) acknowledged, "
                f"{_short(rate)}/s",
                f"{rows} rows ({size}) out, {acknowledged} acked, {_short(rate)}/s",
            )
        )

    def _rate(self) -> float:
        """Acknowledged rows a second of the last samples."""
        recent = self.samples[-11:]
        seconds = recent[-1].seconds - recent[0].seconds
        return (recent[-1].rows - recent[0].rows) / seconds if seconds else 0.0


def _short(number: float) -> str:
    """Three digits: 999, 12.3 k, 1.76 M."""
    units = ["", " k", " M", " G"]
    while number >= 999.5 and len(units) > 1:
        number /= 1000
        units.pop(0)
    return f"{number:.3g}{units[0]}" if units[0] and number < 100 else f"{number:,.0f}{units[0]}"


def _size(count: int) -> str:
    text = _short(count)
    return f"{text}B" if " " in text else f"{text} B"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
