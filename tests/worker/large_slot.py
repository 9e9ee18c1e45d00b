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

from sidecar.bench.adoption import fill_slot
from tests.configs import producer_config

from .slot_stage import PARTITIONS, TOPIC, MemoryBroker, SlotStage


def main(submissions: int, is_placed: bool) -> dict[str, float]:
    config = producer_config(batch_growth_bytes=1 << 20)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        segment = fill_slot(Path(folder) / "segment", submissions, TOPIC, PARTITIONS, is_placed=is_placed)
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
