"""EarlierLog: the accept logs that an earlier daemon left next to ``pool.path``, and whether they are needed.

The opening of a segment uses it, before the controller's loop runs.

As long as the host has not crashed, the segment has everything. The logs are needed when the host has crashed (the
segment is from another boot), or when the segment is gone or cannot be read.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from sidecar.controller.rundir.run_dir import RunDirError
from sidecar.shm.accept_log import (
    LogContents,
    accept_log_file_bytes,
    accept_log_folder,
    logged_slots,
    read_log,
)
from sidecar.shm.accept_log_format import FileHeader
from sidecar.shm.disk import Folder, memory_file_system
from sidecar.shm.private_files import close_folder_to_others, make_folder
from sidecar.shm.restore import lineage, next_instance, restore
from sidecar.shm.segment import Segment, SegmentError, current_boot_id

log = logging.getLogger(__name__)

FILES_PER_WORKER = 2
"""The file that is written to, and a spare one for when it is full."""


class EarlierLog:
    """The logs of one ``pool.path``; none without a path. Raises RunDirError with one sentence."""

    def __init__(self, pool_path: str) -> None:
        self.folder = Folder(accept_log_folder(pool_path)) if pool_path else None
        self._contents: dict[int, LogContents] = {}
        if self.folder is not None:
            check_folder(self.folder.path)
            try:
                self._contents = {slot: read_log(self.folder, slot) for slot in logged_slots(self.folder)}
            except OSError as error:
                raise RunDirError(
                    f"The log of accepted records {self.folder.path} cannot be read: {error.strerror}."
                ) from None

    @property
    def has_entries(self) -> bool:
        return any(contents.entries or contents.damage for contents in self._contents.values())

    def replaces(self, path: Path) -> bool:
        """Whether a segment that cannot be read can be restored from these logs."""
        return (
            self.folder is not None and self.folder.path == accept_log_folder(str(path)) and self.has_entries
        )

    def overrules(self, segment: Segment) -> bool:
        """Whether the host has crashed since: the segment's file may then lack records that the logs have.

        Raises RunDirError when the logs have records of another pool, as neither may be dropped.
        """
        owners = {lineage(each.instance_id) for each in self._contents.values() if each.instance_id}
        if lineage(segment.instance_id) in owners:
            return segment.boot_id != current_boot_id()
        if self.has_entries and self.folder is not None:
            raise RunDirError(
                f"{self.folder.path} holds accepted records of another pool than the segment that this run dir "
                "names: give this daemon its own pool.path, or move that folder away."
            )
        return False

    def restore(self, path: Path, *, page_bytes: int, buffer_memory_bytes: int, clients_max: int) -> Segment:
        """A new segment with the records of the logs. The logs stay until the workers have logged its entries again."""
        assert self.folder is not None
        damage = [each for contents in self._contents.values() for each in contents.damage]
        before = next(each.instance_id for each in self._contents.values() if each.instance_id)
        try:
            segment, restored = restore(
                path,
                self._contents,
                page_bytes=page_bytes,
                buffer_memory_bytes=buffer_memory_bytes,
                clients_max=clients_max,
                instance_id=next_instance(before),
            )
        except (SegmentError, OSError) as error:
            raise RunDirError(f"The segment {path} cannot be made again from its log: {error}.") from None
        for each in (*damage, *restored.damage):
            log.error("ALARM: the log of accepted records %s is damaged: %s", self.folder.path, each)
        if damage or restored.damage:
            log.error("The unreadable entries are kept in %s.", self._set_aside(self.folder))
        log.warning(
            "The host has crashed, or the segment is gone: %d accepted records (%d submissions) are taken from %s. "
            "Their brokers may have some of them already, which are then delivered twice. A segment that was set aside "
            "holds no other records.",
            restored.records,
            restored.submissions,
            self.folder.path,
        )
        return segment

    def keep_only(self, slots: Iterable[int]) -> None:
        """Remove the logs of all other slots, which have nothing open according to the segment."""
        if self.folder is None:
            return
        kept = set(slots)
        for name in self.folder.names():
            header = FileHeader.read(self.folder.read(name))
            if header is None or header.slot not in kept:
                self.folder.remove(name)

    def clear(self) -> None:
        if self.folder is not None:
            self.folder.remove_all()

    def _set_aside(self, folder: Folder) -> Path:
        """Link the same files under second names; the workers remove the first ones."""
        aside = folder.path.with_name(f"{folder.path.name}.set-aside-{time.time_ns() // 1_000_000}")
        make_folder(aside)
        for name in folder.names():
            os.link(folder.path / name, aside / name)
        return aside


def check_folder(path: Path) -> None:
    """Check the log folder, as its files become records: no other user may be able to write there. Raises
    RunDirError.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise RunDirError(
            f"The log of accepted records {path} belongs to uid {found.st_uid} with mode "
            f"{stat.S_IMODE(found.st_mode):04o}: it is not a folder of uid {os.geteuid()} that nobody "
            "else may write, so "
            "its records cannot be trusted. Move it away, or choose another pool.path."
        )
    close_folder_to_others(path)


def check_is_on_disk(pool_path: str) -> None:
    """Check that the pool is on a disk, as ``pool.sync = accept`` needs one. Raises RunDirError."""
    kind = memory_file_system(Path(pool_path))
    if kind:
        raise RunDirError(
            f"pool.sync = accept needs a disk, and pool.path {pool_path} is on a {kind}, which a crash of the host "
            "empties: choose another pool.path, or pool.sync = none."
        )


def check_free_space(pool_path: str, pool_bytes: int, workers: int) -> None:
    """Check that there is room for the first files of the workers. Raises RunDirError."""
    folder = accept_log_folder(pool_path)
    needed = FILES_PER_WORKER * workers * accept_log_file_bytes(pool_bytes)
    disk = os.statvfs(folder.parent)
    room = disk.f_bavail * disk.f_frsize
    if room < needed:
        raise RunDirError(
            f"The disk of pool.path {pool_path} has {room / 1_048_576:.0f} MiB free, and the log of accepted "
            f"records (pool.sync = accept) begins with {needed / 1_048_576:.0f} MiB: make room, or "
            "choose another pool.path."
        )
