"""AcceptLog: keeps a slot's accepted entries that have not ended on disk, so that a crash of the host loses none.

All normal work uses the segment. The log is only written while the host lives, and only read after the host has died
(sidecar/shm/restore.py). It is a queue of files. Groups of entries are appended, and each group is synced before its
stubs are informed. A file at the front is removed when all its entries have ended. The next owner of a slot begins a
new base: it writes all live entries again, and the frame that ends the base makes all earlier files void.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from sidecar.shm.accept_log_format import (
    BLOCK_BYTES,
    ENDING_BYTES,
    FRAME_HEADER_BYTES,
    FileHeader,
    LoggedEntry,
    pack_frame,
    read_frames,
    up_to_block,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from sidecar.shm.disk import DiskFile, DiskFolder

FILE_BYTES_DEFAULT: Final = 16 << 20
FILE_BYTES_MIN: Final = 1 << 20
SPARES_MAX: Final = 4
"""Limit of files kept for re-use: a new file is written twice, the first time with zeros."""
BASE_CHUNK_BYTES: Final = 4 << 20

Packed = tuple[bytes, "Buffer", bytes]


def accept_log_folder(pool_path: str) -> Path:
    """Folder of the logs that belong to the pool at ``pool.path``."""
    return Path(f"{pool_path}.log")


def accept_log_file_bytes(pool_bytes: int) -> int:
    """Size of a log file: an eighth of the pool, between 1 and 16 MiB."""
    return up_to_block(min(max(FILE_BYTES_MIN, pool_bytes // 8), FILE_BYTES_DEFAULT))


class DiskFull(OSError):
    """There is no room for another file. Nothing was written, and the same commit may be retried."""


class LogContents(NamedTuple):
    """Entries of a slot's log that have not ended, in order of acceptance per chain."""

    entries: list[LoggedEntry]
    instance_id: bytes
    """Instance id of the segment for which the log was written; b"" if there is no log."""
    damage: list[str]
    """Descriptions of committed data that cannot be read, one sentence each."""


def read_log(folder: DiskFolder, slot: int) -> LogContents:
    """Read the newest complete base of a slot and everything after it. Changes nothing. Raises OSError."""
    bases: dict[int, list[tuple[FileHeader, str]]] = {}
    for name in folder.names():
        header = FileHeader.read(folder.read(name))
        if header is not None and header.slot == slot:
            bases.setdefault(header.base, []).append((header, name))
    for base in sorted(bases, reverse=True):
        contents = _read_base(folder, base, sorted(bases[base]))
        if contents is not None:
            return contents
    return LogContents([], b"", [])


def logged_slots(folder: DiskFolder) -> list[int]:
    """Slots that have a log in the folder."""
    headers = (FileHeader.read(folder.read(name)) for name in folder.names())
    return sorted({header.slot for header in headers if header is not None})


def _read_base(folder: DiskFolder, base: int, files: Sequence[tuple[FileHeader, str]]) -> LogContents | None:
    is_whole = any(header.base_is_whole for header, _ in files)
    head = base
    damage: list[str] = []
    entries: dict[tuple[int, int], tuple[int, LoggedEntry]] = {}
    endings: set[tuple[int, int]] = set()
    for header, name in files:
        for frame in read_frames(folder.read(name), header):
            if isinstance(frame, str):
                damage.append(f"In {name}, {frame}.")
                continue
            is_whole = is_whole or frame.base_is_whole
            head = max(head, frame.head)
            endings.update(frame.endings)
            for entry in frame.entries:
                entries[entry.chain_id, entry.ordinal] = header.number, entry
    if not is_whole:
        return None
    there = {header.number for header, _ in files}
    damage += [
        f"File {number} of slot {files[0][0].slot} is missing."
        for number in range(head, max(there) + 1)
        if number not in there
    ]
    live = sorted(key for key, (number, _) in entries.items() if number >= head and key not in endings)
    return LogContents([entries[key][1] for key in live], files[0][0].instance_id, damage)


