"""The segment file of an earlier daemon: opened only if it is ours, locked, and put away if it cannot be used.

The opening of a segment uses it, before the controller's loop runs.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from pathlib import Path
from typing import NamedTuple

from sidecar.controller.rundir.earlier_log import EarlierLog
from sidecar.controller.rundir.own_files import NotOurs, check_file
from sidecar.controller.rundir.run_dir import RunDirError
from sidecar.shm.private_files import close_to_others
from sidecar.shm.recovery import has_content
from sidecar.shm.segment import Segment, SegmentError

log = logging.getLogger(__name__)

LOCK_WAIT_S = 3.0


class EarlierSegment(NamedTuple):
    """A segment with content. ``fd`` holds its lock."""

    segment: Segment
    path: Path
    fd: int


def find_segment(
    path: Path, earlier_log: EarlierLog, *, is_recorded: bool, is_usual: bool
) -> EarlierSegment | None:
    """The segment at ``path`` if it has content. An empty one is removed, and an unreadable one renamed.

    A segment that the log replaces stays until the new one exists. ``is_usual``: this daemon gives its segments such
    names. A file with another name is changed only if it begins like a segment.
    """
    if not os.path.lexists(path):
        return None
    fd = open_ours(path)
    keep = False
    try:
        _lock(fd, path)
        try:
            segment = Segment.attach(fd)
        except SegmentError as error:
            _put_away(
                path,
                fd,
                error,
                is_recorded=is_recorded,
                is_usual=is_usual,
                is_logged=earlier_log.replaces(path),
            )
            return None
        if earlier_log.overrules(segment):
            segment.close()
            return None
        segment.begin_boot()
        if any(has_content(segment, slot) for slot in segment.prepared_slots()):
            keep = True
            return EarlierSegment(segment, path, fd)
        segment.close()
        earlier_log.clear()
        _check_name(path, fd)
        path.unlink(missing_ok=True)
        return None
    finally:
        if not keep:
            os.close(fd)


def open_ours(path: Path) -> int:
    """The descriptor of a regular file with one name that only this user may write. Raises RunDirError.

    Its path may come from segment.json, so nothing is assumed: links and other users' files are refused.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise RunDirError(f"The segment {path} of the earlier daemon cannot be opened: {why}.") from None
    try:
        check_file(fd, path)
    except NotOurs as error:
        os.close(fd)
        raise RunDirError(str(error)) from None
    if close_to_others(fd):
        log.warning("The segment %s could be read by others: it is this user's alone now.", path)
    return fd


def _check_name(path: Path, fd: int) -> None:
    """Raises RunDirError when ``path`` is no longer the file that was opened and checked."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    own = os.fstat(fd)
    if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
        raise RunDirError(
            f"{path} was replaced while it was checked: give pool.path a folder that only this user may write."
        )


def _lock(fd: int, path: Path) -> None:
    """Lock the file. A worker that was only just started may still have it open; it ends when it finds no
    controller.
    """
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RunDirError(
                    f"The segment {path} is in use by another daemon: give this one its own pool.path."
                ) from None
        time.sleep(0.02)  # flock has no timeout


def _put_away(
    path: Path, fd: int, error: SegmentError, *, is_recorded: bool, is_usual: bool, is_logged: bool
) -> None:
    what = f"{path} is not a segment that this version can read ({error})."
    if is_recorded and not is_usual and not Segment.is_one(fd):
        log.error(
            "%s It may be any file, so it stays as it is. If it is a damaged segment, `kafka-sidecar recover %s` "
            "delivers its records. Continuing with a new segment.",
            what,
            path,
        )
        return
    _check_name(path, fd)
    if Segment.is_unfinished(fd):
        # The version is written last: its creator died before any worker could have mapped it.
        path.unlink(missing_ok=True)
        return
    if not is_recorded and not Segment.is_one(fd):
        raise RunDirError(f"{what} Nothing is overwritten: move the file away, or choose another pool.path.")
    how = "superseded" if is_logged else "set-aside"
    aside = path.with_name(f"{path.name}.{how}-{time.time_ns() // 1_000_000}")
    path.rename(aside)
    if is_logged:
        log.error("%s It is kept as %s; its accepted records are restored from the log.", what, aside)
        return
    log.error(
        "%s Its records are kept as %s and not delivered (`kafka-sidecar recover` lists and delivers them). "
        "Continuing with a new segment.",
        what,
        aside,
    )


def remove_overruled(path: Path) -> None:
    """Remove the segment that was replaced by one restored from the log. A file that is not a segment stays."""
    if not os.path.lexists(path):
        return
    fd = open_ours(path)
    try:
        Segment.attach(fd).close()
        _check_name(path, fd)
        path.unlink(missing_ok=True)
    except SegmentError:
        log.warning("%s was the segment of the earlier daemon and cannot be read. It stays there.", path)
    finally:
        os.close(fd)
