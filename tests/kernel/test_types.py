"""The kernel's types are those of the compiled module, and both implementations have the whole API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sidecar.kernel
from sidecar.kernel import _kernel
from tests.kernel.oracle import reference

# Cython gives every class that refuses to be made by hand a generic __init__, and every module a __test__.
ALLOWED = "sidecar.kernel._kernel.Entry.__init__\nsidecar.kernel._kernel.RecordBlock.__init__\n"


def test_both_have_the_whole_api() -> None:
    public = {name for name in vars(_kernel) if not name.startswith("_")}
    assert public == set(reference.__all__)
    assert all(getattr(sidecar.kernel, name) is getattr(_kernel, name) for name in public)
    for name in ("Chain", "Entry", "StickyPartitioner", "RecordBlock", "BatchRecords"):
        public = {each for each in dir(getattr(_kernel, name)) if not each.startswith("_")}
        made = {
            "Entry": ["client_row", "count", "flags", "format", "payload_bytes", "remaining", "seq", "stream"]
        }
        twin = set(dir(getattr(reference, name))) | set(made.get(name, ()))
        # Attributes that the twin sets in __init__ are not in dir() of its class; methods and properties are.
        missing = {each for each in public - twin if callable(getattr(getattr(_kernel, name), each))}
        assert not missing, (name, missing)


@pytest.mark.slow
def test_the_stub_is_the_module(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.write_text(ALLOWED + "sidecar.kernel._kernel.__test__\n")
    result = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "sidecar.kernel._kernel", "--allowlist", str(allowed)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert result.returncode == 0, result.stdout + result.stderr
