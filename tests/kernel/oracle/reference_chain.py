"""The twin's journal: Chain and Entry in pure Python, byte for byte what the extension writes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from tests.kernel.oracle.reference_hook import (
    AT_ENTRY_HEADER,
    AT_ENTRY_PAYLOAD,
    AT_ENTRY_WORDS,
    AT_PAGE_ENTRY,
    AT_PAGE_HEADER,
    AT_PAGE_LINKED,
    AT_TAIL,
    stored,
)

ENTRY_HEADER_BYTES: Final = 64
PAGE_HEADER_BYTES: Final = 64
RECORDS_PER_ENTRY_MAX: Final = 65_535
PAYLOAD_BYTES_MAX: Final = 0x7FFFFFFF
PAGE_TAKEN: Final = 1
PAGE_LINKED: Final = 2
LINE: Final = 64
WORD_UNPARTITIONED: Final = 0xFFFF
WORD_DONE: Final = 0xFFFE
WORD_FAILED_MIN: Final = 0xFF00
NO_ENTRY: Final = 0xFFFFFFFF
FORMAT_MSGPACK: Final = 1
ACCEPTED_SECONDS: Final = 65_535
ENTRY_INDEX_BYTES: Final = 40
RECORD_INDEX_BYTES: Final = 24

_PAGE: Final = struct.Struct("<IIQIIQ")
_ENTRY: Final = struct.Struct("<IIQIIIBBHQqQII")


def words_bytes(count: int) -> int:
    return (2 * count + 7) // 8 * 8


def entry_bytes(count: int, payload_bytes: int) -> int:
    return -(-(ENTRY_HEADER_BYTES + words_bytes(count) + payload_bytes) // LINE) * LINE


def held_bytes(count: int, payload_bytes: int) -> int:
    return entry_bytes(count, payload_bytes) + ENTRY_INDEX_BYTES + RECORD_INDEX_BYTES * count


class Entry:
    def __init__(self, chain_id: int, position: int, header: tuple[int, ...], remaining: int) -> None:
        (
            _,
            self.count,
            self.ordinal,
            self.client_row,
            self.client_generation,
            self.stream,
            self.format,
            self.flags,
            self.accepted,
            self.seq,
            self.base_timestamp_ms,
            self.txn_number,
            self.payload_bytes,
            _,
        ) = header
        self.chain_id = chain_id
        self.position = position
        self.remaining = remaining

    @property
    def payload_at(self) -> int:
        return self.position + ENTRY_HEADER_BYTES + words_bytes(self.count)

    @property
    def end(self) -> int:
        return self.position + entry_bytes(self.count, self.payload_bytes)

    def word_at(self, record: int) -> int:
        return self.position + ENTRY_HEADER_BYTES + 2 * record


class Chain:
    def __init__(
        self,
        pages: Any,
        page_bytes: int,
        slot: int,
        chain_id: int,
        tail_word: Any,
        *,
        incarnation: int,
        owners: Any,
    ) -> None:
        if page_bytes % LINE or page_bytes < 4 * LINE:
            raise ValueError(f"page_bytes is {page_bytes}: it must be a multiple of 64, at least 256")
        self.slot, self.chain_id, self.incarnation = slot, chain_id, incarnation
        self.page_bytes = page_bytes
        self.damage: list[str] = []
        self.live_records = 0
        self._payload = page_bytes - PAGE_HEADER_BYTES
        self._pages, self._owners, self._tail_word = (
            memoryview(pages),
            memoryview(owners),
            memoryview(tail_word),
        )
        if len(self._owners) < 8 * self._pages_total or len(self._tail_word) < 8:
            raise ValueError("owner words or tail word are too short")
        self._live: dict[int, Entry] = {}
        self._logged: dict[int, int] = {}
        self._finished: list[tuple[int, int, int]] = []
        self._page_of: dict[int, int] = {}
        self.tail: int = struct.unpack_from("<Q", self._tail_word)[0]
        self._write_at = self._page_up(self.tail)
        self._next_page = self._write_at // self._payload

    @property
    def _pages_total(self) -> int:
        return len(self._pages) // self.page_bytes

    def _page_up(self, position: int) -> int:
        return -(-position // self._payload) * self._payload

    @property
    def next_ordinal(self) -> int:
        return self._write_at // LINE

    @property
    def live_entries(self) -> int:
        return len(self._live)

    @property
    def page_count(self) -> int:
        return len(self._page_of)

    def entries(self, first: int = 0, stop: int | None = None) -> Iterator[Entry]:
        for ordinal, entry in list(self._live.items()):
            if first <= ordinal and (stop is None or ordinal < stop):
                yield entry

    def ordinals(self, first: int, limit: int) -> bytes:
        found = [ordinal for ordinal in self._live if ordinal >= first][:limit]
        return struct.pack(f"<{len(found)}Q", *found)

    def entry(self, ordinal: int) -> Entry:
        if ordinal not in self._live:
            raise ValueError(f"{self!r} has no live entry {ordinal}")
        return self._live[ordinal]

    def log_file(self, ordinal: int) -> int:
        return self._logged.get(ordinal, 0)

    def set_log_file(self, ordinal: int, number: int) -> None:
        self._logged[self.entry(ordinal).ordinal] = number

    def held_between(self, first: int, stop: int | None) -> tuple[int, int]:
        found = list(self.entries(first, stop))
        return sum(entry.remaining for entry in found), sum(entry.payload_bytes for entry in found)

    def streams(self) -> list[tuple[int, int, int, int, int, int]]:
        sums: dict[tuple[int, int, int], list[int]] = {}
        for entry in self._live.values():
            found = sums.setdefault((entry.client_row, entry.client_generation, entry.stream), [0, 0, 0])
            found[0] = max(found[0], entry.seq)
            found[1] += entry.remaining
            found[2] += held_bytes(entry.count, entry.payload_bytes) * entry.remaining // entry.count
        return [(*who, seq, records, size) for who, (seq, records, size) in sums.items()]

    def take_finished(self) -> list[tuple[int, int, int]]:
        finished, self._finished = self._finished, []
        return finished

    # ---- bytes -------------------------------------------------------------------------------------------------

    def _parts(self, position: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield (start in ``pages``, bytes) of each contiguous part. Raises KeyError if a page is gone."""
        while size:
            ordinal, offset = divmod(position, self._payload)
            part = min(size, self._payload - offset)
            yield self._page_of[ordinal] * self.page_bytes + PAGE_HEADER_BYTES + offset, part
            position += part
            size -= part

    def read(self, position: int, size: int) -> bytes:
        return b"".join(
            bytes(self._pages[start : start + part]) for start, part in self._parts(position, size)
        )

    def write(self, position: int, data: bytes) -> None:
        at = 0
        for start, part in self._parts(position, len(data)):
            self._pages[start : start + part] = data[at : at + part]
            at += part

    def word(self, entry: Entry, record: int) -> int:
        try:
            return int.from_bytes(self.read(entry.word_at(record), 2), "little")
        except KeyError:
            return WORD_DONE

    def set_word(self, entry: Entry, record: int, word: int) -> None:
        self.write(entry.word_at(record), word.to_bytes(2, "little"))

    def is_live_at(self, ordinal: int) -> bool:
        return ordinal in self._live

    def is_live(self, entry: Entry) -> bool:
        return self._live.get(entry.ordinal) is entry

    # ---- pages -------------------------------------------------------------------------------------------------

    def pages_needed(self, count: int, payload_bytes: int) -> int:
        if not 0 < count <= min(payload_bytes, RECORDS_PER_ENTRY_MAX) or payload_bytes > PAYLOAD_BYTES_MAX:
            raise ValueError(f"no entry has {count} records in {payload_bytes} payload bytes")
        end = self._page_up(self._write_at + entry_bytes(count, payload_bytes)) // self._payload
        return max(0, end - self._next_page)

    def link_pages(self, page_indexes: Sequence[int]) -> None:
        for page in page_indexes:
            if not 0 <= page < self._pages_total:
                raise ValueError(f"page {page} is not one of {self._pages_total}")
            if struct.unpack_from("<II", self._owners, 8 * page) != (PAGE_TAKEN, self.incarnation):
                raise ValueError(f"page {page} was not taken by incarnation {self.incarnation}")
            header = _PAGE.pack(self.slot, self.chain_id, self._next_page, NO_ENTRY, self.incarnation, 0)
            self._pages[page * self.page_bytes : page * self.page_bytes + PAGE_HEADER_BYTES] = header.ljust(
                PAGE_HEADER_BYTES, b"\0"
            )
            stored(AT_PAGE_HEADER)
            struct.pack_into("<II", self._owners, 8 * page, PAGE_LINKED, self.incarnation)
            stored(AT_PAGE_LINKED)
            self._page_of[self._next_page] = page
            self._next_page += 1

    def release_pages(self) -> list[int]:
        closed = self._write_at // self._payload
        busy = {p for entry in self._live.values() for p in self._pages_of(entry)}
        gone = [ordinal for ordinal in sorted(self._page_of) if ordinal < closed and ordinal not in busy]
        return [self._page_of.pop(ordinal) for ordinal in gone]

    def release_idle(self) -> list[int]:
        if self._live:
            return self.release_pages()
        released = [self._page_of[ordinal] for ordinal in sorted(self._page_of)]
        self._page_of.clear()
        self._write_at = self._page_up(self.tail)
        self._next_page = self._write_at // self._payload
        return released

    def _pages_of(self, entry: Entry) -> range:
        return range(entry.position // self._payload, (entry.end - 1) // self._payload + 1)

    # ---- entries -----------------------------------------------------------------------------------------------

    def append(
        self,
        payload: Any,
        *,
        count: int,
        client_row: int,
        client_generation: int,
        stream: int,
        seq: int,
        base_timestamp_ms: int,
        format: int,
        flags: int,
        txn_number: int = 0,
        accepted_ms: float = -1.0,
    ) -> Entry:
        data = bytes(payload)
        if format != FORMAT_MSGPACK:
            raise ValueError(f"format {format} is not kept in the journal: turn columns into records first")
        needed = self.pages_needed(count, len(data))
        if needed:
            raise ValueError(f"{needed} more pages are needed before the entry fits")
        position, size = self._write_at, entry_bytes(count, len(data))
        ordinal = position // LINE
        accepted = 1 + int(accepted_ms / 1000) % ACCEPTED_SECONDS if accepted_ms >= 0 else 0
        who = (client_row, client_generation, stream, format, flags, accepted)
        header = (size, count, ordinal, *who, seq, base_timestamp_ms, txn_number, len(data), 0)
        words = (b"\xff\xff" * count).ljust(words_bytes(count), b"\0")
        self.write(position, _ENTRY.pack(*header))
        stored(AT_ENTRY_HEADER)
        self.write(position + ENTRY_HEADER_BYTES, words)
        stored(AT_ENTRY_WORDS)
        before = ENTRY_HEADER_BYTES + len(words)
        self.write(position + before, data.ljust(size - before, b"\0"))
        stored(AT_ENTRY_PAYLOAD)
        page = self._page_of[position // self._payload] * self.page_bytes
        if struct.unpack_from("<I", self._pages, page + 16)[0] == NO_ENTRY:
            struct.pack_into("<Q", self._pages, page + 24, ordinal)
            struct.pack_into("<I", self._pages, page + 16, position % self._payload)
            stored(AT_PAGE_ENTRY)
        entry = self._remember(position, header, count)
        self.tail = self._write_at = position + size
        struct.pack_into("<Q", self._tail_word, 0, self.tail)
        stored(AT_TAIL)
        return entry

    def _remember(self, position: int, header: tuple[int, ...], remaining: int) -> Entry:
        entry = self._live[position // LINE] = Entry(self.chain_id, position, header, remaining)
        self.live_records += remaining
        return entry

    def settle(self, entry: Entry, records: int) -> bool:
        """Count ``records`` more words of the entry as done. True if that finished it."""
        if not records:
            return False
        entry.remaining -= records
        self.live_records -= records
        if entry.remaining:
            return False
        del self._live[entry.ordinal]
        logged = self._logged.pop(entry.ordinal, 0)
        if logged:
            self._finished.append((entry.ordinal, logged, entry.payload_bytes))
        return True

    # ---- recovery ----------------------------------------------------------------------------------------------

    @classmethod
    def recover(
        cls,
        pages: Any,
        page_bytes: int,
        slot: int,
        chain_id: int,
        tail_word: Any,
        *,
        incarnation: int,
        owners: Any,
        page_indexes: Iterable[int] | None = None,
    ) -> Chain:
        chain = cls(pages, page_bytes, slot, chain_id, tail_word, incarnation=incarnation, owners=owners)
        end = chain._page_up(chain.tail) // chain._payload
        for page in range(chain._pages_total) if page_indexes is None else page_indexes:
            if not 0 <= page < chain._pages_total:
                raise ValueError(f"page {page} is not one of {chain._pages_total}")
            if struct.unpack_from("<I", chain._owners, 8 * page)[0] != PAGE_LINKED:
                continue
            page_slot, page_chain, ordinal, *_ = _PAGE.unpack_from(chain._pages, page * page_bytes)
            if (page_slot, page_chain) != (slot, chain_id) or ordinal >= end:
                continue
            if ordinal in chain._page_of:
                chain.damage.append(
                    f"pages {chain._page_of[ordinal]} and {page} both say they are page {ordinal}"
                )
                continue
            chain._page_of[ordinal] = page
        if end - 1 in chain._page_of:
            chain._write_at = chain.tail
        chain._next_page = end
        chain._find_entries()
        return chain

    def _find_entries(self) -> None:
        at = 0
        for ordinal in sorted(self._page_of):
            offset = struct.unpack_from("<I", self._pages, self._page_of[ordinal] * self.page_bytes + 16)[0]
            if offset == NO_ENTRY:
                continue
            position = ordinal * self._payload + offset
            if offset >= self._payload or offset % LINE:
                self.damage.append(f"page {ordinal} says its first entry begins at {offset}")
                continue
            if position < at:
                self.damage.append(f"page {ordinal} says an entry begins inside the entry before it")
                continue
            while position < min((ordinal + 1) * self._payload, self.tail):
                position = at = self._find_entry(position)
                if not position:
                    break

    def _find_entry(self, position: int) -> int:
        header = _ENTRY.unpack(self.read(position, ENTRY_HEADER_BYTES))
        size: int = header[0]
        count, ordinal, payload_bytes = header[1], header[2], header[12]
        if (
            ordinal != position // LINE
            or not 0 < count <= min(payload_bytes, RECORDS_PER_ENTRY_MAX)
            or size != entry_bytes(count, payload_bytes)
            or position + size > self.tail
        ):
            self.damage.append(f"the entry at position {position} has an impossible header")
            return 0
        try:
            words = self.read(position + ENTRY_HEADER_BYTES, 2 * count)
            self.read(position, size)
        except KeyError:
            return position + size
        remaining = sum(word != WORD_DONE for (word,) in struct.iter_unpack("<H", words))
        if remaining:
            self._remember(position, header, remaining)
        return position + size
