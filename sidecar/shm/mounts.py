"""Mounts: finds the file system of a path, from /proc/self/mountinfo (Linux, proc_pid_mountinfo(5)).

Over /proc: the controller at its start, and a worker that opens its accept log.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

_MOUNTINFO: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of mountinfo::

    36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
               root  point                       kind source    options
    """

    point: Path
    root: str
    """The mounted folder of the file system; ``/`` for all of it."""
    kind: str
    source: str
    options: str
    """Options of the file system, not of this mount."""


def read_mounts(text: str | None = None) -> list[Mount]:
    """All mounts that this process sees. Of several at one point, the newest comes last."""
    found = []
    for line in (_MOUNTINFO.read_text() if text is None else text).splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, root, point, *_ = before.split(" ")
        kind, source, options = after.split(" ")[:3]
        found.append(Mount(Path(_plain(point)), _plain(root), kind, source, options))
    return found


def mount_of(path: Path, mounts: list[Mount] | None = None) -> Mount:
    """Mount of ``path``, or its future one if it does not exist yet."""
    nearest = path.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    nearest = nearest.resolve()
    above = [
        each
        for each in (read_mounts() if mounts is None else mounts)
        if each.point == nearest or each.point in nearest.parents
    ]
    return max(enumerate(above), key=lambda each: (len(each[1].point.parts), each[0]))[1]


def _plain(text: str) -> str:
    r"""Decode spaces and similar characters, which are written as octal numbers: ``\040``."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
