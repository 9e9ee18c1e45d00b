"""Reads the undelivered records of a segment from tails, pages, words and descriptors, as the next daemon would.

The controller calls it at its start and end, a worker when it takes a slot, and `recover`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from client_stub.contract.wire import WORD_DONE
from sidecar.kernel import PAGE_LINKED, Chain, compare_and_swap_u64, entry_words, store_release_u64
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.client_table import ClientTable
from sidecar.shm.descriptor_states import DescriptorState
from sidecar.shm.descriptors import Descriptor, DescriptorTable
from sidecar.shm.lane_records import LaneRecords
from sidecar.shm.layout import PAGE_HEADER, PAGE_HEADER_BYTES

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment

log = logging.getLogger(__name__)


def linked_pages(segment: Segment) -> dict[tuple[int, int], list[int]]:
    """Indexes of all linked pages by (slot, chain). One scan serves every chain."""
    found: dict[tuple[int, int], list[int]] = {}
    for page, word in enumerate(segment.owners.cast("Q")):
        if word & 0xFFFFFFFF == PAGE_LINKED:
            slot, chain_id, *_ = PAGE_HEADER.unpack_from(segment.pages, page * segment.page_bytes)
            found.setdefault((slot, chain_id), []).append(page)
    return found


def describe_undelivered(
    segment: Segment, slots: Iterable[int] | None = None
) -> list[tuple[int, str, int, int]]:
    """(slot, topic, records, payload bytes of their submissions) for every chain with records without an outcome.

    A record has an outcome if its word is done or its descriptor says delivered, and a failure when it is released. A
    damaged chain is always listed, because it may hold records. Changes nothing.
    """
    pages = linked_pages(segment)
    rows: list[tuple[int, str, int, int]] = []
    for slot in segment.prepared_slots() if slots is None else slots:
        if not segment.is_slot_prepared(slot):
            continue
        table = ChainTable(segment, slot)
        settled = [
            descriptor
            for descriptor in DescriptorTable(segment, slot)
            # An unacknowledged failure still belongs to its client, or will be a dead letter.
            if descriptor.state == DescriptorState.RELEASED
            or (descriptor.state == DescriptorState.STORED and not descriptor.code)
        ]
        for name in table.names():
            own = pages.get((slot, name.chain_id))
            if not own:
                continue
            chain = table.recover(name.chain_id, own)
            records, size = _without_outcome(chain, [d for d in settled if d.chain_id == name.chain_id])
            for damage in chain.damage:
                log.error("The journal of topic %s in slot %d is damaged: %s.", name.topic, slot, damage)
            if records or chain.damage:
                rows.append((slot, name.topic, records, size))
    return rows


def _without_outcome(chain: Chain, settled: list[Descriptor]) -> tuple[int, int]:
    """Records and payload bytes without an outcome. Only entries near a settled batch are examined record by record: a
    pool may hold millions of submissions.
    """
    records = size = 0
    at = 0
    for first, stop in _spans(settled):
        found = chain.held_between(at, first)
        records, size = records + found[0], size + found[1]
        found = _open_within(chain, settled, first, stop)
        records, size = records + found[0], size + found[1]
        at = stop
    found = chain.held_between(at, None)
    return records + found[0], size + found[1]


def _spans(settled: list[Descriptor]) -> list[tuple[int, int]]:
    """Ordinals [first, stop) of entries with records of settled batches; ascending and disjoint."""
    spans: list[tuple[int, int]] = []
    for first, stop in sorted((d.first_cursor[0], d.last_cursor[0] + 1) for d in settled):
        if spans and first <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(stop, spans[-1][1])
        else:
            spans.append((first, stop))
    return spans


def _open_within(chain: Chain, settled: list[Descriptor], first: int, stop: int) -> tuple[int, int]:
    records = size = 0
    for entry in chain.entries(first, stop):
        ordinal = entry.ordinal
        near = [d for d in settled if d.first_cursor[0] <= ordinal <= d.last_cursor[0]]
        open_records = 0
        for index, word in enumerate(entry_words(chain, entry)):
            if word == WORD_DONE:
                continue
            cursor = (ordinal, index)
            if not any(d.partition == word and d.first_cursor <= cursor <= d.last_cursor for d in near):
                open_records += 1
        records += open_records
        size += entry.payload_bytes if open_records else 0
    return records, size


def has_content(segment: Segment, slot: int) -> bool:
    """Whether a slot is still in use: by a client, a transactional id, a record, or a batch that has not ended."""
    if not segment.is_slot_prepared(slot):
        return False
    if any(True for _ in LaneRecords(segment, slot)):
        return True
    if ClientTable(segment).has_rows(slot) or any(True for _ in DescriptorTable(segment, slot)):
        return True
    pages = linked_pages(segment)
    table = ChainTable(segment, slot)
    for name in table.names():
        own = pages.get((slot, name.chain_id))
        if own:
            chain = table.recover(name.chain_id, own)
            if chain.live_entries or chain.damage:
                return True
    return False


def take_over_pages(segment: Segment, slot: int, incarnation: int) -> dict[int, list[int]]:
    """Give the pages of a dead owner's chains to ``incarnation``. Returns page indexes by chain. Can be repeated.

    The caller must hold the slot's byte of workers.lock. Pages that were taken and never linked go back to the pool,
    and so do linked ones beyond the tail: they hold no accepted byte.
    """
    # kill point: adopt.begin
    dead = segment.slot(slot).incarnation & 0xFFFFFFFF
    payload = segment.page_bytes - PAGE_HEADER_BYTES
    ends = {name.chain_id: -(-name.tail // payload) for name in ChainTable(segment, slot).names()}
    found: dict[int, list[int]] = {}
    for page, word in enumerate(segment.owners.cast("Q").tolist()):
        owner, state = word >> 32, word & 0xFFFFFFFF
        if state == PAGE_LINKED:
            page_slot, chain_id, ordinal, *_ = PAGE_HEADER.unpack_from(
                segment.pages, page * segment.page_bytes
            )
            if page_slot != slot:
                continue
            if ordinal < ends.get(chain_id, 0):
                store_release_u64(segment.owners, 8 * page, incarnation << 32 | PAGE_LINKED)
                # kill point: adopt.page
                found.setdefault(chain_id, []).append(page)
                continue
        elif not state or owner != dead:
            continue
        compare_and_swap_u64(segment.owners, 8 * page, word, 0)
    # kill point: adopt.pages
    return found


def last_incarnation(segment: Segment) -> int:
    """The highest incarnation that any worker of this segment had, or that is in a page's owner word."""
    slots = (segment.slot(slot).incarnation for slot in segment.prepared_slots())
    pages = (word >> 32 for word in segment.owners.cast("Q").tolist())
    return max((*slots, *pages), default=0)
