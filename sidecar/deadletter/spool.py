"""The spool of dead letters: a directory of JSON lines files, bounded, with each write on disk before it counts.

A worker writes it, in its thread for files; only at the start and the end on its loop.

Any number of writers (one per worker, and ``recover``) may use one directory. Each writes its own files, named
``WRITER-MILLISECONDS.jsonl``. A writer that died leaves at most one incomplete last line, which readers skip: it was
not counted yet and is written again.
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
from sidecar.shm.private_files import PRIVATE_FOLDER, create_private

FILE_BYTES_MAX: Final = 16 << 20
"""A file is closed when it is larger than this. Replay and ``drop_oldest`` work on whole files."""
WRITE_BYTES_MAX: Final = 4 << 20
"""Limit of bytes written and synced at once, except for a single larger letter."""
PARTS_MIN: Final = 4
"""One file, and one write, may use at most this fraction (1/4) of the spool's limit."""
_TRIES_MAX: Final = 3


class SpoolFull(Exception):
    """dead_letters.max_bytes is used up."""


class LetterTooLarge(SpoolFull):
    """One letter is larger than dead_letters.max_bytes, so it will never fit."""


class SpoolWriter:
    """Appends letters for one writer. Not thread-safe: one thread at a time may call it."""

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
        """Descriptor of the current file. It holds a lock, so that the file is not taken for a dead writer's."""
        self.written = 0
        """Number of letters of the last append() that are on disk, even if it raised."""
        self.dropped: list[tuple[Path, int]] = []
        """Files removed for room, each with its number of records. The caller empties the list."""

    def bound(self, max_bytes: int, *, drop_oldest: bool) -> None:
        """Use these limits from the next write on. Any thread may call it: each value is read once per write."""
        self._max_bytes = max_bytes
        self._drop_oldest = drop_oldest
        self._file_bytes_max = min(self._largest_file_bytes, max(max_bytes // PARTS_MIN, 1))
        self._write_bytes = min(WRITE_BYTES_MAX, max(max_bytes // PARTS_MIN, 1))

    def append(self, groups: Iterable[Undelivered], *, skip: int = 0) -> int:
        """Write every record of the groups and force them to disk. Returns their number.

        ``skip``: number of first records that an earlier call wrote before it raised. Raises SpoolFull,
        LetterTooLarge, or OSError (disk full, no permission); then ``written`` says how many are on disk, counted from
        the first.
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
        """Close the current file, so that replay may delete it. Raises OSError if it cannot be renamed."""
        path = self._path
        is_ours = self._is_there()
        self._forget()
        if path is not None and is_ours:
            path.rename(path.with_suffix(""))

    def _write_piece(self, piece: list[bytes], now_ms: int) -> None:
        if not piece:
            return
        data = b"".join(piece)
        # Not its parents: one may be a run directory that was removed. The controller makes it again, with the mode
        # that it had.
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir(mode=PRIVATE_FOLDER)
        self._free_space(len(data))
        for _ in range(_TRIES_MAX):
            self._write(data, now_ms)
            if self._is_there():
                break
            self._forget()  # the file was removed while it was written, so nothing of it is on disk
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
            os.ftruncate(self._fd, begin)  # remove the half line, so that later lines are whole
            raise

    def _begin(self, now_ms: int) -> None:
        path = self.folder / f"{self._writer}-{self._free_name(now_ms)}{SUFFIX}{OPEN_SUFFIX}"
        self._fd = create_private(path, os.O_WRONLY | os.O_APPEND)
        self._path = path
        # If another process holds the lock at this moment, the file may be closed by it. Every write checks for that.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sync_folder(self.folder)

    def _is_there(self) -> bool:
        """Whether the current file still exists under its name."""
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

    def _free_space(self, size: int) -> None:
        """Make room for ``size`` bytes, by removing the oldest files if that is allowed. Raises SpoolFull if that
        fails.

        A file that another writer may still add to is not removed: it could be writing to it now.
        """
        files = [(path, size_of(path)) for path in spool_files(self.folder)]
        used = sum(bytes_ for _, bytes_ in files)
        if used + size <= self._max_bytes:
            return
        removable: list[tuple[Path, int]] = []
        if self._drop_oldest:
            removable = [each for each in files if each[0] == self._path or not may_be_written_to(each[0])]
        if used - sum(bytes_ for _, bytes_ in removable) + size > self._max_bytes:
            raise SpoolFull(
                f"{self.folder} holds {used:,} bytes of dead letters and takes {self._max_bytes:,} at most "
                "(dead_letters.max_bytes): replay or remove some"
            )
        for path, bytes_ in removable:
            if path == self._path:
                self._forget()
            self.dropped.append((path, drop_file(path)))
            used -= bytes_
            if used + size <= self._max_bytes:
                return
