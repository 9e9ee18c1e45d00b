"""The segment as it was at every store of a worker's life, and a successor that begins there."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest

from sidecar.shm import buffer_pool, chain_table, client_table, descriptors, layout
from sidecar.shm.client_index import ClientIndex
from sidecar.shm.segment import Segment

from .slot_harness import CLIENT_ID, MemoryBroker, SlotHarness

STORES: list[tuple[Any, str]] = [
    (descriptors, "store_release_u64"),
    (client_table, "store_release_u64"),
    (client_table, "compare_and_swap_u64"),
    (chain_table, "store_release_u64"),
    (buffer_pool, "take_pages"),
    (buffer_pool, "give_pages"),
    (buffer_pool, "store_release_u64"),
]


class Recorder:
    """The segment as it was before and after every publication, with what the broker had by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, segment: Segment, broker: MemoryBroker) -> None:
        self.segment, self.broker = segment, broker
        self.moments: dict[int, tuple[bytes, MemoryBroker]] = {}
        self._patch = monkeypatch.context()

    def used(self) -> int:
        """Slot 0's end; the clients' rows follow far behind."""
        return self.segment.layout.slot(1)

    def take(self) -> None:
        view = self.segment.view
        client = self.segment.layout.client(0)
        allocated = ClientIndex(self.segment).slot_of(CLIENT_ID) is not None
        parts = bytes(view[: self.used()]) + (
            bytes(view[client : client + layout.CLIENT_STRIDE]) if allocated else b""
        )
        packed = zlib.compress(parts, 1)
        self.moments.setdefault(hash((packed, self._broker_state())), (packed, self.broker.copy()))

    def _broker_state(self) -> int:
        return sum(map(len, self.broker.log.values())) * 1000 + len(self.broker.spool)

    def __enter__(self) -> Recorder:
        self._active = self._patch.__enter__()
        for module, name in STORES:
            self._active.setattr(module, name, self._wrapped(getattr(module, name)))
        return self

    def __exit__(self, *error: Any) -> None:
        self._patch.__exit__(*error)

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*arguments: Any) -> Any:
            self.take()
            result = function(*arguments)
            self.take()
            return result

        return recorded


def restore(segment: Segment, moment: bytes) -> None:
    data = zlib.decompress(moment)
    end = segment.layout.slot(1)
    segment.view[:end] = data[:end]
    client = data[end:]
    if client:
        position = segment.layout.client(0)
        segment.view[position : position + len(client)] = client
    segment._slots.clear()
    segment._clients = None


def successor(segment: Segment, broker: MemoryBroker) -> SlotHarness:
    is_first = not segment.is_slot_prepared(0)
    return SlotHarness(segment, broker, 1 if is_first else segment.slot(0).incarnation + 1)
