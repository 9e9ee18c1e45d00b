"""Nanoseconds per record of every kernel walk: ``python -m sidecar.tools.bench.kernel_bench [--json]``.

100-byte values, 16-byte keys, 6 partitions, submissions of 1,000 records, best of several rounds: the cost of the
code, not of the machine's neighbours.
"""

from __future__ import annotations

import argparse
import json
import struct
import time
from collections.abc import Callable
from typing import Any, Final

from sidecar.kernel import (
    PAGE_TAKEN,
    BatchRecords,
    Chain,
    Entry,
    RecordBlock,
    StickyPartitioner,
    crc32c,
    index,
)

PAGE_BYTES: Final = 16 * 1024
BATCH_BYTES: Final = 16 * 1024
MAX_REQUEST_BYTES: Final = 1 << 20


class KernelBench:
    """One chain over private memory, walked step by step."""

    def __init__(
        self, *, records: int = 1_000, submissions: int = 100, keyed: bool = True, value_bytes: int = 100
    ):
        import msgpack

        self.records = records
        self.submissions = submissions
        keys = [f"key-{i:012d}".encode() if keyed else None for i in range(997)]
        value = bytes(i & 0xFF for i in range(value_bytes))
        self.payload = b"".join(msgpack.packb([keys[i % 997], value]) for i in range(records))
        pages = (len(self.payload) + 2 * records + 192) * submissions // (PAGE_BYTES - 64) + 8
        self.pages = bytearray(pages * PAGE_BYTES)
        self.owners = bytearray(8 * pages)
        self.page_count = pages

    def run(self) -> dict[str, float]:
        """One round over all submissions: ns per record by walk."""
        for page in range(self.page_count):
            struct.pack_into("<II", self.owners, 8 * page, PAGE_TAKEN, 1)
        chain = Chain(self.pages, PAGE_BYTES, 0, 0, bytearray(8), incarnation=1, owners=self.owners)
        chain.link_pages(range(self.page_count))
        partitioner = StickyPartitioner(6, range(6), BATCH_BYTES, 1)
        entries: list[Entry] = []
        blocks: list[RecordBlock] = []
        batches: list[BatchRecords] = []
        spent = {
            "copy": self._time(lambda: self._append(chain, entries)),
            "index": self._time(
                lambda: blocks.extend(index(chain, e, partitioner, MAX_REQUEST_BYTES) for e in entries)
            ),
            "batch": self._time(lambda: self._batch(blocks, batches)),
        }
        out = memoryview(bytearray(sum(batch.size_bytes for batch in batches)))
        spent["encode"] = self._time(lambda: self._encode(batches, out))
        spent["encode_one_buffer"] = self._time(lambda: self._encode_one(batches, out))
        spent["crc"] = self._time(lambda: crc32c(out))
        spent["mark"] = self._time(lambda: [batch.mark_done() for batch in batches])
        assert chain.live_entries == 0
        total = self.records * self.submissions
        return {name: seconds * 1e9 / total for name, seconds in spent.items()}

    @staticmethod
    def _time(work: Callable[[], Any]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def _append(self, chain: Chain, entries: list[Entry]) -> None:
        for seq in range(self.submissions):
            entries.append(
                chain.append(
                    self.payload,
                    count=self.records,
                    client_row=0,
                    client_generation=1,
                    stream=1,
                    seq=seq + 1,
                    base_timestamp_ms=1_700_000_000_000,
                    format=1,
                    flags=0,
                )
            )

    @staticmethod
    def _batch(blocks: list[RecordBlock], batches: list[BatchRecords]) -> None:
        open_batches: dict[int, BatchRecords] = {}
        for block in blocks:
            for partition, start, stop in block.groups:
                at = start
                while at < stop:
                    batch = open_batches.get(partition)
                    if batch is None:
                        batch = open_batches[partition] = BatchRecords()
                        batches.append(batch)
                    at += batch.try_append(block, at, stop, BATCH_BYTES)
                    if at < stop:
                        del open_batches[partition]

    @staticmethod
    def _encode(batches: list[BatchRecords], out: memoryview) -> None:
        at = 0
        for batch in batches:
            at += batch.encode_into(out[at:], 1, 0, 0)

    @staticmethod
    def _encode_one(batches: list[BatchRecords], out: memoryview) -> None:
        """Encode into the same bytes repeatedly, so without the cache misses of a large output."""
        for batch in batches:
            batch.encode_into(out, 1, 0, 0)


def measure(*, rounds: int = 5, **shape: Any) -> dict[str, float]:
    """Best of ``rounds``, ns per record by walk."""
    bench = KernelBench(**shape)
    results = [bench.run() for _ in range(rounds)]
    return {name: min(result[name] for result in results) for name in results[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    shapes: dict[str, dict[str, Any]] = {
        "warm (10 submissions)": {"submissions": 10},
        "100 submissions": {},
        "keyless": {"keyed": False},
        "1 record a submission": {"records": 1, "submissions": 5_000},
        "values of 4,000 bytes": {"records": 100, "submissions": 20, "value_bytes": 4_000},
        "cold backlog (100 MiB)": {"submissions": 900},
    }
    results = {name: measure(rounds=options.rounds, **shape) for name, shape in shapes.items()}
    if options.json:
        print(json.dumps(results, indent=2))
        return
    walks = list(next(iter(results.values())))
    print(f"{'ns a record':<26}" + "".join(f"{walk:>18}" for walk in walks))
    for name, result in results.items():
        print(f"{name:<26}" + "".join(f"{result[walk]:>18.1f}" for walk in walks))


if __name__ == "__main__":
    main()
