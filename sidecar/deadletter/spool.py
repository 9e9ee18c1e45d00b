"""The spool of dead letters: a directory of files of JSON lines, bounded, each batch on disk before it counts.

Any number of writers (one per worker, and ``recover``) may write to one directory: each writes files of its own,
named ``WRITER-MILLISECONDS.jsonl``. A writer that died leaves at most a last line without an end, which readers
pass over: it was not counted yet and is written again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from sidecar.deadletter.letters import Letter, Undelivered, lines, parse
from sidecar.shm.disk import sync_folder

FILE_BYTES_MAX: Final = 16 << 20
"""A file is closed for good beyond this; replay and ``drop_oldest`` work by whole files."""
SUFFIX: Final = ".jsonl"
OPEN_SUFFIX: Final = ".open"
"""Stands behind SUFFIX while a writer may still add to the file."""


class SpoolFull(Exception):
    """dead_letters.max_bytes is used up; nothing was written."""


class SpoolWriter:
    """Adds letters for one writer. Not thread-safe; one thread at a time may call it."""

    def __init__(
        self,
        folder: Path,
        writer: str,
        *,
        max_bytes: int,
        drop_oldest: bool,
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self.folder = folder
        self._writer = writer
        self._max_bytes = max_bytes
        self._drop_oldest = drop_oldest
        self._file_bytes_max = min(file_bytes_max, max(max_bytes // 4, 1))
        self._path: Path | None = None
        self.dropped: list[tuple[Path, int]] = []
        """Files removed for room, with their records; whoever reads it empties it."""

    def append(self, groups: Iterable[Undelivered]) -> int:
        """Write every record of the groups and force them to disk; returns how many.

        Raises SpoolFull, or OSError (disk full, no permission): then the letters may stand there in part, and are
        to be written again; readers know them by their identity.
        """
        now_ms = time.time_ns() // 1_000_000
        found = [line for group in groups for line in lines(group, now_ms)]
        if found:
            data = b"".join(found)
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._make_room(len(data))
            self._write(data, now_ms)
        return len(found)

    def close(self) -> None:
        """No more is added to the current file: replay may delete it. OSError when it cannot be renamed."""
        if self._path is not None:
            path, self._path = self._path, None
            if path.exists():
                path.rename(path.with_suffix(""))

    def _write(self, data: bytes, now_ms: int) -> None:
        if self._path is not None and not self._path.exists():
            self._path = None  # somebody tidied up
        is_new = self._path is None
        if self._path is None:
            self._path = self.folder / f"{self._writer}-{self._free_name(now_ms)}{SUFFIX}{OPEN_SUFFIX}"
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            begin = os.fstat(fd).st_size
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, begin)  # no half line before what is written when there is room again
                raise
        finally:
            os.close(fd)
        if is_new:
            sync_folder(self.folder)
        if begin + len(data) >= self._file_bytes_max:
            self.close()

    def _free_name(self, now_ms: int) -> int:
        while any(self.folder.glob(f"{self._writer}-{now_ms}{SUFFIX}*")):
            now_ms += 1
        return now_ms

    def _make_room(self, size: int) -> None:
        """Raises SpoolFull unless ``size`` bytes fit, or fit after the oldest files are gone."""
        files = [(path, path.stat().st_size) for path in spool_files(self.folder)]
        used = sum(bytes_ for _, bytes_ in files)
        if used + size <= self._max_bytes:
            return
        if not self._drop_oldest or size > self._max_bytes:
            raise SpoolFull(
                f"{self.folder} holds {used:,} bytes of dead letters and takes {self._max_bytes:,} at most "
                "(dead_letters.max_bytes): replay or remove some"
            )
        for path, bytes_ in files:
            if path == self._path:
                self._path = None
            dropped = sum(1 for _ in read_lines(path))
            path.unlink(missing_ok=True)
            self.dropped.append((path, dropped))
            used -= bytes_
            if used + size <= self._max_bytes:
                return


def spool_files(folder: Path) -> list[Path]:
    """Every file of letters, oldest first, also those that are still written to."""
    found = [*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{SUFFIX}{OPEN_SUFFIX}")]
    return sorted(found, key=_begun_ms)


def close_leftovers(folder: Path, writer: str) -> int:
    """Close the files that a dead writer of this name left open; returns how many. Only by its successor."""
    left = list(folder.glob(f"{writer}-*{SUFFIX}{OPEN_SUFFIX}"))
    for path in left:
        path.rename(path.with_suffix(""))
    return len(left)


def read_lines(path: Path) -> Iterator[bytes]:
    """The whole lines of a file; what was cut short at its end is passed over."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def read_letters(path: Path) -> Iterator[tuple[int, Letter | ValueError]]:
    """(line number from 1, letter, or why that line is none)."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            yield number, parse(line)
        except ValueError as error:
            yield number, error


def _begun_ms(path: Path) -> tuple[int, str]:
    digits = path.name.partition(".")[0].rpartition("-")[2]
    return (int(digits) if digits.isdigit() else 0), path.name
