"""Goal: the compiled parts are built with the compiler's and the linker's guards, on this host as well."""

from __future__ import annotations

import subprocess

import pytest

from client_stub.native import _native
from sidecar.kernel import _kernel
from tests.tools import needs

PARTS = {"client_stub.native._native": _native.__file__, "sidecar.kernel._kernel": _kernel.__file__}


def readelf(what: str, path: str) -> str:
    return subprocess.run(
        ["readelf", what, "--wide", path], capture_output=True, text=True, check=True
    ).stdout


@needs("readelf")
@pytest.mark.parametrize("part", PARTS)
def test_a_broken_bound_ends_the_process_and_tables_are_read_only(part: str) -> None:
    path = PARTS[part]
    symbols = readelf("--dyn-syms", path)
    assert "__stack_chk_fail" in symbols, "-fstack-protector-strong"
    dynamic = readelf("--dynamic", path)
    assert "BIND_NOW" in dynamic, "-z now"
    assert "TEXTREL" not in dynamic, "position-independent"
    headers = readelf("--program-headers", path)
    assert "GNU_RELRO" in headers, "-z relro"
    (stack,) = [line for line in headers.splitlines() if "GNU_STACK" in line]
    assert " RWE " not in stack, "-z noexecstack"


@needs("readelf")
def test_copies_of_known_size_are_checked() -> None:
    """_FORTIFY_SOURCE: the kernel has copies whose place the compiler knows the size of."""
    assert "_chk@" in readelf("--dyn-syms", PARTS["sidecar.kernel._kernel"]).replace("__stack_chk_fail@", "")
