"""A small segment under /dev/shm, removed at the end."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.shm.segment import Segment

PAGE_BYTES = 4096
PAGES = 64
MakeSegment = Callable[..., Segment]


@pytest.fixture
def segment_path() -> Iterator[Path]:
    folder = Path("/dev/shm")
    path = (
        folder if folder.is_dir() else Path("/tmp")
    ) / f"kafka-sidecar-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def segment(segment_path: Path) -> Iterator[Segment]:
    made = Segment.create(
        segment_path,
        page_bytes=PAGE_BYTES,
        buffer_memory_bytes=PAGE_BYTES * PAGES,
        clients_max=4,
        instance_id=b"test",
    )
    yield made
    made.close()


@pytest.fixture
def slot(segment: Segment) -> int:
    """Slot 0, prepared and claimed by incarnation 1."""
    segment.prepare_slot(0)
    segment.slot(0).claim(incarnation=1)
    return 0
