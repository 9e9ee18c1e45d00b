"""A slot with many submissions of one record, as a dead worker left it; and what its successor costs.

Run as a process, so that the memory is its own: ``python -m tests.worker.large_slot SUBMISSIONS placed|waiting`` prints
{"bytes": private memory for each submission, "calls": Python calls of the adoption, "batches": ...}. With a third word,
``accepted``, the worker itself has accepted them: "calls" is 0.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from sidecar.shm.segment import Segment
from sidecar.tools.bench.adoption import fill_slot
from tests.configs import producer_config

from .slot_harness import PARTITIONS, TOPIC, MemoryBroker, SlotHarness


def main(submissions: int, is_placed: bool) -> dict[str, float]:
    config = producer_config(batch_growth_bytes=1 << 20)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        segment = fill_slot(Path(folder) / "segment", submissions, TOPIC, PARTITIONS, is_placed=is_placed)
        SlotHarness._beat = lambda self: None  # type: ignore[method-assign]
        calls = 0

        def count(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event == "call"

        before = _private_bytes()
        sys.setprofile(count)
        harness = SlotHarness(segment, MemoryBroker(), 2, config=config)
        sys.setprofile(None)
        harness.know_topic()
        while harness.topics.waiting.go_on(harness.now_ms):
            pass
        batches = harness.accumulator.incomplete.oldest_first()
        assert sum(batch.count for batch in batches) == submissions
        after = _private_bytes()
    return {"bytes": (after - before) / submissions, "calls": calls, "batches": len(batches)}


def accepted(submissions: int, is_placed: bool) -> dict[str, float]:
    config = producer_config(batch_growth_bytes=1 << 20)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        segment = Segment.create(
            Path(folder) / "segment",
            page_bytes=16_384,
            buffer_memory_bytes=submissions * 512 + (1 << 20),
            clients_max=64,
            instance_id=b"large",
        )
        segment.prepare_slot(0)
        harness = SlotHarness(segment, MemoryBroker(), 1, config=config)
        session, _ = harness.attach()
        if is_placed:
            harness.know_topic()
        before = _private_bytes()
        for _ in range(submissions):
            harness.accept(session, [b"x"], [None])
        after = _private_bytes()
        if not is_placed:
            assert harness.topics.waiting.entry_count == submissions
            harness.know_topic()
            while harness.topics.waiting.go_on(harness.now_ms):
                pass
            after = max(after, _private_bytes())
        batches = harness.accumulator.incomplete.oldest_first()
        assert sum(batch.count for batch in batches) == submissions
    return {"bytes": (after - before) / submissions, "calls": 0, "batches": len(batches)}


def _private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("this kernel does not tell RssAnon")


if __name__ == "__main__":
    measured = accepted if sys.argv[3:] == ["accepted"] else main
    print(json.dumps(measured(int(sys.argv[1]), sys.argv[2] == "placed")))
