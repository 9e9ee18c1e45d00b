"""Restore: makes a new segment from the accept logs, after a crash of the host.

The controller calls it before its loop runs.

The earlier segment is void, because it is unknown which of its pages reached the disk. Every submission that has not
ended in the logs is accepted again, in order, into the slot that it was in. Workers then adopt these slots like those
of any dead worker. It is unknown what the brokers have, so all records count as possibly sent before.

A submission keeps its first name over any number of crashes. So a dead letter written before a crash and one written
after it can be recognised as the same record.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from sidecar.kernel import ENTRY_HEADER_BYTES, take_pages
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.layout import PAGE_HEADER_BYTES
from sidecar.shm.segment import Segment
from sidecar.shm.submission_name import CARRIES_NAME, carry, submission_name

if TYPE_CHECKING:
    from sidecar.kernel import Chain
    from sidecar.shm.accept_log import LogContents
    from sidecar.shm.accept_log_format import LoggedEntry

_LINE: Final = 64
NOBODY: Final = 0
"""Generation of a client that died with its host. No row ever has it."""
LINEAGE_BYTES: Final = 12
"""Leading bytes of an instance id that a segment shares with the one from whose logs it was made."""


def next_instance(instance_id: bytes) -> bytes:
    """A new instance id for the segment made from the logs of ``instance_id``, of the same lineage."""
    while True:
        made = lineage(instance_id) + os.urandom(len(instance_id) - LINEAGE_BYTES)
        if made != instance_id:
            return made


def lineage(instance_id: bytes) -> bytes:
    return instance_id[:LINEAGE_BYTES]


class Restored(NamedTuple):
    submissions: int
    records: int
    damage: list[str]


def pages_for(logs: Mapping[int, LogContents], page_bytes: int) -> int:
    """Number of pages that the entries of all slots need."""
    chains: dict[tuple[int, int, str], int] = {}
    for slot, contents in logs.items():
        for entry in contents.entries:
            words = -(-2 * entry.records // 8) * 8
            size = ENTRY_HEADER_BYTES + words + len(memoryview(entry.payload))
            key = (slot, entry.lane, entry.topic)
            chains[key] = chains.get(key, 0) + -(-size // _LINE) * _LINE
    payload = page_bytes - PAGE_HEADER_BYTES
    return sum(-(-size // payload) for size in chains.values())


def restore(
    path: Path,
    logs: Mapping[int, LogContents],
    *,
    page_bytes: int,
    buffer_memory_bytes: int,
    clients_max: int,
    instance_id: bytes,
) -> tuple[Segment, Restored]:
    """Make the segment at ``path`` and fill it. It is larger than ``buffer_memory_bytes`` if the entries need more.

    ``path`` does not exist until this returns, so a crash in the middle leaves the logs valid. Raises SegmentError.
    """
    needed = max(buffer_memory_bytes, page_bytes * pages_for(logs, page_bytes))
    making = path.with_name(f"{path.name}.restoring")
    making.unlink(missing_ok=True)
    segment = Segment.create(
        making,
        page_bytes=page_bytes,
        buffer_memory_bytes=needed,
        clients_max=clients_max,
        instance_id=instance_id,
    )
    submissions = records = 0
    damage: list[str] = []
    for incarnation, (slot, contents) in enumerate(sorted(logs.items()), 1):
        if not contents.entries:
            continue
        segment.prepare_slot(slot)
        view = segment.slot(slot)
        view.claim(pid=os.getpid(), incarnation=incarnation)
        table = ChainTable(segment, slot, incarnation=incarnation)
        taken = 0
        for entry in contents.entries:
            chain = table.open(entry.lane, entry.topic)
            name = submission_name(contents.instance_id, slot, entry)
            try:
                _append(segment, chain, entry, name, incarnation)
            except ValueError as error:
                damage.append(f"A submission of {entry.records} records for topic {entry.topic}: {error}.")
                continue
            submissions += 1
            taken += entry.records
        view.counters.inc("records_resent_unknown_total", taken)
        records += taken
    making.rename(path)
    return segment, Restored(submissions, records, damage)


def _append(segment: Segment, chain: Chain | None, entry: LoggedEntry, name: bytes, incarnation: int) -> None:
    if chain is None:
        raise ValueError("the table of topics is full")
    needed = chain.pages_needed(entry.records, len(memoryview(entry.payload)))
    if needed:
        pages = take_pages(segment.owners, incarnation, needed)
        assert len(pages) == needed, "the pool was made large enough"
        chain.link_pages(pages)
    carried = carry(name)
    chain.append(
        entry.payload,
        count=entry.records,
        client_row=carried.client_row,
        client_generation=NOBODY,
        stream=carried.stream,
        seq=carried.seq,
        base_timestamp_ms=entry.base_timestamp_ms,
        format=entry.format,
        flags=entry.flags | CARRIES_NAME,
        txn_number=entry.txn_number,
    )
