"""Empties the slot of a dead worker that left nothing undelivered, so that the next worker can use it.

SegmentStore calls it, on the controller's loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.kernel import PAGE_LINKED, give_pages, store_release_u64
from sidecar.shm import layout
from sidecar.shm.client_table import ClientTable
from sidecar.shm.slots import STATE_FREE

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment


def reclaim_slot(segment: Segment, slot: int) -> int:
    """Free pages, descriptors and client rows of the slot. Returns the number of freed pages.

    The process must be dead: a stopped one would write again when it resumes. What earlier versions wrote in the
    reserved part is emptied too. Chain tails stay, so that an old cursor can never name a later record.
    """
    view = segment.slot(slot)
    incarnation = view.incarnation & 0xFFFFFFFF
    freed = 0
    for page, word in enumerate(segment.owners.cast("Q")):
        state = word & 0xFFFFFFFF
        if not state:
            continue
        owner = word >> 32
        linked_here = False
        if state == PAGE_LINKED:
            page_slot, *_ = layout.PAGE_HEADER.unpack_from(segment.pages, page * segment.page_bytes)
            linked_here = page_slot == slot
        if owner == incarnation or linked_here:
            give_pages(segment.owners, owner, [page])
            freed += 1
    area = view.area
    for start, size in (
        (layout.IN_WORK_OFFSET, 8 * layout.IN_WORK_WORDS),
        (layout.SUSPECTS_OFFSET, 16 * layout.SUSPECTS_MAX),
        (layout.DESCRIPTORS_OFFSET, layout.DESCRIPTORS_MAX * layout.DESCRIPTOR_BYTES),
        (layout.LANES_OFFSET, layout.LANES_MAX * layout.LANE_BYTES),
        (layout.STAGES_OFFSET, layout.STAGES_MAX * layout.STAGE_BYTES),
        (layout.LANE_CONTENTS_OFFSET, layout.LANES_MAX * layout.LANE_CONTENT_BYTES),
    ):
        area[start : start + size] = bytes(size)
    ClientTable(segment).release_slot(slot)
    store_release_u64(area, layout.SHARE_WAITS_OFFSET, 0)
    store_release_u64(area, layout.STAGED_BYTES_OFFSET, 0)
    for chain_id in range(layout.CHAINS_MAX):
        row = layout.CHAINS_OFFSET + chain_id * layout.CHAIN_ROW_BYTES
        store_release_u64(area, row + layout.CHAIN_HELD_OFFSET, 0)
    for table in layout.SLOT_POOL_TABLES:
        store_release_u64(segment.header, table + 8 * slot, 0)
    view.state = STATE_FREE
    return freed
