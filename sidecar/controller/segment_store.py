"""The shared segment from the controller's side: found again or made anew, slots given out, removed at the
end."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from sidecar.controller.run_dir import RunDir, RunDirError, read_json
from sidecar.shm.layout import SLOT_COUNT
from sidecar.shm.segment import Segment, SegmentError, describe_undelivered

log = logging.getLogger(__name__)

NAMED_MAX = 3


class SegmentStore:
    """Owns the daemon's Segment. Belongs to the controller's main thread."""

    def __init__(self, segment: Segment, path: Path, lock_fd: int) -> None:
        self.segment = segment
        self.path = path
        self._lock_fd = lock_fd
        self._incarnation = 0

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
    ) -> SegmentStore:
        """Make a fresh segment; an older one of this run dir or path is removed only when nothing is left
        in it.

        Raises RunDirError with the sentence for the user: records are left, no room, or another daemon's
        file.
        """
        path = Path(configured_path) if configured_path else run_dir.default_segment_path(instance_id.hex())
        before = read_json(run_dir.segment_json)
        older = {Path(before["path"])} if before and isinstance(before.get("path"), str) else set()
        for old in older | {path}:
            _remove_if_empty(old)
        try:
            segment = Segment.create(
                path,
                page_bytes=page_bytes,
                buffer_memory_bytes=buffer_memory_bytes,
                clients_max=clients_max,
                instance_id=instance_id,
            )
        except (SegmentError, OSError) as error:
            raise RunDirError(_sentence(f"The segment {path} cannot be made: {error}")) from None
        lock_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        run_dir.publish_segment(path)
        return cls(segment, path, lock_fd)

    @property
    def fd(self) -> int:
        return self._lock_fd

    def take_slot(self, busy: set[int]) -> int:
        """The first slot that no live worker has and no dead one left records in."""
        for slot in range(SLOT_COUNT):
            if slot not in busy:
                self.segment.prepare_slot(slot)
                return slot
        raise RunDirError(
            f"All {SLOT_COUNT} slots of the segment hold records of dead workers; stop the daemon and "
            f"start it again."
        )

    def slot_died(self, slot: int) -> bool:
        left = describe_undelivered(self.segment, slots=[slot])
        if left:
            log.error("Slot %d of a dead worker keeps %s.", slot, describe(left))
            return True
        self.segment.reclaim_slot(slot)
        return False

    def heartbeat(self, slot: int) -> int:
        return self.segment.slot(slot).heartbeat

    def total(self, name: str) -> int:
        """One counter summed over all slots."""
        return sum(self.segment.slot(slot).counters.get(name) for slot in self.segment.prepared_slots())

    def clients_connected(self, slot: int) -> int:
        """Clients attached to the slot's worker, as it counts them."""
        return self.segment.slot(slot).counters.get("clients_connected")

    def next_incarnation(self) -> int:
        self._incarnation += 1
        return self._incarnation

    def close(self) -> str:
        """Unmap; unlink when nothing is left in it. Returns what is left as text, or nothing."""
        left = describe_undelivered(self.segment)
        self.segment.close()
        if not left:
            self.path.unlink(missing_ok=True)
        os.close(self._lock_fd)
        return describe(left) if left else ""


def describe(left: Iterable[tuple[int, str, int, int]]) -> str:
    """``1,200 undelivered records (topics a, b)`` from describe_undelivered's rows."""
    rows = list(left)
    topics = sorted({topic for _, topic, _, _ in rows})
    named = ", ".join(topics[:NAMED_MAX]) + (
        f" and {len(topics) - NAMED_MAX} more" if len(topics) > NAMED_MAX else ""
    )
    records = sum(records for _, _, records, _ in rows)
    what = "record" if records == 1 else "records"
    return f"{records:,} undelivered {what} ({'topic' if len(topics) == 1 else 'topics'} {named})"


def _remove_if_empty(path: Path) -> None:
    if not path.exists():
        return
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RunDirError(
            f"The segment {path} of the daemon before cannot be opened: {error.strerror}."
        ) from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirError(
                f"The segment {path} is in use by another daemon: give this one its own pool.path."
            ) from None
        try:
            segment = Segment.attach(path)
        except SegmentError as error:
            if Segment.is_unfinished(path):
                # The version is stamped last: its maker died before any worker could have mapped it.
                path.unlink()
                return
            raise RunDirError(
                _sentence(f"{path} is no segment that this version can read ({error})")
                + " Nothing is overwritten: move the file away, or start the version that made it."
            ) from None
        left = describe_undelivered(segment)
        segment.close()
        if left:
            raise RunDirError(
                f"The segment {path} of the daemon before holds {describe(left)}: this version cannot "
                f"take them "
                "over and refuses to overwrite them. Start with another --run-dir, or give them up by "
                f"removing that file."
            )
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    finally:
        os.close(fd)


def _sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."
