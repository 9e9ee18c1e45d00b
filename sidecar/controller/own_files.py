"""Whether a folder or file is ours: who else could have made it, or could write there, decides what may be believed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LINKS_MAX: Final = 40
"""As in the kernel's own path walk."""
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class NotOurs(RuntimeError):
    """The text is the sentence for the user: path, owner, mode, and what to do."""


def check_folder(path: Path) -> list[Path]:
    """Raises NotOurs unless ``path`` is a folder of this user that nobody else may write.

    Every folder and symbolic link on the way must be this user's or root's: its owner decides where it leads. Returns
    folders above it in which every user, or a group, may rename others' entries. OSError when it cannot be looked at.
    """
    loose: list[Path] = []
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
            links += 1
            if found.st_uid not in {0, os.geteuid()} or links > LINKS_MAX:
                raise NotOurs(_sentence(path, at, found, "is a symbolic link"))
            target = at.readlink()
            pending += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            at = Path("/") if target.is_absolute() else at.parent
        elif not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(20, os.strerror(20), str(at))
        elif pending and found.st_uid not in {0, os.geteuid()}:
            raise NotOurs(_sentence(path, at, found, "is somebody else's folder"))
        elif pending and _lets_others_rename(found):
            loose.append(at)
    found = at.lstat()
    if found.st_uid != os.geteuid():
        raise NotOurs(_sentence(path, at, found, "is somebody else's folder"))
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise NotOurs(
            _sentence(path, at, found, "may be written by others", f"take that right away (chmod go-w {at})")
        )
    return loose


def _lets_others_rename(found: os.stat_result) -> bool:
    """Whether users beside the owner and root may rename what stands in a folder.

    This process's own primary group does not count: where each user has a group, its folders are often open to it.
    """
    if found.st_mode & stat.S_ISVTX:
        return False
    by_group = found.st_mode & stat.S_IWGRP and found.st_gid not in {0, os.getegid()}
    return bool(found.st_mode & stat.S_IWOTH or by_group)


def check_entries(folder: Path, names: Iterable[str], *, may_be_links: Iterable[str] = ()) -> None:
    """Raises NotOurs for what stands in ``folder`` under one of ``names`` and was put there by somebody else.

    A symbolic link counts as put there by somebody else unless its name is in ``may_be_links``: we make none.
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
    """Raises NotOurs unless the open file is a regular one of this user, with one name, that nobody else may write."""
    found = os.fstat(fd)
    is_private = found.st_nlink == 1 and not found.st_mode & _WRITABLE_BY_OTHERS
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or not is_private:
        kind = "is a file with" if stat.S_ISREG(found.st_mode) else "is no regular file, has"
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
