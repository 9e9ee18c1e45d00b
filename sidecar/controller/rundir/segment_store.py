"""The controller's view of the shared segment: finds or creates it, assigns slots, and removes it at the end."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

from sidecar.common.wording import counted
from sidecar.controller.rundir.left_log import LeftLog, check_place, check_room
from sidecar.controller.rundir.own_files import NotOurs, check_file
from sidecar.controller.rundir.run_dir import RunDir, RunDirError, read_json
from sidecar.shm.chain_table import FreeRows
from sidecar.shm.client_index import ClientIndex
from sidecar.shm.disk import Folder, memory_file_system
from sidecar.shm.layout import SLOT_COUNT
from sidecar.shm.private_files import close_to_others
from sidecar.shm.reclaim import reclaim_slot
from sidecar.shm.recovery import describe_undelivered, has_content, last_incarnation
from sidecar.shm.segment import Segment, SegmentError

log = logging.getLogger(__name__)

NAMED_MAX = 3
LOCK_WAIT_S = 3.0


class SegmentStore:
    """Owns the daemon's Segment. Belongs to the controller's main thread."""

    def __init__(
        self, segment: Segment, path: Path, lock_fd: int, *, log_folder: Folder | None = None
    ) -> None:
        self.segment = segment
        self.log_folder = log_folder
        """The folder of the logs of accepted records, whether it exists or not."""
        self.path = path
        self._lock_fd = lock_fd
        self._incarnation = last_incarnation(segment)
        self._clients = ClientIndex(segment)
        self._free_rows = FreeRows()
        self.inherited = ""
        """A description of the records that the previous daemon left in it; empty for a new segment."""

    @classmethod
    def open(
        cls,
        run_dir: RunDir,
        *,
        configured_path: str,
        page_bytes: int,
        buffer_memory_bytes: int,
        clients_max: int,
        instance_id: bytes,
        sync: str,
        workers: int,
    ) -> SegmentStore:
        """The segment of the previous daemon if it has content, else a new one.

        The caller has made sure that no earlier process is alive. A segment of ours that cannot be read is renamed,
        never overwritten. After a crash of the host the log beside ``configured_path`` is used, and the segment is
        restored from it. Raises RunDirError with a sentence for the user, for example for lack of room or another
        daemon's file.
        """
        if sync == "accept":
            check_place(configured_path)
        own_log = LeftLog(configured_path)
        path = Path(configured_path) if configured_path else run_dir.default_segment_path(instance_id.hex())
        before = read_json(run_dir.segment_json)
        recorded = Path(before["path"]) if before and isinstance(before.get("path"), str) else None
        old_log = _log_beside_earlier_path(recorded, path)
        left_log = old_log if old_log is not None and not own_log.has_entries else own_log
        if recorded is not None and not recorded.exists() and not left_log.has_entries:
            log.warning(
                "The segment %s of the previous daemon is gone: it was deleted, or the host was rebooted. "
                "Its records cannot be delivered; its clients get an error for each.",
                recorded,
            )
        found = None
        for old in dict.fromkeys((recorded, path) if recorded else (path,)):
            if found is None:
                is_usual = old == path or run_dir.is_segment_name(old)
                found = _find(cls, old, left_log, is_recorded=old == recorded, is_usual=is_usual)
        if found is not None:
            full = [slot for slot in found.segment.prepared_slots() if found.has_content(slot)]
            own_log.keep_only(full if sync == "accept" else ())
            found.log_folder = own_log.folder
            if old_log is not None:
                _end(old_log, found.segment)
            found._say_what_is_found(page_bytes, buffer_memory_bytes, clients_max)
            if found.path != recorded:
                try:
                    _publish(run_dir, found.path)
                except RunDirError:
                    found.leave()
                    raise
            return found
        segment = _make(
            path,
            left_log,
            page_bytes=page_bytes,
            buffer_memory_bytes=buffer_memory_bytes,
            clients_max=clients_max,
            instance_id=instance_id,
        )
        try:
            if sync == "accept":
                check_room(configured_path, segment.page_count * segment.page_bytes, workers)
            _publish(run_dir, path)
        except RunDirError:
            segment.close()
            path.unlink(missing_ok=True)  # the log that it was restored from still exists
            raise
        lock_fd = os.dup(segment.fd)  # of the file that was made, whatever file has its name now
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if left_log.has_entries and sync != "accept":
            _end(left_log, segment)
        if old_log is not None:
            _end(old_log, segment)
            if recorded is not None and left_log is old_log:
                _remove_overruled(recorded)
        return cls(segment, path, lock_fd, log_folder=own_log.folder)

    @property
    def fd(self) -> int:
        return self._lock_fd

    @property
    def buffer_memory_bytes(self) -> int:
        return self.segment.page_count * self.segment.page_bytes

    def describe_pool(self) -> str:
        """The size and the path of the pool, for the log."""
        pages, page_bytes = self.segment.page_count, self.segment.page_bytes
        return f"Pool of {pages * page_bytes / 2**20:,.0f} MiB ({pages:,} pages of {page_bytes:,} bytes) in {self.path}"

    def worker_slots(self, workers: int) -> list[int]:
        """A slot for each worker: first slots with content, then free ones; more than ``workers`` if necessary."""
        full = [slot for slot in self.segment.prepared_slots() if has_content(self.segment, slot)]
        free = [slot for slot in range(SLOT_COUNT) if slot not in full]
        for slot in free:
            if self.segment.is_slot_prepared(slot):
                reclaim_slot(self.segment, slot)
        return full + free[: max(0, workers - len(full))]

    def prepare(self, slot: int) -> None:
        self.segment.prepare_slot(slot)

    def has_content(self, slot: int) -> bool:
        return has_content(self.segment, slot)

    def slot_of(self, client_id: bytes) -> int | None:
        """The slot that has the client's row, or None."""
        return self._clients.slot_of(client_id)

    def _say_what_is_found(self, page_bytes: int, buffer_memory_bytes: int, clients_max: int) -> None:
        left = describe_undelivered(self.segment)
        self.inherited = describe(left) if left else "clients and no undelivered records"
        log.log(
            logging.WARNING if left else logging.INFO,
            "Going on with the segment %s of the previous daemon: it holds %s.",
            self.path,
            self.inherited,
        )
        sizes = {
            "buffer.memory": (self.buffer_memory_bytes, buffer_memory_bytes // page_bytes * page_bytes),
            "pool.page_bytes": (self.segment.page_bytes, page_bytes),
            "daemon.clients_max": (self.segment.layout.clients_max, clients_max),
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

    def heartbeat(self, slot: int) -> int:
        return self.segment.slot(slot).heartbeat

    def spare(self, slot: int, incarnation: int) -> None:
        self.segment.slot(slot).spared = incarnation

    def spare_holders(self, slots: Iterable[int]) -> None:
        """Note in these slots that their holders were killed by us, before that could be noted."""
        for slot in slots:
            if self.segment.is_slot_prepared(slot):
                self.spare(slot, self.segment.slot(slot).incarnation)

    def total(self, name: str) -> int:
        """A counter, summed over all slots."""
        return sum(self.segment.slot(slot).counters.get(name) for slot in self.segment.prepared_slots())

    def highest(self, name: str) -> int:
        """The highest value of a gauge in any slot."""
        slots = self.segment.prepared_slots()
        return max((self.segment.slot(slot).counters.get(name) for slot in slots), default=0)

    def clients_connected(self, slot: int) -> int:
        """The number of clients attached to the slot's worker, as the worker counts them."""
        return self.segment.slot(slot).counters.get("clients_connected")

    def free_rows(self, slot: int) -> int:
        """The rows for topics that the slot's worker has left."""
        return self._free_rows.of(self.segment, slot)

    def next_incarnation(self) -> int:
        self._incarnation += 1
        return self._incarnation

    def leave(self) -> None:
        """Unmap the segment and leave everything as it is for a successor."""
        self.segment.close()
        os.close(self._lock_fd)

    def close(self) -> str:
        """Unmap the segment, and delete it when nothing is left in it. Returns a description of its remaining records,
        or an empty text.
        """
        left = describe_undelivered(self.segment)
        self.segment.close()
        if not left:
            if self.log_folder is not None:
                self.log_folder.remove_all()  # first: without the segment the logs would be restored
            self.path.unlink(missing_ok=True)
        os.close(self._lock_fd)
        return describe(left) if left else ""


def describe(left: Iterable[tuple[int, str, int, int]]) -> str:
    """A text such as ``1,200 undelivered records (topics a, b)``, from the rows of describe_undelivered."""
    rows = list(left)
    topics = sorted({topic for _, topic, _, _ in rows})
    named = ", ".join(topics[:NAMED_MAX]) + (
        f" and {len(topics) - NAMED_MAX} more" if len(topics) > NAMED_MAX else ""
    )
    records = sum(records for _, _, records, _ in rows)
    return f"{counted(records, 'undelivered record')} ({'topic' if len(topics) == 1 else 'topics'} {named})"


def _make(
    path: Path,
    left_log: LeftLog,
    *,
    page_bytes: int,
    buffer_memory_bytes: int,
    clients_max: int,
    instance_id: bytes,
) -> Segment:
    """A new segment with the records of the log. Raises RunDirError."""
    if left_log.has_entries:
        return left_log.restore(
            path,
            page_bytes=page_bytes,
            buffer_memory_bytes=buffer_memory_bytes,
            clients_max=clients_max,
        )
    left_log.clear()
    try:
        path.unlink(missing_ok=True)  # one of another boot, which the log replaces
        return Segment.create(
            path,
            page_bytes=page_bytes,
            buffer_memory_bytes=buffer_memory_bytes,
            clients_max=clients_max,
            instance_id=instance_id,
        )
    except (SegmentError, OSError) as error:
        raise RunDirError(_sentence(f"The segment {path} cannot be made: {error}")) from None


def _publish(run_dir: RunDir, path: Path) -> None:
    """Write the path of the segment, for the next daemon. Raises RunDirError."""
    try:
        run_dir.publish_segment(path)
    except OSError as error:
        raise RunDirError(
            f"Run dir {run_dir.path} cannot be written ({error.strerror}), so the next daemon would not find this "
            "one's segment: make room there, or choose another with --run-dir."
        ) from None


def _log_beside_earlier_path(recorded: Path | None, path: Path) -> LeftLog | None:
    """The log of the previous daemon if its ``pool.path`` was another one. It must not be restored a second time if
    that path is configured again.
    """
    if recorded is None or recorded == path or memory_file_system(recorded):
        return None
    found = LeftLog(str(recorded))
    return found if found.has_entries else None


def _end(log_: LeftLog, segment: Segment) -> None:
    """End a log that no worker continues, after its records have reached the segment's disk."""
    segment.flush()
    log_.clear()


def _remove_overruled(path: Path) -> None:
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


def _find(
    store: type[SegmentStore], path: Path, left_log: LeftLog, *, is_recorded: bool, is_usual: bool
) -> SegmentStore | None:
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
                path, fd, error, is_recorded=is_recorded, is_usual=is_usual, is_logged=left_log.replaces(path)
            )
            return None
        if left_log.overrules(segment):
            segment.close()
            return None
        segment.begin_boot()
        if any(has_content(segment, slot) for slot in segment.prepared_slots()):
            keep = True
            return store(segment, path, fd, log_folder=left_log.folder)
        segment.close()
        left_log.clear()
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
            f"{path} was replaced while it was looked at: give pool.path a folder that only this user may write."
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
    what = f"{path} is no segment that this version can read ({error})."
    if is_recorded and not is_usual and not Segment.is_one(fd):
        log.error(
            "%s It may be any file, so it stays as it is. If it is a damaged segment, `kafka-sidecar recover %s` "
            "delivers its records. Going on with a new segment.",
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
        "Going on with a new segment.",
        what,
        aside,
    )


def _sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."
