"""ChainTable: assigns the journal chains of a slot to lanes and topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from sidecar.kernel import Chain, load_acquire_u64, store_release_u64
from sidecar.shm import layout
from sidecar.shm.layout import (
    CHAIN_HELD_OFFSET,
    CHAIN_NAMES_OFFSET,
    CHAIN_NUMBER_OFFSET,
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

    @property
    def is_express(self) -> bool:
        return self.lane & EXPRESS != 0 and self.lane != _NO_LANE

    @property
    def is_transactional(self) -> bool:
        """Whether its lane belongs to a transactional id; such a chain has no express one."""
        return FIRST_TRANSACTIONAL_LANE <= self.lane < EXPRESS

    @property
    def is_staged(self) -> bool:
        """Whether it has the records of stages of its transactional id."""
        return self.is_transactional and self.lane & STAGED != 0


class FreeRows:
    """The number of rows of a slot's table that can get a name, for readers. Counted again only after a change."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}
        """By slot: the number of names given at the last count, and the rows that were free then."""

    def of(self, segment: Segment, slot: int) -> int:
        area = segment.slot(slot).area
        number = load_acquire_u64(area, CHAIN_NAMES_OFFSET)
        seen = self._seen.get(slot)
        if seen is None or seen[0] != number:
            table = area[CHAINS_OFFSET:][: CHAINS_MAX * CHAIN_ROW_BYTES].cast("Q")
            named = sum(word & 0xFFFFFFFF == _USED for word in table[1 :: CHAIN_ROW_BYTES // 8].tolist())
            seen = self._seen[slot] = number, CHAINS_MAX - named
        return seen[1]


_NEVER_USED, _USED, _VACANT = 0, 1, 2
_NO_LANE = 0xFFFF
FIRST_TRANSACTIONAL_LANE: Final = 2
EXPRESS: Final = 0x8000
"""Bit added to a lane to name the topic's express chain, whose records pass those of its bulk chain."""
STAGED: Final = 0x4000
"""Bit added to the lane of a transactional id to name a topic's chain of its stages' records."""


class ChainTable:
    """The chain table of one slot. ``open`` is for the slot's owner; any reader may use ``names``.

    A row belongs to a (lane, topic) until :meth:`vacate`, because pages, descriptors and clients' streams hold its
    number. Its tail continues under the next name, so an ordinal never occurs twice in a chain.
    """

    def __init__(self, segment: Segment, slot: int, *, incarnation: int = 0) -> None:
        self._segment = segment
        self._slot = slot
        self._incarnation = incarnation
        self._area = segment.slot(slot).area
        self._ids: dict[tuple[int, str], int] = {}
        self._vacant: list[int] = []
        self._chains: dict[int, Chain] = {}
        self._rows = 0
        """Number of rows that were ever used."""
        for chain_id, used, name in self._read():
            self._rows = chain_id + 1
            if used == _VACANT:
                self._vacant.append(chain_id)
            else:
                self._ids[name.lane, name.topic] = chain_id

    def names(self) -> Iterator[ChainName]:
        """Iterate over all chains that have a name, by id."""
        for _, used, name in self._read():
            if used != _VACANT:
                yield name

    def _read(self) -> Iterator[tuple[int, int, ChainName]]:
        for chain_id in range(CHAINS_MAX):
            position = CHAINS_OFFSET + chain_id * CHAIN_ROW_BYTES
            tail, used, lane, topic_bytes = CHAIN_ROW.unpack_from(self._area, position)
            if used == _NEVER_USED:
                return
            topic = bytes(self._area[position + CHAIN_ROW.size : position + CHAIN_ROW.size + topic_bytes])
            yield chain_id, used, ChainName(chain_id, lane, topic.decode("utf-8", "replace"), tail)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Chain]:
        """The chains opened through this table."""
        return iter(list(self._chains.values()))

    @property
    def free_count(self) -> int:
        """Number of names that can still be given."""
        return CHAINS_MAX - len(self._ids)

    def ids(self) -> dict[tuple[int, str], int]:
        """(lane, topic) → chain id. Must not be changed."""
        return self._ids

    def tail_word(self, chain_id: int) -> memoryview:
        position = CHAINS_OFFSET + chain_id * CHAIN_ROW_BYTES
        return self._area[position : position + 8]

    def open(self, lane: int, topic: str) -> Chain | None:
        """The chain of (lane, topic), made on first use; None if all rows are in use.

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
        """Continue a dead owner's chain: :meth:`open` returns it from now on. Its pages must belong to this owner
        already.
        """
        chain = self._chains[chain_id] = self.recover(chain_id, page_indexes)
        self._ids[lane, topic] = chain_id
        return chain

    def recover(self, chain_id: int, page_indexes: list[int] | None = None) -> Chain:
        """Rebuild a chain from its pages and tail. Changes nothing."""
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
        if self._vacant:
            chain_id = self._vacant.pop()
        elif self._rows < CHAINS_MAX:
            chain_id = self._rows
            self._rows += 1
        else:
            return None
        position = CHAINS_OFFSET + chain_id * CHAIN_ROW_BYTES
        self._area[position + CHAIN_ROW.size : position + CHAIN_ROW.size + len(name)] = name
        store_release_u64(self._area, position + CHAIN_HELD_OFFSET, 0)
        # used, lane and length are one aligned word, so they change together.
        store_release_u64(self._area, position + 8, _USED | lane << 32 | len(name) << 48)
        self._number(position)
        return chain_id

    def _number(self, position: int) -> None:
        """Number the row after it got another name. Readers find the row by its number once the table's number has
        moved.
        """
        number = load_acquire_u64(self._area, CHAIN_NAMES_OFFSET) + 1
        store_release_u64(self._area, position + CHAIN_NUMBER_OFFSET, number)
        store_release_u64(self._area, CHAIN_NAMES_OFFSET, number)

    def vacate(self, lane: int, topic: str) -> int:
        """Remove a chain's name, so that its row can get another. Returns the chain's id.

        The chain must have no page, and no client's stream or descriptor may hold its number.
        """
        chain_id = self._ids.pop((lane, topic))
        position = CHAINS_OFFSET + chain_id * CHAIN_ROW_BYTES
        store_release_u64(self._area, position + 8, _VACANT | lane << 32 | len(topic.encode()) << 48)
        # A version without vacant rows finds a name here that no other row has.
        name = b"#%d" % chain_id
        self._area[position + CHAIN_ROW.size : position + CHAIN_ROW.size + len(name)] = name
        store_release_u64(self._area, position + 8, _VACANT | _NO_LANE << 32 | len(name) << 48)
        self._number(position)
        self._vacant.append(chain_id)
        return chain_id


assert layout.CHAIN_ROW.size == 16