class AcceptLog:
    """Writer of one slot's log. Every method blocks on the disk. Use it from one thread at a time.

    ``number`` is the file being written. Raises OSError from the disk. After any error from :meth:`commit` but
    DiskFull, it is unknown what is on disk, and the log must not be used any more.
    """

    def __init__(self, folder: DiskFolder, slot: int, instance_id: bytes, file_bytes: int) -> None:
        """Find the existing files of the slot. They stay until :meth:`end_base`."""
        self._folder = folder
        self._slot = slot
        self._instance_id = instance_id
        self._file_bytes = file_bytes
        self._void: list[str] = []
        self.number = 0
        for name in folder.names():
            header = FileHeader.read(folder.read(name))
            if header is not None and header.slot != slot:
                continue
            if header is None and not name.startswith(_prefix(slot)):
                continue
            self._void.append(name)
            self.number = max(self.number, header.number if header else 0)
        self._base = self.number + 1
        self._head = self._base
        self._base_is_whole = False
        self._current: DiskFile | None = None
        self._header: FileHeader | None = None
        self._position = 0
        self._used: dict[int, DiskFile] = {}
        self._spares: list[DiskFile] = []

    @property
    def head(self) -> int:
        return self._head

    @property
    def file_bytes(self) -> int:
        return self._file_bytes

    def add_to_base(self, entries: Iterable[LoggedEntry]) -> list[int]:
        """Write live entries before anything new is accepted. Returns the file number of each entry."""
        numbers: list[int] = []
        chunk: list[Packed] = []
        size = 0
        for entry in entries:
            packed = entry.pack()
            chunk.append(packed)
            size += sum(memoryview(each).nbytes for each in packed)
            if size >= BASE_CHUNK_BYTES:
                numbers += self.commit(chunk)
                chunk, size = [], 0
        return numbers + (self.commit(chunk) if chunk else [])

    def end_base(self) -> None:
        """End the base: from now on this log is valid. Remove the files of earlier ones."""
        self._write_frame([], [], base_is_whole=True)
        self._base_is_whole = True
        for name in self._void:
            self._folder.remove(name)
        self._void = []
        self.prepare()

    def commit(
        self, entries: Sequence[Packed], endings: Sequence[tuple[int, int]] = (), head: int = 0
    ) -> list[int]:
        """Write and sync entries. Returns the file number of each. When it returns, all of them survive a crash of the
        host.

        All entries of files below ``head`` have ended, so these files are re-used. At least one argument must hold
        data.
        """
        self._head = max(self._head, head)
        numbers: list[int] = []
        sizes = [sum(memoryview(each).nbytes for each in packed) for packed in entries]
        at = 0
        while at < len(entries):
            stop, size = at, FRAME_HEADER_BYTES
            while stop < len(entries) and self._position + size + sizes[stop] <= self._end:
                size += sizes[stop]
                stop += 1
            if stop == at:
                self._next_file(FRAME_HEADER_BYTES + sizes[at])
                continue
            with_it = endings if stop == len(entries) and self._fits(size, endings) else ()
            self._write_frame(entries[at:stop], with_it)
            if with_it:
                endings = ()
            numbers += [self.number] * (stop - at)
            at = stop
        while endings:
            capacity = (self._end - self._position - FRAME_HEADER_BYTES) // ENDING_BYTES
            if capacity <= 0:
                self._next_file(0)
                continue
            self._write_frame([], endings[:capacity])
            endings = endings[capacity:]
        # Only now, when a frame with the new head is on disk, are these files not needed.
        self._drop_below(self._head)
        return numbers

    @property
    def has_spare(self) -> bool:
        return bool(self._spares)

    def prepare(self) -> None:
        """Create a spare file for when this one is full, so that no commit waits for it."""
        if not self.has_spare:
            self._spares.append(self._create(self._file_bytes, self.number + 1))

    def close(self) -> None:
        for file in (*self._used.values(), *self._spares):
            file.close()
        self._used, self._spares, self._current = {}, [], None

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _end(self) -> int:
        return self._current.size if self._current is not None else 0

    def _fits(self, size: int, endings: Sequence[tuple[int, int]]) -> bool:
        return self._position + size + ENDING_BYTES * len(endings) <= self._end

    def _write_frame(
        self, entries: Sequence[Packed], endings: Sequence[tuple[int, int]], *, base_is_whole: bool = False
    ) -> None:
        if self._current is None or self._position + FRAME_HEADER_BYTES > self._end:
            self._next_file(0)
        assert self._current is not None and self._header is not None
        buffers = pack_frame(self._header, self._head, entries, endings, base_is_whole=base_is_whole)
        self._current.write(self._position, buffers)
        self._current.sync()
        self._position += sum(memoryview(each).nbytes for each in buffers)

    def _drop_below(self, head: int) -> None:
        for number in [each for each in self._used if each < head and each != self.number]:
            file = self._used.pop(number)
            if len(self._spares) < SPARES_MAX and file.size == self._file_bytes:
                self._spares.append(file)
            else:
                file.close()
                self._folder.remove(file.name)

    def _next_file(self, frame_bytes: int) -> None:
        """Continue in a spare file, or a new one. An OSError leaves everything unchanged."""
        number = self.number + 1
        size = max(self._file_bytes, BLOCK_BYTES + up_to_block(frame_bytes))
        file = self._spares[-1] if self._spares and self._spares[-1].size >= size else None
        if file is None:
            file = self._create(size, number)
            self._spares.append(file)
        salt = int.from_bytes(os.urandom(8), "little")
        header = FileHeader(self._slot, number, self._base, self._base_is_whole, self._instance_id, salt)
        # Sync the new header before the first frame, so that data of the file's earlier use is void.
        file.write(0, [header.pack()])
        file.sync()
        self._spares.pop()
        self._current, self._header, self.number = file, header, number
        self._used[number] = file
        self._position = BLOCK_BYTES

    def _create(self, size: int, number: int) -> DiskFile:
        names = set(self._folder.names())
        name = next(
            name
            for name in (f"{_prefix(self._slot)}{each}" for each in range(number, number + len(names) + 1))
            if name not in names
        )
        try:
            return self._folder.create(name, up_to_block(size))
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise DiskFull(error.errno, error.strerror) from None
            raise


def _prefix(slot: int) -> str:
    return f"slot-{slot}."
