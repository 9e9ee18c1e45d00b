"""Disk: all file system operations of the accept log in one place, so that a test can simulate a power failure.

Assumptions (Linux, a file system with write barriers): bytes of ``write`` reach the medium at any time, in any order,
and in part, but 512-byte sectors are whole. After ``sync`` has returned all of them are there. A file that ``create``
has returned exists with its size and zeros.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from sidecar.shm.mounts import mount_of
from sidecar.shm.private_files import create_private, make_folder

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SAFE: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_BUFFERS_MAX: Final = 1024
_ZEROS: Final = bytes(1 << 20)
_MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})


class DiskFile(Protocol):
    """An open file of fixed size. One thread at a time. All methods raise OSError."""

    name: str
    size: int

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers one after another at ``position``."""

    def sync(self) -> None:
        """Return when everything written is on the medium. After an error it is unknown what is there (fsyncgate)."""

    def close(self) -> None: ...


class DiskFolder(Protocol):
    """A folder of such files."""

    def names(self) -> list[str]:
        """Names of the existing files; empty if the folder does not exist."""

    def read(self, name: str) -> memoryview: ...

    def create(self, name: str, size: int) -> DiskFile:
        """Create a file of zeros, which is on the medium with its name when this returns. After an OSError there is
        no file.
        """

    def open(self, name: str) -> DiskFile: ...

    def remove(self, name: str) -> None: ...


class File:
    """DiskFile on a real file system. Writing and syncing release the GIL."""

    def __init__(self, path: Path, fd: int) -> None:
        self.name = path.name
        self.size = os.fstat(fd).st_size
        self._fd = fd

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        waiting = [memoryview(each).cast("B") for each in buffers]
        while waiting:
            written = os.pwritev(self._fd, waiting[:_BUFFERS_MAX], position)
            position += written
            while waiting and written >= len(waiting[0]):
                written -= len(waiting.pop(0))
            if written:
                waiting[0] = waiting[0][written:]

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class Folder:
    """DiskFolder on a real file system. The folder is made with its first file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        try:
            return sorted(each.name for each in self.path.iterdir() if stat.S_ISREG(each.lstat().st_mode))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> memoryview:
        with os.fdopen(os.open(self.path / name, os.O_RDONLY | _SAFE), "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))

    def create(self, name: str, size: int) -> DiskFile:
        if not self.path.exists():
            make_folder(self.path)
            sync_folder(self.path.parent)
        path = self.path / name
        fd = create_private(path, os.O_RDWR)
        try:
            os.posix_fallocate(fd, 0, size)
            # Write zeros once, so that a later sync forces out data only, and no metadata.
            for position in range(0, size, len(_ZEROS)):
                os.pwrite(fd, _ZEROS[: size - position], position)
            os.fsync(fd)
            sync_folder(self.path)
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return File(path, fd)

    def open(self, name: str) -> DiskFile:
        path = self.path / name
        return File(path, os.open(path, os.O_RDWR | _SAFE))

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove_all(self) -> None:
        """Remove all files and the folder itself."""
        for name in self.names():
            self.remove(name)
        try:
            self.path.rmdir()
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTEMPTY}:
                raise


def memory_file_system(path: Path) -> str:
    """Type of the file system of ``path`` (or its future one), if a host crash empties that; else ""."""
    kind = mount_of(path).kind
    return kind if kind in _MEMORY_FILE_SYSTEMS else ""


def sync_folder(path: Path) -> None:
    """Force changes of names in the folder to disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
