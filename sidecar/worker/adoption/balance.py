"""Correction of a slot's counters after the death of their owner.

Adoption calls it once, before the worker's first turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.shm.descriptor_states import DescriptorState

if TYPE_CHECKING:
    from sidecar.shm.slots import Counters
    from sidecar.worker.adoption.ranges import Ranges
    from sidecar.worker.slot_memory import SlotMemory


def balance_counters(memory: SlotMemory, ranges: Ranges, open_records: int, staged: int) -> None:
    """Make accepted = delivered + failed + dead lettered + aborted + held + staged, at whatever point the owner died.

    ``staged`` of the ``open_records`` wait in stages. The others are held if the journal has them as not done and they
    are not counted. A failure is counted when it is
    released: with its descriptor, or after its words became done.
    """
    counters = memory.counters
    counted = 0
    for each in ranges:
        descriptor = each.descriptor
        if descriptor.state == DescriptorState.RELEASED and descriptor.code:
            is_of_transaction = each.batch.queue.transaction is not None
            row = "records_aborted_total" if is_of_transaction else "records_failed_total"
            _raise_to(counters, row, descriptor.counted)
            _raise_to(counters, "records_dead_lettered_total", descriptor.dead_counted)
        elif each.is_sent or descriptor.code:
            continue
        else:
            _raise_to(counters, "records_delivered_total", descriptor.counted)
        counted += each.batch.records.count
    held = open_records - counted - staged
    view = memory.segment.slot(memory.index)
    values = counters.read()
    outcomes = ("delivered", "failed", "dead_lettered", "aborted")
    ended = sum(values[f"records_{outcome}_total"] for outcome in outcomes)
    missing = values["records_accepted_total"] - ended - held - staged
    corrections = {
        "records_held": held - values["records_held"],
        "records_staged": staged - values["records_staged"],
    }
    if missing < 0:
        # The records are in the journal, but the owner died before it counted them.
        corrections["records_accepted_total"] = -missing
    elif any(chain.damage for chain in memory.chain_table):
        corrections["records_held"] += missing  # unreadable records are kept, and count as held
    else:
        # The words became done, but the owner died before it counted them.
        dead = min(missing, view.dead_lettering)
        aborted = min(missing - dead, view.ending_aborted)
        corrections["records_dead_lettered_total"] = dead
        corrections["records_aborted_total"] = aborted
        corrections["records_failed_total"] = missing - dead - aborted
    counters.add(corrections)
    view.dead_lettering = view.ending_aborted = 0


def _raise_to(counters: Counters, row: str, least: int) -> None:
    """Raise a counter to ``least``, if its owner died between an event and its count. Never lower it."""
    missing = least - counters.get(row)
    if missing > 0:
        counters.add({row: missing})
