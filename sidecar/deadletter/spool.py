"""The spool of dead letters: a directory of files of JSON lines, bounded, each batch on disk before it counts.

Any number of writers (one per worker, and ``recover``) may write to one directory: each writes files of its own,
named ``WRITER-MILLISECONDS.jsonl``. A writer that died leaves at most a last line without an end, which readers
pass over: it was not counted yet and is written again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sidecar.deadletter.letters import Undelivered, lines
from sidecar.deadletter.spool_files import (
    OPEN_SUFFIX,
    SUFFIX,
    drop_file,
    may_be_written_to,
    size_of,
    spool_files,
)
from sidecar.shm.disk import sync_folder
from sidecar.shm.private_files import create_private, make_folder

FILE_BYTES_MAX: Final = 16 << 20
"""A file is closed for good beyond this; replay and ``drop_oldest`` work by whole files."""
WRITE_BYTES_MAX: Final = 4 << 20
"""Lines written and synced at once, if they are not one letter."""
PARTS_MIN: Final = 4
"""A spool takes no more than this part of its bound in one file, and in one write."""
_TRIES_MAX: Final = 3


class SpoolFull(Exception):
    """dead_letters.max_bytes is used up."""


class LetterTooLarge(SpoolFull):
    """One letter alone is larger than dead_letters.max_bytes: it will never fit."""


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
        self._largest_file_bytes = file_bytes_max
        self.bound(max_bytes, drop_oldest=drop_oldest)
        self._path: Path | None = None
        self._fd = -1
        """The current file, with its lock: while it is held nobody else takes the file for a dead writer's."""
        self.written = 0
        """Letters of the last append() that are on disk, also when it raised."""
        self.dropped: list[tuple[Path, int]] = []
        """Files removed for room, with their records; the reader empties it."""

    def bound(self, max_bytes: int, *, drop_oldest: bool) -> None:
        """Use these bounds from the next write on. Any thread may call it: each value is read once a write."""
        self._max_bytes = max_bytes
        self._drop_oldest = drop_oldest
        self._file_bytes_max = min(self._largest_file_bytes, max(max_bytes // PARTS_MIN, 1))
        self._write_bytes = min(WRITE_BYTES_MAX, max(max_bytes // PARTS_MIN, 1))

    def append(self, groups: Iterable[Undelivered], *, skip: int = 0) -> int:
        """Write every record of the groups and force them to disk; returns how many.

        ``skip``: so many of the first stand there already, from a call that raised. Raises SpoolFull, LetterTooLarge,
        or OSError (disk full, no permission): then ``written`` says how many are on disk, from the first on.
        """
        now_ms = time.time_ns() // 1_000_000
        self.written = 0
        piece: list[bytes] = []
        size = 0
        for line in lines(groups, now_ms):
            if skip:
                skip -= 1
                self.written += 1
                continue
            if len(line) > self._max_bytes or size + len(line) > self._write_bytes:
                self._write_piece(piece, now_ms)
                piece, size = [], 0
            if len(line) > self._max_bytes:
                raise LetterTooLarge(
                    f"a letter of {len(line):,} bytes is larger than all that {self.folder} may hold, "
                    f"{self._max_bytes:,} bytes (dead_letters.max_bytes)"
                )
            piece.append(line)
            size += len(line)
        self._write_piece(piece, now_ms)
        return self.written

    def close(self) -> None:
        """No more is added to the current file: replay may delete it. OSError when it cannot be renamed."""
        path = self._path
        is_ours = self._is_there()
        self._forget()
        if path is not None and is_ours:
            path.rename(path.with_suffix(""))

    def _write_piece(self, piece: list[bytes], now_ms: int) -> None:
        if not piece:
            return
        data = b"".join(piece)
        make_folder(self.folder)
        self._make_room(len(data))
        for _ in range(_TRIES_MAX):
            self._write(data, now_ms)
            if self._is_there():
                break
            self._forget()  # removed under our hands: what was in it is not on disk
        else:
            raise FileNotFoundError(f"{self.folder}: the file is removed whenever it is written")
        self.written += len(piece)
        if os.fstat(self._fd).st_size >= self._file_bytes_max:
            self.close()

    def _write(self, data: bytes, now_ms: int) -> None:
        if not self._is_there():
            self._forget()
            self._begin(now_ms)
        begin = os.fstat(self._fd).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, begin)  # no half line before what is written when there is room again
            raise

    def _begin(self, now_ms: int) -> None:
        path = self.folder / f"{self._writer}-{self._free_name(now_ms)}{SUFFIX}{OPEN_SUFFIX}"
        self._fd = create_private(path, os.O_WRONLY | os.O_APPEND)
        self._path = path
        # Somebody looks at just this moment, or holds it against us: then the file may be closed under our hands, which
        # every write looks for.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sync_folder(self.folder)

    def _is_there(self) -> bool:
        """Whether the current file is still the one of its name."""
        if self._path is None:
            return False
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        own = os.fstat(self._fd)
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def _forget(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._path, self._fd = None, -1

    def _free_name(self, now_ms: int) -> int:
        while any(self.folder.glob(f"{self._writer}-{now_ms}{SUFFIX}*")):
            now_ms += 1
        return now_ms

    def _make_room(self, size: int) -> None:
        """Raises SpoolFull unless ``size`` bytes fit, or fit after the oldest files are gone.

        A file that another writer may add to is not removed: it could be adding to it now.
        """
        files = [(path, size_of(path)) for path in spool_files(self.folder)]
        used = sum(bytes_ for _, bytes_ in files)
        if used + size <= self._max_bytes:
            return
        going: list[tuple[Path, int]] = []
        if self._drop_oldest:
            going = [each for each in files if each[0] == self._path or not may_be_written_to(each[0])]
        if used - sum(bytes_ for _, bytes_ in going) + size > self._max_bytes:
            raise SpoolFull(
                f"{self.folder} holds {used:,} bytes of dead letters and takes {self._max_bytes:,} at most "
                "(dead_letters.max_bytes): replay or remove some"
            )
        for path, bytes_ in going:
            if path == self._path:
                self._forget()
            self.dropped.append((path, drop_file(path)))
            used -= bytes_
            if used + size <= self._max_bytes:
                return
