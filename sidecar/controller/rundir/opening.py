"""Opens the daemon's segment at its start: that of the previous daemon if it has content, else a new one.

``main`` calls it once, before the controller's loop runs.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import Final, NamedTuple

from sidecar.controller.rundir.earlier_log import EarlierLog, check_free_space, check_is_on_disk
from sidecar.controller.rundir.earlier_segment import EarlierSegment, find_segment, remove_overruled
from sidecar.controller.rundir.published import read_json
from sidecar.controller.rundir.run_dir import RunDir, RunDirError
from sidecar.controller.rundir.segment_store import SegmentStore, describe
from sidecar.shm.disk import memory_file_system
from sidecar.shm.recovery import describe_undelivered, has_content
from sidecar.shm.segment import Segment, SegmentError

log = logging.getLogger(__name__)

_LOGGED: Final = "accept"
"""The value of pool.sync with which accepted records are logged on disk."""


class PoolSize(NamedTuple):
    """The configured size of a new segment."""

    page_bytes: int
    buffer_memory_bytes: int
    clients_max: int


def open_segment(
    run_dir: RunDir, size: PoolSize, *, configured_path: str, instance_id: bytes, sync: str, workers: int
) -> SegmentStore:
    """The segment of the previous daemon if it has content, else a new one.

    The caller has made sure that no earlier process is alive. A segment of ours that cannot be read is renamed, never
    overwritten. After a crash of the host the log next to ``configured_path`` is used, and the segment is restored from
    it. Raises RunDirError with a sentence for the user, for example for lack of space or another daemon's file.
    """
    if sync == _LOGGED:
        check_is_on_disk(configured_path)
    opening = _Opening(run_dir, size, configured_path, instance_id, sync, workers)
    opening.log_lost_segment()
    found = opening.find()
    return opening.make() if found is None else opening.take_over(found)


class _Opening:
    """One start: the segment's path, the path that the previous daemon wrote down, and the logs next to both."""

    def __init__(
        self,
        run_dir: RunDir,
        size: PoolSize,
        configured_path: str,
        instance_id: bytes,
        sync: str,
        workers: int,
    ) -> None:
        self._run_dir = run_dir
        self._size = size
        self._configured_path = configured_path
        self._instance_id = instance_id
        self._is_logged = sync == _LOGGED
        self._workers = workers
        self._path = (
            Path(configured_path) if configured_path else run_dir.default_segment_path(instance_id.hex())
        )
        before = read_json(run_dir.files.segment_json)
        self._recorded = Path(before["path"]) if before and isinstance(before.get("path"), str) else None
        self._own_log = EarlierLog(configured_path)
        self._old_log = _log_of_earlier_path(self._recorded, self._path)
        is_old = self._old_log is not None and not self._own_log.has_entries
        self._left_log = self._old_log if is_old and self._old_log is not None else self._own_log
        """The log whose records have to be delivered."""

    def log_lost_segment(self) -> None:
        if self._recorded is not None and not self._recorded.exists() and not self._left_log.has_entries:
            log.warning(
                "The segment %s of the previous daemon is gone: it was deleted, or the host was rebooted. "
                "Its records cannot be delivered; its clients get an error for each.",
                self._recorded,
            )

    def find(self) -> EarlierSegment | None:
        """The segment with content, at the path that the previous daemon wrote down or at the configured one."""
        paths = (self._recorded, self._path) if self._recorded else (self._path,)
        for path in dict.fromkeys(paths):
            is_usual = path == self._path or self._run_dir.is_segment_name(path)
            found = find_segment(path, self._left_log, is_recorded=path == self._recorded, is_usual=is_usual)
            if found is not None:
                return found
        return None

    def take_over(self, found: EarlierSegment) -> SegmentStore:
        """Continue with the previous daemon's segment."""
        segment = found.segment
        full = [slot for slot in segment.prepared_slots() if has_content(segment, slot)]
        self._own_log.keep_only(full if self._is_logged else ())
        if self._old_log is not None:
            _end_log(self._old_log, segment)
        left = describe_undelivered(segment)
        store = SegmentStore(
            segment,
            found.path,
            found.fd,
            log_folder=self._own_log.folder,
            inherited=describe(left) if left else "clients and no undelivered records",
        )
        log.log(
            logging.WARNING if left else logging.INFO,
            "Continuing with the segment %s of the previous daemon: it holds %s.",
            store.path,
            store.inherited,
        )
        self._log_other_sizes(store)
        if found.path != self._recorded:
            try:
                _publish(self._run_dir, found.path)
            except RunDirError:
                store.leave()
                raise
        return store

    def _log_other_sizes(self, store: SegmentStore) -> None:
        page_bytes, buffer_memory_bytes, clients_max = self._size
        sizes = {
            "buffer.memory": (store.buffer_memory_bytes, buffer_memory_bytes // page_bytes * page_bytes),
            "pool.page_bytes": (store.segment.page_bytes, page_bytes),
            "daemon.clients_max": (store.segment.layout.clients_max, clients_max),
        }
        differing = [
            f"{name} is {has}, not {wanted}" for name, (has, wanted) in sizes.items() if has != wanted
        ]
        if differing:
            log.warning(
                "In this segment %s. The configuration counts from the next start after a clean stop: "
                "kafka-sidecar drain, then restart the daemon.",
                ", ".join(differing),
            )

    def make(self) -> SegmentStore:
        """Make a new segment, with the records of the log if there are any. Logs that it replaces are ended last."""
        segment = self._create()
        try:
            if self._is_logged:
                check_free_space(
                    self._configured_path, segment.page_count * segment.page_bytes, self._workers
                )
            _publish(self._run_dir, self._path)
        except RunDirError:
            segment.close()
            self._path.unlink(missing_ok=True)  # the log that it was restored from still exists
            raise
        lock_fd = os.dup(segment.fd)  # of the file that was made, whatever file has its name now
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if self._left_log.has_entries and not self._is_logged:
            _end_log(self._left_log, segment)
        if self._old_log is not None:
            _end_log(self._old_log, segment)
            if self._recorded is not None and self._left_log is self._old_log:
                remove_overruled(self._recorded)
        return SegmentStore(segment, self._path, lock_fd, log_folder=self._own_log.folder)

    def _create(self) -> Segment:
        sizes = self._size._asdict()
        if self._left_log.has_entries:
            return self._left_log.restore(self._path, **sizes)
        self._left_log.clear()
        try:
            self._path.unlink(missing_ok=True)  # one of another boot, which the log replaces
            return Segment.create(self._path, **sizes, instance_id=self._instance_id)
        except (SegmentError, OSError) as error:
            sentence = f"The segment {self._path} cannot be made: {error}".rstrip(".")
            raise RunDirError(f"{sentence}.") from None


def _publish(run_dir: RunDir, path: Path) -> None:
    """Write the path of the segment, for the next daemon. Raises RunDirError."""
    try:
        run_dir.files.publish_segment(path)
    except OSError as error:
        raise RunDirError(
            f"Run dir {run_dir.path} cannot be written ({error.strerror}), so the next daemon would not find this "
            "one's segment: make room there, or choose another with --run-dir."
        ) from None


def _log_of_earlier_path(recorded: Path | None, path: Path) -> EarlierLog | None:
    """The log of the previous daemon if its ``pool.path`` was another one. It must not be restored a second time if
    that path is configured again.
    """
    if recorded is None or recorded == path or memory_file_system(recorded):
        return None
    found = EarlierLog(str(recorded))
    return found if found.has_entries else None


def _end_log(log_: EarlierLog, segment: Segment) -> None:
    """End a log that no worker continues, after its records have reached the segment's disk."""
    segment.flush()
    log_.clear()
