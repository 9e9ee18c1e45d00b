"""A slot with many submissions of one record, as a dead worker left it; and what its successor costs.

Run as a process, so that the memory is its own: ``python -m tests.worker.large_slot SUBMISSIONS placed|waiting`` prints
{"bytes": private memory for each submission, "calls": Python calls of the adoption, "batches": ...}.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import msgpack

from sidecar.kernel import StickyPartitioner, index_run
from sidecar.producer.config import ProducerConfig
from sidecar.producer.lanes import IDEMPOTENT_LANE
from sidecar.shm.buffer_pool import BufferPool
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.segment import Segment

from .slot_stage import PARTITIONS, TOPIC, MemoryBroker, SlotStage

CLIENTS = 50
PAYLOAD: bytes = msgpack.packb([None, b"v" * 170])
ENTRY_BYTES = 256


def make(path: Path, submissions: int, *, is_placed: bool) -> Segment:
    """The segment of a worker that died with so many submissions, of which none was sent."""
    pages = submissions * ENTRY_BYTES // (16_384 - 64) + 64
    segment = Segment.create(path, buffer_memory_bytes=pages * 16_384, clients_max=4, instance_id=b"test")
    segment.prepare_slot(0)
    segment.slot(0).claim(incarnation=1)
    pool = BufferPool(segment, incarnation=1, workers=1, slot=0)
    chain = ChainTable(segment, 0, incarnation=1).open(IDEMPOTENT_LANE, TOPIC)
    assert chain is not None
    for seq in range(1, submissions + 1):
        needed = chain.pages_needed(1, len(PAYLOAD))
        if needed:
            taken = pool.take(needed)
            assert taken is not None
            chain.link_pages(taken)
        chain.append(
            PAYLOAD,
            count=1,
            client_row=seq % CLIENTS,
            client_generation=1,
            stream=1,
            seq=seq,
            base_timestamp_ms=1_700_000_000_000,
            format=1,
            flags=1,
        )
    if is_placed:
        partitioner = StickyPartitioner(PARTITIONS, range(PARTITIONS), 16_384, 1)
        at = 0
        while ordinals := chain.ordinals(at, 65_536):
            index_run(chain, ordinals, partitioner, 1 << 20)
            at = int.from_bytes(ordinals[-8:], sys.byteorder) + 1
    return segment


def main(submissions: int, is_placed: bool) -> dict[str, float]:
    config = ProducerConfig(batch_growth_bytes=1 << 20)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        segment = make(Path(folder) / "segment", submissions, is_placed=is_placed)
        SlotStage._beat = lambda self: None  # type: ignore[method-assign]
        calls = 0

        def count(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event == "call"

        before = _private_bytes()
        sys.setprofile(count)
        stage = SlotStage(segment, MemoryBroker(), 2, config=config)
        sys.setprofile(None)
        stage.know_topic()
        while stage.topics.go_on(stage.now_ms):
            pass
        batches = stage.accumulator.incomplete.oldest_first()
        assert sum(batch.count for batch in batches) == submissions
        after = _private_bytes()
    return {"bytes": (after - before) / submissions, "calls": calls, "batches": len(batches)}


def _private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("this kernel does not tell RssAnon")


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2] == "placed")))
