"""A chain over private memory, for either implementation of the kernel."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgpack

INCARNATION = 7
BASE_MS = 1_700_000_000_000
MAX_REQUEST_BYTES = 1 << 20


def pack(records: list[list[Any]]) -> bytes:
    return b"".join(msgpack.packb(record, unicode_errors="surrogateescape") for record in records)


class Journal:
    """Pages, owner words and one chain. ``page_bytes`` small: many records cross an edge."""

    def __init__(self, kernel: ModuleType, *, page_bytes: int = 256, page_count: int = 64) -> None:
        self.kernel = kernel
        self.page_bytes = page_bytes
        self.pages = bytearray(page_bytes * page_count)
        self.owners = bytearray(8 * page_count)
        self.tail_word = bytearray(8)
        self.chain = self.open()

    def open(self) -> Any:
        return self.kernel.Chain(
            self.pages, self.page_bytes, 0, 0, self.tail_word, incarnation=INCARNATION, owners=self.owners
        )

    def recover(self) -> Any:
        return self.kernel.Chain.recover(
            self.pages, self.page_bytes, 0, 0, self.tail_word, incarnation=INCARNATION, owners=self.owners
        )

    def link(self, pages: int) -> list[int]:
        taken: list[int] = self.kernel.take_pages(self.owners, INCARNATION, pages)
        assert len(taken) == pages, "the test's journal is too small"
        self.chain.link_pages(taken)
        return taken

    def give(self, pages: list[int]) -> None:
        self.kernel.give_pages(self.owners, INCARNATION, pages)

    def append(
        self,
        payload: bytes,
        count: int,
        *,
        seq: int = 1,
        flags: int = 1,
        base_ms: int = BASE_MS,
        client_row: int = 3,
    ) -> Any:
        needed = self.chain.pages_needed(count, len(payload))
        if needed:
            self.link(needed)
        return self.chain.append(
            payload,
            count=count,
            client_row=client_row,
            client_generation=4,
            stream=5,
            seq=seq,
            base_timestamp_ms=base_ms,
            format=1,
            flags=flags,
        )

    def add(self, records: list[list[Any]], **fields: Any) -> Any:
        return self.append(pack(records), len(records), **fields)

    def index(self, entry: Any, partitions: int = 1, *, max_request_bytes: int = MAX_REQUEST_BYTES) -> Any:
        partitioner = self.kernel.StickyPartitioner(partitions, range(partitions), 16_384, 1)
        return self.kernel.index(self.chain, entry, partitioner, max_request_bytes)

    def batches(self, block: Any) -> dict[int, Any]:
        """One BatchRecords per partition, without a limit."""
        found = {}
        for partition, start, stop in block.groups:
            batch = found[partition] = self.kernel.BatchRecords()
            assert batch.try_append(block, start, stop, 1 << 30) == stop - start
        return found


def encode(batch: Any, producer_id: int = -1, epoch: int = -1, base_sequence: int = -1) -> bytes:
    out = bytearray(batch.size_bytes)
    assert batch.encode_into(out, producer_id, epoch, base_sequence) == len(out)
    return bytes(out)
