"""Twenty gigabytes: the pool's books and the journal's positions are 64 bits wide everywhere.

The file is sparse and only what is touched exists; allocation is the one thing that is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from sidecar.kernel import BatchRecords, StickyPartitioner, index
from sidecar.shm import segment as segment_module
from sidecar.shm.buffer_pool import BufferPool
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.segment import Segment

POOL_BYTES = 20_000_000_000
TAKEN_BYTES = 2_000_000_000
PAGE_BYTES = 16_384
RECORDS = 2_000


@pytest.fixture
def large(segment_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Segment]:
    with monkeypatch.context() as patched:
        patched.setattr(segment_module, "_allocate", lambda *_: None)
        made = Segment.create(
            segment_path,
            page_bytes=PAGE_BYTES,
            buffer_memory_bytes=POOL_BYTES,
            clients_max=16,
            instance_id=b"large",
        )
        made.prepare_slot(0)
    made.slot(0).claim(incarnation=1)
    yield made
    made.close()


@pytest.mark.rule("A2")
def test_the_books_of_a_pool_of_20_gb(large: Segment) -> None:
    """BufferPoolTest.testLargeAvailableMemory: 20e9 - 2e9 = 18e9, to the page."""
    pool = BufferPool(large, incarnation=1, workers=1)
    pages = pool.take(TAKEN_BYTES // PAGE_BYTES)
    assert pages is not None
    left = pool.page_count - pool.taken_count
    assert left == POOL_BYTES // PAGE_BYTES - TAKEN_BYTES // PAGE_BYTES
    assert 18_000_000_000 - PAGE_BYTES < left * PAGE_BYTES < 18_000_000_000 + PAGE_BYTES
    with pytest.raises(ValueError, match="cannot be allocated"):
        pool.take(POOL_BYTES // PAGE_BYTES + 1)
    assert pool.take(left + 1) is None
    rest = pool.take(left)
    assert rest is not None and len(set(pages) | set(rest)) == pool.page_count
    assert pool.take(1) is None
    pool.give(pages)
    pool.give(rest)
    assert pool.taken_count == 0


def test_records_beyond_4_gb(large: Segment, segment_path: Path) -> None:
    """Records in the very last pages of the file are read back from there."""
    pool = BufferPool(large, incarnation=1, workers=1)
    pages = pool.take(pool.page_count)
    assert pages is not None
    chain = ChainTable(large, 0, incarnation=1).open(0, "large")
    assert chain is not None
    payload = b"".join(msgpack.packb([b"k-%d" % n, bytes(100)]) for n in range(RECORDS))
    needed = chain.pages_needed(RECORDS, len(payload))
    last = pages[-needed:]
    assert last[0] * PAGE_BYTES > 19_000_000_000
    chain.link_pages(last)
    fields = {"client_row": 0, "client_generation": 1, "stream": 1, "base_timestamp_ms": 0, "flags": 0}
    entry = chain.append(payload, count=RECORDS, seq=1, format=1, **fields)
    block = index(chain, entry, StickyPartitioner(1, [0], 16_384, 1), 1 << 20)
    ((_, start, stop),) = block.groups
    batch = BatchRecords()
    assert batch.try_append(block, start, stop, 1 << 30) == RECORDS
    assert segment_path.stat().st_size > POOL_BYTES
    with segment_path.open("rb") as file:
        file.seek(large.layout.pages + last[0] * PAGE_BYTES)
        assert b"k-0" in file.read(PAGE_BYTES)
