"""Checks whether a folder or file is ours: only then may its contents be trusted, as no other user can have written
it.

The start of the controller and RunDir call it, before anything is trusted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

LINKS_MAX: Final = 40
"""The same limit as in the kernel's path walk."""
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class NotOurs(RuntimeError):
    """Raised with a sentence for the user: path, owner, mode, and what to do."""


def check_folder(path: Path) -> list[Path]:
    """Raises NotOurs unless ``path`` is a folder of this user that no other user may write.

    Every folder and symbolic link on the way must belong to this user or to root, as its owner decides where it leads.
    Returns the folders above it in which every user, or a group, may rename entries of others. Raises OSError when one
    cannot be read.
    """
    loose: list[Path] = []
    for at, found, is_last in _way(path):
        if not is_last and found.st_uid not in {0, os.geteuid()}:
            what = "is a symbolic link" if stat.S_ISLNK(found.st_mode) else "is somebody else's folder"
            raise NotOurs(_sentence(path, at, found, what))
        if not is_last and _lets_others_rename(found):
            loose.append(at)
    at = path.resolve()
    found = at.lstat()
    if found.st_uid != os.geteuid():
        raise NotOurs(_sentence(path, at, found, "is somebody else's folder"))
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise NotOurs(
            _sentence(
                path, at, found, "may be written by others", f"remove that permission (chmod go-w {at})"
            )
        )
    return loose


def replacers(path: Path) -> list[str]:
    """Other users that may replace the file at ``path``, each as the beginning of a sentence.

    These are users, apart from this one and root, that own a folder or a link on the way, or may write in a folder
    there. The way ends at a missing folder. Raises OSError when one cannot be read.
    """
    found: list[str] = []
    try:
        for at, status, _ in _way(path.parent):
            if status.st_uid not in {0, os.geteuid()}:
                found.append(f"uid {status.st_uid}, who owns {at}, may")
            elif _lets_others_rename(status):
                everybody = status.st_mode & stat.S_IWOTH
                who = "every user" if everybody else f"every user of group {status.st_gid}"
                found.append(f"{who} may, since {at} has mode {_mode(status)},")
    except FileNotFoundError:
        return found
    return found


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """(path, stat, is last) of each folder and symbolic link on the way to a folder, and last that folder itself.

    Raises OSError for a path that cannot be read or is not a folder, and for too many links.
    """
    pending = list(reversed(Path(os.path.abspath(path)).parts[1:]))  # noqa: PTH100 - links are walked one by one
    at, links = Path("/"), 0
    while pending:
        part = pending.pop()
        if part == "..":
            at = at.parent
            continue
        at /= part
        found = at.lstat()
        if stat.S_ISLNK(found.st_mode):
            yield at, found, False
            links += 1
            if links > LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(at))
            target = at.readlink()
            pending += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            at = Path("/") if target.is_absolute() else at.parent
        elif not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(at))
        else:
            yield at, found, not pending


def _lets_others_rename(found: os.stat_result) -> bool:
    """Whether users other than the owner and root may rename entries of a folder.

    This process's primary group does not count: on systems where each user has a group, folders are often writable by
    it.
    """
    if found.st_mode & stat.S_ISVTX or stat.S_ISLNK(found.st_mode):
        return False
    by_group = found.st_mode & stat.S_IWGRP and found.st_gid not in {0, os.getegid()}
    return bool(found.st_mode & stat.S_IWOTH or by_group)


def check_entries(folder: Path, names: Iterable[str], *, may_be_links: Iterable[str] = ()) -> None:
    """Raises NotOurs if another user has put an entry with one of ``names`` into ``folder``.

    A symbolic link counts as made by another user unless its name is in ``may_be_links``, as the daemon makes none.
    """
    for name in names:
        try:
            found = (folder / name).lstat()
        except FileNotFoundError:
            continue
        if found.st_uid not in {0, os.geteuid()}:
            raise NotOurs(_sentence(folder, folder / name, found, "is somebody else's", "remove it"))
        if stat.S_ISLNK(found.st_mode) and name not in may_be_links:
            raise NotOurs(_sentence(folder, folder / name, found, "is a symbolic link", "remove it"))


def check_file(fd: int, path: Path) -> None:
    """Raises NotOurs unless the open file is a regular file of this user, with one name, that no other user
    may write.
    """
    found = os.fstat(fd)
    is_private = found.st_nlink == 1 and not found.st_mode & _WRITABLE_BY_OTHERS
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or not is_private:
        kind = "is a file with" if stat.S_ISREG(found.st_mode) else "is not a regular file, has"
        names = "one name" if found.st_nlink == 1 else f"{found.st_nlink} names (hard links)"
        raise NotOurs(
            f"{path} {kind} {names}, belongs to uid {found.st_uid} and has mode {_mode(found)}: its contents cannot be "
            f"trusted by uid {os.geteuid()}. Move it away, or run as its owner. If nobody else can have changed it, "
            "chmod 600 is enough."
        )


def _sentence(
    folder: Path, at: Path, found: os.stat_result, what: str, do: str = "choose another with --run-dir"
) -> str:
    where = "" if at == folder else f" ({at})"
    return (
        f"Run dir {folder} cannot be trusted{where}: it {what}, of uid {found.st_uid} with mode {_mode(found)}, and "
        f"this is uid {os.geteuid()}; {do}."
    )


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"
