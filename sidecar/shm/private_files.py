"""Files and folders for one user: created with closed modes whatever the umask, and opened only if they are safe.

A name in a folder can be a symbolic link, a hard link of another file, or a pipe that blocks the process that opens
it. So a file is opened with O_NOFOLLOW and O_NONBLOCK, and its descriptor is checked before it is read, written or
passed on.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Final

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700
OPEN_TO_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_SAFE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def create_private(path: Path | str, flags: int = os.O_WRONLY, mode: int = PRIVATE_FILE) -> int:
    """Create a file with exactly ``mode`` and return its descriptor. Raises FileExistsError if the name is taken."""
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | _SAFE, mode & PRIVATE_FILE)
    os.fchmod(fd, mode)  # the umask may have removed rights, even the owner's
    return fd


def replacing(path: Path, temporary: Path, mode: int = PRIVATE_FILE) -> int:
    """Descriptor of a new ``temporary`` file that will be renamed to ``path``. Removes one that an earlier process
    left.
    """
    assert path.parent == temporary.parent, "a rename stays in its folder"
    temporary.unlink(missing_ok=True)
    return create_private(temporary, os.O_WRONLY, mode)


def open_private(path: Path | str, flags: int, *, owners: Collection[int] = (), make: bool = False) -> int:
    """Open a file that belongs to this user alone, and return its descriptor. ``make``: create it if it is absent.

    Raises PermissionError as check_private does, and OSError as os.open does (ELOOP: a symbolic link). Rights of
    others are removed.
    """
    fd = os.open(path, flags | (os.O_CREAT if make else 0) | _SAFE, PRIVATE_FILE)
    try:
        found = check_private(fd, path, owners)
        if found.st_mode & OPEN_TO_OTHERS and os.geteuid() in {0, found.st_uid}:
            os.fchmod(fd, PRIVATE_FILE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_private(fd: int, path: Path | str, owners: Collection[int] = ()) -> os.stat_result:
    """Check an open file. Raises PermissionError unless it is a regular file of this user or ``owners`` with
    one name.
    """
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid in {os.geteuid(), *owners} and found.st_nlink == 1:
        return found
    kind = "" if stat.S_ISREG(found.st_mode) else "it is not a regular file, "
    names = "" if found.st_nlink == 1 else f"it has {found.st_nlink} names (hard links), "
    raise PermissionError(
        errno.EPERM,
        f"{kind}{names}it belongs to uid {found.st_uid} and this is uid {os.geteuid()}: it is not used; move it away",
        str(path),
    )


def make_folder(path: Path, mode: int = PRIVATE_FOLDER) -> bool:
    """Make a folder with exactly ``mode``, and missing parents with 0755. Raises OSError.

    True if it is new. An existing folder keeps its mode.
    """
    if path.is_dir():
        return False
    if not path.parent.exists():
        make_folder(path.parent, 0o755)
    try:
        path.mkdir(mode=PRIVATE_FOLDER & mode)
    except FileExistsError:
        if path.is_dir():
            return False
        raise
    path.chmod(mode)
    return True


def close_to_others(fd: int, mode: int = PRIVATE_FILE) -> int:
    """Remove rights of others beyond ``mode`` from an open file or folder of this user. Returns its previous mode, 0
    if nothing was open to others.
    """
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or not found.st_mode & OPEN_TO_OTHERS & ~mode:
        return 0
    os.fchmod(fd, mode)
    return stat.S_IMODE(found.st_mode)


def close_file_to_others(
    path: Path | str, mode: int = PRIVATE_FILE, *, dir_fd: int | None = None
) -> list[str]:
    """As close_to_others, by path. Returns [``name (old mode)``] if it was open to others. Ignores other than regular
    files.
    """
    try:
        fd = os.open(path, os.O_RDONLY | _SAFE, dir_fd=dir_fd)
    except OSError:  # gone, a link, a socket, or no right to open it
        return []
    try:
        before = close_to_others(fd, mode) if stat.S_ISREG(os.fstat(fd).st_mode) else 0
    finally:
        os.close(fd)
    return [f"{Path(path).name} ({before:04o})"] if before else []


def close_folder_to_others(folder: Path) -> list[str]:
    """As close_file_to_others, for a folder and its files. Ignores a folder that is absent or of another user."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
    except OSError:
        return []
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return []
        before = close_to_others(fd, PRIVATE_FOLDER)
        closed = [f"{folder.name} ({before:04o})"] if before else []
        for name in sorted(os.listdir(fd)):  # noqa: PTH208 - its path may lead elsewhere by now
            closed += close_file_to_others(name, dir_fd=fd)
    finally:
        os.close(fd)
    return closed
