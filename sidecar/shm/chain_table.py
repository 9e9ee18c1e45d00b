"""ChainTable: which journal chain of a slot belongs to which lane and topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from sidecar.kernel import Chain, fetch_add_u64, store_release_u64
from sidecar.shm import layout
from sidecar.shm.layout import (
    CHAIN_HELD_OFFSET,
    CHAIN_NAMES_OFFSET,
    CHAIN_ROW,
    CHAIN_ROW_BYTES,
    CHAINS_MAX,
    CHAINS_OFFSET,
    TOPIC_BYTES_MAX,
)

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment


class ChainName(NamedTuple):
    chain_id: int
    lane: int
    topic: str
    tail: int


class ChainTable:
    """The chain table of one slot. ``open`` is for the slot's owner; ``names`` for any reader.

    A row, once given to a (lane, topic), keeps it for the segment's life: its number stands in pages and
    descriptors.
    """

    def __init__(self, segment: Segment, slot: int, *, incarnation: int = 0) -> None:
        self._segment = segment
        self._slot = slot
        self._incarnation = incarnation
        self._area = segment.slot(slot).area
        self._ids = {(row.lane, row.topic): row.chain_id for row in self.names()}
        self._chains: dict[int, Chain] = {}

    def names(self) -> Iterator[ChainName]:
        """Every chain that was ever opened, in order of its id."""
        for chain_id in range(CHAINS_MAX):
            position = CHAINS_OFFSET + chain_id * CHAIN_ROW_BYTES
            tail, used, lane, topic_bytes = CHAIN_ROW.unpack_from(self._area, position)
            if not used:
                return
            topic = bytes(self._area[position + CHAIN_ROW.size : position + CHAIN_ROW.size + topic_bytes])
            yield ChainName(chain_id, lane, topic.decode("utf-8", "replace"), tail)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Chain]:
        """The chains opened through this table."""
        return iter(list(self._chains.values()))

    def tail_word(self, chain_id: int) -> memoryview:
        position = CHAINS_OFFSET + chain_id * CHAIN_ROW_BYTES
        return self._area[position : position + 8]

    def open(self, lane: int, topic: str) -> Chain | None:
        """The chain of (lane, topic), made on first use; None when all rows are given.

        Raises ValueError for a topic name that is empty or longer than 249 bytes.
        """
        chain_id = self._ids.get((lane, topic))
        if chain_id is None:
            chain_id = self._name(lane, topic)
            if chain_id is None:
                return None
            self._ids[lane, topic] = chain_id
        chain = self._chains.get(chain_id)
        if chain is None:
            chain = self._chains[chain_id] = Chain(
                self._segment.pages,
                self._segment.page_bytes,
                self._slot,
                chain_id,
                self.tail_word(chain_id),
                incarnation=self._incarnation,
                owners=self._segment.owners,
            )
        return chain

    def adopt(self, chain_id: int, lane: int, topic: str, page_indexes: list[int]) -> Chain:
        """Go on with a dead owner's chain: :meth:`open` gives this one from now on. Its pages must be ours already."""
        chain = self._chains[chain_id] = self.recover(chain_id, page_indexes)
        self._ids[lane, topic] = chain_id
        return chain

    def recover(self, chain_id: int, page_indexes: list[int] | None = None) -> Chain:
        """The chain as its pages and tail tell it. Reads only."""
        return Chain.recover(
            self._segment.pages,
            self._segment.page_bytes,
            self._slot,
            chain_id,
            self.tail_word(chain_id),
            incarnation=self._incarnation,
            owners=self._segment.owners,
            page_indexes=page_indexes,
        )

    def _name(self, lane: int, topic: str) -> int | None:
        name = topic.encode()
        if not 0 < len(name) <= TOPIC_BYTES_MAX:
            raise ValueError(f"topic {topic!r} has {len(name)} bytes, not 1 to {TOPIC_BYTES_MAX}")
        chain_id = len(self._ids)
        if chain_id >= CHAINS_MAX:
            return None
        position = CHAINS_OFFSET + chain_id * CHAIN_ROW_BYTES
        self._area[position + CHAIN_ROW.size : position + CHAIN_ROW.size + len(name)] = name
        store_release_u64(self._area, position + CHAIN_HELD_OFFSET, 0)
        # used, lane and length become true together: they are one aligned word.
        store_release_u64(self._area, position + 8, 1 | lane << 32 | len(name) << 48)
        fetch_add_u64(self._area, CHAIN_NAMES_OFFSET, 1)
        return chain_id


assert layout.CHAIN_ROW.size == 16
