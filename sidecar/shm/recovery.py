"""What a segment still holds, read as the next daemon would read it: tails, pages, words, descriptors."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from client_stub.wire import WORD_DONE, WORD_FAILED_MIN
from sidecar.kernel import PAGE_LINKED, Chain, entry_words
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.descriptors import Descriptor, DescriptorState, DescriptorTable
from sidecar.shm.layout import PAGE_HEADER

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment

log = logging.getLogger(__name__)


def linked_pages(segment: Segment) -> dict[tuple[int, int], list[int]]:
    """Page indexes by (slot, chain), of all pages that are linked; one scan serves every chain."""
    found: dict[tuple[int, int], list[int]] = {}
    for page, word in enumerate(segment.owners.cast("Q")):
        if word & 0xFFFFFFFF == PAGE_LINKED:
            slot, chain_id, *_ = PAGE_HEADER.unpack_from(segment.pages, page * segment.page_bytes)
            found.setdefault((slot, chain_id), []).append(page)
    return found


def undelivered(segment: Segment, slots: Iterable[int] | None) -> list[tuple[int, str, int, int]]:
    """(slot, topic, records, payload bytes) of chains with records without a fate, and of damaged ones."""
    pages = linked_pages(segment)
    rows: list[tuple[int, str, int, int]] = []
    for slot in segment.prepared_slots() if slots is None else slots:
        if not segment.is_slot_prepared(slot):
            continue
        table = ChainTable(segment, slot)
        settled = [
            descriptor
            for descriptor in DescriptorTable(segment, slot)
            if descriptor.state in (DescriptorState.SETTLED, DescriptorState.TOLD)
        ]
        for name in table.names():
            own = pages.get((slot, name.chain_id))
            if not own:
                continue
            chain = table.recover(name.chain_id, own)
            records, size = _without_fate(chain, [d for d in settled if d.chain_id == name.chain_id])
            for damage in chain.damage:
                log.error("The journal of topic %s in slot %d is damaged: %s.", name.topic, slot, damage)
            if records or chain.damage:
                rows.append((slot, name.topic, records, size))
    return rows


def _without_fate(chain: Chain, settled: list[Descriptor]) -> tuple[int, int]:
    records = size = 0
    for entry in chain.entries():
        ordinal = entry.ordinal
        near = [d for d in settled if d.first_cursor[0] <= ordinal <= d.last_cursor[0]]
        open_records = 0
        for index, word in enumerate(entry_words(chain, entry)):
            if word == WORD_DONE or WORD_FAILED_MIN <= word < WORD_DONE:
                continue
            cursor = (ordinal, index)
            if not any(d.partition == word and d.first_cursor <= cursor <= d.last_cursor for d in near):
                open_records += 1
        records += open_records
        size += entry.payload_bytes if open_records else 0
    return records, size
