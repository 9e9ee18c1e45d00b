"""How much page cache is filled before a run."""

from __future__ import annotations

import io
import tempfile

import pytest

from sidecar.tools.bench import used_memory
from sidecar.tools.bench.bed import Bed
from sidecar.tools.bench.used_memory import SPARE, use_memory

MIB = 1 << 20


class Sized(io.BytesIO):
    """A file that remembers how large it was."""

    size = 0

    def close(self) -> None:
        self.size = len(self.getvalue())
        super().close()


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> Sized:
    file = Sized()
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda buffering: file)
    return file


def test_more_than_the_log_takes(file: Sized) -> None:
    use_memory(4 * MIB)
    assert file.size == 4 * MIB * SPARE


def test_half_of_what_is_available_at_most(file: Sized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(used_memory, "_available_bytes", lambda: 6 * MIB)
    use_memory(100 * MIB)
    assert file.size == 3 * MIB


def test_a_broker_elsewhere_has_its_own(file: Sized) -> None:
    Bed(None, None, "t", 1, 1).before_run(4 * MIB)  # type: ignore[arg-type]
    assert not file.closed


def test_available_memory_is_read_from_the_kernel() -> None:
    assert MIB < used_memory._available_bytes() < 1 << 50
