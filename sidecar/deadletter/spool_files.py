"""The files of a spool, read and cleaned while writers add to it: locks of living writers, files of dead ones.

Workers in their thread for files, and `replay` and `recover` in the command's process.

A writer holds a lock (flock) on its open file as long as it may add to it, so the kernel knows whether it lives. The
next reader closes a file that is not locked and was not written for a minute. The minute is for writers of earlier
versions, which held no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from sidecar.deadletter.letters import Letter, parse
from sidecar.shm.private_files import make_folder, replacing

SUFFIX: Final = ".jsonl"
OPEN_SUFFIX: Final = ".open"
"""Follows SUFFIX while a writer may still add to the file."""
READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Refuses symbolic links, and does not block on pipes: neither is a file of letters."""
DEAD_AFTER_S: Final = 60.0
"""An unlocked file belongs to a dead writer if it was not written for this many seconds."""


class AnothersLetters(Exception):
    """The letters belong to another user's daemon. The text is a sentence for the user."""


def spool_files(folder: Path) -> list[Path]:
    """All files of letters, oldest first, including those still being written."""
    found = [*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{SUFFIX}{OPEN_SUFFIX}")]
    return sorted((path for path in found if _is_file(path)), key=_begun_ms)


def size_of(path: Path) -> int:
    """Size in bytes; 0 if the file is gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def writers_of(run_dir: Path) -> str:
    """Common prefix of the names of all writers of a run dir's daemon, however the run dir is spelled."""
    digest = hashlib.sha1(str(run_dir.resolve()).encode(), usedforsecurity=False).hexdigest()
    return f"{digest[:8]}-slot"


def writer_of(run_dir: Path, slot: int) -> str:
    """Name of a slot's writer."""
    return f"{writers_of(run_dir)}{slot}"


def close_leftovers(folder: Path, writers: str) -> int:
    """Close unlocked files of writers whose names have this prefix. Returns their number.

    The caller must know that writers of earlier versions, which held no lock, are dead.
    """
    found = folder.glob(f"{writers}*{SUFFIX}{OPEN_SUFFIX}")
    return sum(_close(path) for path in found if not may_be_written_to(path, silent_s=0.0))


def close_dead_files(folder: Path) -> int:
    """Close files without a living writer. Returns their number."""
    found = folder.glob(f"*{SUFFIX}{OPEN_SUFFIX}")
    return sum(_close(path) for path in found if not may_be_written_to(path))


def may_be_written_to(path: Path, *, silent_s: float = DEAD_AFTER_S) -> bool:
    """Whether a writer may still add to the file: it is locked, or was written within ``silent_s``."""
    if path.suffix != OPEN_SUFFIX:
        return False
    try:
        fd = os.open(path, READ_FLAGS)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # another user's, or a link: assume so
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return time.time() - os.fstat(fd).st_mtime < silent_s
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def read_lines(path: Path) -> Iterator[bytes]:
    """Complete lines of a file; an incomplete last one is skipped. None if the file is gone."""
    with SpoolFile.open(path) as file:
        yield from file.lines()


class SpoolFile:
    """One file, kept open while it is read. Meanwhile its writer may close it, and anyone may remove it."""

    def __init__(self, path: Path, fd: int | None) -> None:
        self.path = path
        """Path under which it was found."""
        self._fd = fd
        self.bytes_read = 0
        """By letters()."""

    @classmethod
    def open(cls, path: Path) -> SpoolFile:
        """Open a file, even if it was closed and renamed meanwhile. A file that is gone has no lines."""
        for name in (path, _closed(path)):
            with contextlib.suppress(FileNotFoundError):
                return cls(name, os.open(name, READ_FLAGS))
        return cls(path, None)

    @property
    def is_there(self) -> bool:
        return self._fd is not None

    def lines(self) -> Iterator[bytes]:
        """All complete lines, from the first on."""
        if self._fd is None:
            return
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            for line in file:
                if line.endswith(b"\n"):
                    yield line

    def letters(self) -> Iterator[tuple[int, Letter | ValueError]]:
        """Yield (line number from 1, the letter or the error of that line)."""
        for number, line in enumerate(self.lines(), 1):
            self.bytes_read += len(line)
            try:
                yield number, parse(line)
            except ValueError as error:
                yield number, error

    def lines_but(self, over: set[int]) -> Iterator[bytes]:
        """All lines, including ones added since, except the numbers in ``over``."""
        return (line for number, line in enumerate(self.lines(), 1) if number not in over)

    def closed_path(self) -> Path | None:
        """Path of the file if it is closed; None while it may be added to, or if it is gone."""
        if self._fd is None:
            return None
        path = _closed(self.path)
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        own = os.fstat(self._fd)
        return path if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino) else None

    def __enter__(self) -> SpoolFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            os.close(self._fd)


