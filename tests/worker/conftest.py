from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "segment")
    yield made
    made.close()
