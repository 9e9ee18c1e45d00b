"""The controller's view of the shared segment: assigns slots, reads counters, and removes it at the end.

The Daemon owns it, on the controller's loop.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sidecar.common.wording import counted
from sidecar.shm.chain_table import FreeRows
from sidecar.shm.client_index import ClientIndex
from sidecar.shm.disk import Folder
from sidecar.shm.lane_records import LaneRecords
from sidecar.shm.layout import SLOT_COUNT
from sidecar.shm.reclaim import reclaim_slot
from sidecar.shm.recovery import describe_undelivered, has_content, last_incarnation
from sidecar.shm.segment import Segment

NAMED_MAX = 3


class SegmentStore:
    """Owns the daemon's Segment. Belongs to the controller's main thread."""

    def __init__(
        self,
        segment: Segment,
        path: Path,
        lock_fd: int,
        *,
        log_folder: Folder | None = None,
        inherited: str = "",
    ) -> None:
        self.segment = segment
        self.log_folder = log_folder
        """The folder of the logs of accepted records, whether it exists or not."""
        self.path = path
        self._lock_fd = lock_fd
        self._incarnation = last_incarnation(segment)
        self._clients = ClientIndex(segment)
        self._free_rows = FreeRows()
        self.inherited = inherited
        """A description of the records that the previous daemon left in it; empty for a new segment."""

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

    def slot_of_lane(self, transactional_id: str) -> int | None:
        """The slot that has a lane of this id, or None."""
        for slot in self.segment.prepared_slots():
            if any(row.transactional_id == transactional_id for row in LaneRecords(self.segment, slot)):
                return slot
        return None

    def heartbeat(self, slot: int) -> int:
        return self.segment.slot(slot).heartbeat

    def exempt(self, slot: int, incarnation: int) -> None:
        self.segment.slot(slot).spared = incarnation

    def exempt_holders(self, slots: Iterable[int]) -> None:
        """Note in these slots that their holders were killed by us, before that could be noted."""
        for slot in slots:
            if self.segment.is_slot_prepared(slot):
                self.exempt(slot, self.segment.slot(slot).incarnation)

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