def replace_file(path: Path, lines: Iterable[bytes]) -> None:
    """Replace a closed file by ``lines``, or remove it if there are none. A file that is gone stays gone."""
    temporary = path.with_name(f".{path.name}.new")
    is_empty = True
    with os.fdopen(replacing(path, temporary), "wb") as out:
        for line in lines:
            out.write(line)
            is_empty = False
        out.flush()
        os.fsync(out.fileno())
        with _files_locked(path.parent):
            if is_empty or not path.exists():
                path.unlink(missing_ok=True)
                temporary.unlink()
                return
            give_to_owner_of(path.parent, out.fileno())
            temporary.replace(path)


def drop_file(path: Path) -> int:
    """Remove a file to make room. Returns its number of letters. Never runs between the two steps of a replacement."""
    with _files_locked(path.parent):
        dropped = sum(1 for _ in read_lines(path))
        path.unlink(missing_ok=True)
    return dropped


def give_to_owner_of(folder: Path, fd: int) -> None:
    """Give a file made by root to the user who owns the folder. Only for a file that was just checked."""
    found = folder.stat()
    if os.geteuid() == 0:
        os.fchown(fd, found.st_uid, found.st_gid)


def make_spool(folder: Path) -> None:
    """Make the folder if it is absent. If root makes it, it belongs to the owner of the parent folder. Raises
    OSError.
    """
    if make_folder(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            give_to_owner_of(folder.parent, fd)
        finally:
            os.close(fd)


def owners_of(folder: Path) -> tuple[int, ...]:
    """Users besides this one whose files are trusted in the folder: its owner, if this is root."""
    return (folder.stat().st_uid,) if os.geteuid() == 0 else ()


def check_may_replay(folder: Path) -> None:
    """Raise AnothersLetters unless this is root or the owner of the folder."""
    try:
        owner = folder.stat().st_uid
    except FileNotFoundError:
        return
    except PermissionError:
        owner = -1
    if os.geteuid() in {0, owner}:
        return
    who = "the daemon's user" if owner < 0 else f"uid {owner}"
    raise AnothersLetters(
        f"The dead letters in {folder} belong to {who}, and this is uid {os.geteuid()}: run this command as that user "
        "(sudo -u) or as root."
    )


def remove_half_made(folder: Path) -> None:
    """Remove temporary files of replays that were killed while replacing a file. Only under the lock of replays."""
    for path in folder.glob(f".*{SUFFIX}.new"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _files_locked(folder: Path) -> Iterator[None]:
    """Lock the folder while a name in it is checked and changed.

    The folder itself is locked, because a lock file could belong to another user who replayed first.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _close(path: Path) -> bool:
    try:
        path.rename(_closed(path))
    except FileNotFoundError:
        return False  # another process has closed it
    return True


def _is_file(path: Path) -> bool:
    """False for a link, a folder or a pipe, and if it is gone."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _closed(path: Path) -> Path:
    return path.with_suffix("") if path.suffix == OPEN_SUFFIX else path


def _begun_ms(path: Path) -> tuple[int, str]:
    digits = path.name.partition(".")[0].rpartition("-")[2]
    return (int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0), path.name
