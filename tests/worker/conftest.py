from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.shm.segment import Segment
from tests.worker.harness import Harness
from tests.worker.port_harness import PortHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path / "segment")
    yield made
    made.close()


@pytest.fixture
def port_harness(harness: Harness) -> PortHarness:
    """The rooms between socket and journal."""
    return PortHarness(harness)


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    """A small segment for workers that live and die in one process; removed by pytest."""
    made = Segment.create(
        tmp_path / "segment",
        page_bytes=4096,
        buffer_memory_bytes=256 << 10,
        clients_max=4,
        instance_id=b"test",
    )
    yield made
    made.close()
