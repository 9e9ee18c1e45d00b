"""SlotMemory: one slot of the segment, owned by the worker that claimed it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sidecar.shm.buffer_pool import BufferPool
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.descriptors import DescriptorTable
from sidecar.shm.histograms import SlotHistograms
from sidecar.shm.in_work import InWork, Suspects
from sidecar.shm.lane_records import LaneRecords
from sidecar.shm.recovery import take_over_pages
from sidecar.shm.stage_records import StageRecords
from sidecar.shm.submission_name import submission_name

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment


class SlotMemory:
    """The slot's words and tables. Made by :meth:`claim`."""

    def __init__(
        self,
        segment: Segment,
        slot: int,
        *,
        incarnation: int,
        workers: int,
        wake_workers: Callable[[], None],
        monotonic_ns: Callable[[], int],
        left_pages: dict[int, list[int]],
        deaths: dict[int, int],
        clock_ahead_ms: float,
    ) -> None:
        """The last three are what the claim found: see the attributes of these names."""
        self.segment = segment
        self.index = slot
        self.slot = segment.slot(slot)
        self.counters = self.slot.counters
        self._monotonic_ns = monotonic_ns
        self.left_pages = left_pages
        """By chain: the dead owner's pages, to be adopted."""
        self.name_of = partial(submission_name, segment.instance_id, slot)
        self.suspects = Suspects(self.slot)
        self.deaths = deaths
        """Entries and batches that were in work when the last owner died, each with its number of deaths."""
        self.in_work = InWork(self.slot)
        self.histograms = SlotHistograms(self.slot)
        self.clock_ahead_ms = clock_ahead_ms
        """Milliseconds by which the slot's clock is ahead of this host's monotonic clock."""
        self.pool = BufferPool(segment, incarnation=incarnation, workers=workers, wake_others=wake_workers)
        self.chain_table = ChainTable(segment, slot, incarnation=incarnation)
        self.descriptors = DescriptorTable(segment, slot)
        self.lanes = LaneRecords(segment, slot)
        self.stages = StageRecords(segment, slot)

    @classmethod
    def claim(
        cls,
        segment: Segment,
        slot: int,
        *,
        incarnation: int,
        pid: int,
        workers: int,
        wake_workers: Callable[[], None],
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> SlotMemory:
        """Claim the slot: its pages now belong to this incarnation. Can be repeated after a kill in the middle.

        Only the process that holds the slot's byte of workers.lock may do so.
        """
        view = segment.slot(slot)
        # Before the claim, because the previous owner's incarnation shows which pages it had taken.
        left_pages = take_over_pages(segment, slot, incarnation)
        deaths = Suspects(view).count_deaths()
        view.claim(pid=pid, incarnation=incarnation)
        return cls(
            segment,
            slot,
            incarnation=incarnation,
            workers=workers,
            wake_workers=wake_workers,
            monotonic_ns=monotonic_ns,
            left_pages=left_pages,
            deaths=deaths,
            clock_ahead_ms=view.resume_clock(monotonic_ns()),
        )

    def beat(self) -> None:
        """Store a heartbeat: the worker makes progress, so its controller keeps waiting."""
        self.slot.store_heartbeat(self._monotonic_ns())
