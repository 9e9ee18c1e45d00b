"""The files of a spool, read and tidied while writers add to it: locks of living writers, and files of dead ones.

A writer holds a lock (flock) on its open file for as long as it may add to it, so the kernel says who lives. A file
that nobody holds and nobody wrote to for a minute is closed by the next reader; the minute is for writers of
earlier versions, which held no lock.
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
"""Stands behind SUFFIX while a writer may still add to the file."""
READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A link leads elsewhere, and a pipe would block: neither is a file of letters."""
DEAD_AFTER_S: Final = 60.0
"""A file that nobody holds is a dead writer's when it was not written to for so long."""


class AnothersLetters(Exception):
    """They are another user's daemon's; the text is the sentence for the user."""


def spool_files(folder: Path) -> list[Path]:
    """Every file of letters, oldest first, also those that are still written to."""
    found = [*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{SUFFIX}{OPEN_SUFFIX}")]
    return sorted((path for path in found if _is_file(path)), key=_begun_ms)


def size_of(path: Path) -> int:
    """In bytes; 0 for a file that is gone by now."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def writers_of(run_dir: Path) -> str:
    """How the names of all writers of a run dir's daemon begin, however the run dir is written."""
    digest = hashlib.sha1(str(run_dir.resolve()).encode(), usedforsecurity=False).hexdigest()
    return f"{digest[:8]}-slot"


def writer_of(run_dir: Path, slot: int) -> str:
    """The writer of one slot."""
    return f"{writers_of(run_dir)}{slot}"


def close_leftovers(folder: Path, writers: str) -> int:
    """Close the files that nobody holds, of writers whose names begin so; returns how many.

    Only who knows that all of them that held no lock, as versions before, are dead.
    """
    found = folder.glob(f"{writers}*{SUFFIX}{OPEN_SUFFIX}")
    return sum(_close(path) for path in found if not may_be_written_to(path, silent_s=0.0))


def close_dead_files(folder: Path) -> int:
    """Close the files that no living writer has; returns how many."""
    found = folder.glob(f"*{SUFFIX}{OPEN_SUFFIX}")
    return sum(_close(path) for path in found if not may_be_written_to(path))


def may_be_written_to(path: Path, *, silent_s: float = DEAD_AFTER_S) -> bool:
    """Whether a writer may still add to the file: it is held, or was written to within ``silent_s``."""
    if path.suffix != OPEN_SUFFIX:
        return False
    try:
        fd = os.open(path, READ_FLAGS)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # another user's, or a link: it is not ours to judge
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return time.time() - os.fstat(fd).st_mtime < silent_s
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def read_lines(path: Path) -> Iterator[bytes]:
    """The whole lines of a file; what was cut short at its end is passed over. None of a file that is gone."""
    with SpoolFile.open(path) as file:
        yield from file.lines()


class SpoolFile:
    """One file, held open while it is read: its writer may close it, and anybody may remove it, meanwhile."""

    def __init__(self, path: Path, fd: int | None) -> None:
        self.path = path
        """The name under which it was found."""
        self._fd = fd

    @classmethod
    def open(cls, path: Path) -> SpoolFile:
        """By its open name also when it is closed by now. One that is gone holds nothing."""
        for name in (path, _closed(path)):
            with contextlib.suppress(FileNotFoundError):
                return cls(name, os.open(name, READ_FLAGS))
        return cls(path, None)

    @property
    def is_there(self) -> bool:
        return self._fd is not None

    def lines(self) -> Iterator[bytes]:
        """From the first on, up to the last that has its end."""
        if self._fd is None:
            return
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            for line in file:
                if line.endswith(b"\n"):
                    yield line

    def letters(self) -> Iterator[tuple[int, Letter | ValueError]]:
        """(line number from 1, letter, or why that line is none)."""
        for number, line in enumerate(self.lines(), 1):
            try:
                yield number, parse(line)
            except ValueError as error:
                yield number, error

    def lines_but(self, over: set[int]) -> Iterator[bytes]:
        """All lines, also those added since, without the numbers in ``over``."""
        return (line for number, line in enumerate(self.lines(), 1) if number not in over)

    def closed_path(self) -> Path | None:
        """Where the file is, if it is closed; None while it may be added to, and when it is gone."""
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
    """Put ``lines`` in the place of a closed file; without any it goes. One that is gone meanwhile stays so."""
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
    """Remove a file for room; returns the letters in it. Never between the two steps of a replacement."""
    with _files_locked(path.parent):
        dropped = sum(1 for _ in read_lines(path))
        path.unlink(missing_ok=True)
    return dropped


def give_to_owner_of(folder: Path, fd: int) -> None:
    """Give a file that root makes to the user whose daemon owns the folder. Only for a file just judged."""
    found = folder.stat()
    if os.geteuid() == 0:
        os.fchown(fd, found.st_uid, found.st_gid)


def make_spool(folder: Path) -> None:
    """Make the folder where it is absent. Root gives it to the owner of the folder above. OSError."""
    if make_folder(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            give_to_owner_of(folder.parent, fd)
        finally:
            os.close(fd)


def owners_of(folder: Path) -> tuple[int, ...]:
    """The user whose files are believed in the folder beside this one's: its owner, when this is root."""
    return (folder.stat().st_uid,) if os.geteuid() == 0 else ()


def check_may_replay(folder: Path) -> None:
    """Raises AnothersLetters unless this is root or the owner of the folder."""
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
    """Remove the temporary file of a replay that was killed while it replaced one. Only under the lock of replays."""
    for path in folder.glob(f".*{SUFFIX}.new"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _files_locked(folder: Path) -> Iterator[None]:
    """Held for as long as it takes to look at one name and change it.

    The lock is the folder's: a file for it could belong to another user, who replayed first.
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
        return False  # somebody else was quicker
    return True


def _is_file(path: Path) -> bool:
    """False for a link, a folder or a pipe of that name, and for what is gone."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _closed(path: Path) -> Path:
    return path.with_suffix("") if path.suffix == OPEN_SUFFIX else path


def _begun_ms(path: Path) -> tuple[int, str]:
    digits = path.name.partition(".")[0].rpartition("-")[2]
    return (int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0), path.name
