"""Atomic words: bounds, alignment, and what two processes make of one counter and one pool of pages."""

from __future__ import annotations

import mmap
import os
from types import ModuleType

import pytest

from sidecar.kernel import _kernel


def test_words(kernel: ModuleType) -> None:
    buffer = bytearray(24)
    kernel.store_release_u64(buffer, 8, (1 << 64) - 2)
    assert kernel.load_acquire_u64(buffer, 8) == (1 << 64) - 2
    assert kernel.fetch_add_u64(buffer, 8, 3) == (1 << 64) - 2
    assert kernel.load_acquire_u64(buffer, 8) == 1
    assert kernel.fetch_add_u64(buffer, 8, -1) == 1
    assert not kernel.compare_and_swap_u64(buffer, 8, 5, 6)
    assert kernel.compare_and_swap_u64(buffer, 8, 0, 6)
    assert bytes(buffer) == bytes(8) + (6).to_bytes(8, "little") + bytes(8)


@pytest.mark.parametrize("offset", [-8, 4, 20, 24])
def test_words_outside_are_errors(kernel: ModuleType, offset: int) -> None:
    with pytest.raises(ValueError, match="no aligned 8-byte word"):
        kernel.store_release_u64(bytearray(24), offset, 1)
    with pytest.raises(ValueError, match="no aligned 8-byte word"):
        kernel.load_acquire_u64(bytearray(24), offset)


def test_pages_given_back_twice_are_an_error(kernel: ModuleType) -> None:
    owners = bytearray(8 * 4)
    pages = kernel.take_pages(owners, 5, 3, 2)
    assert sorted(pages) == [0, 2, 3]
    assert kernel.take_pages(owners, 6, 9) == [1]
    kernel.give_pages(owners, 5, pages[:1])
    with pytest.raises(ValueError, match="given back twice"):
        kernel.give_pages(owners, 5, pages[:1])
    with pytest.raises(ValueError, match="not owned"):
        kernel.give_pages(owners, 5, [1])
    with pytest.raises(ValueError, match="is not one of"):
        kernel.give_pages(owners, 5, [4])


def test_processes_share_pages_without_loss() -> None:
    """Two processes take and give 2,000 times each from one small pool; nobody ever has the other's page."""
    shared = mmap.mmap(-1, 4096)
    owners, holders = memoryview(shared)[: 8 * 8], memoryview(shared)[1024 : 1024 + 8]

    def work(incarnation: int) -> None:
        for _ in range(2_000):
            pages = _kernel.take_pages(owners, incarnation, 3, incarnation)
            for page in pages:
                if holders[page]:
                    os._exit(1)
                holders[page] = incarnation
            for page in pages:
                if holders[page] != incarnation:
                    os._exit(2)
                holders[page] = 0
            _kernel.give_pages(owners, incarnation, pages)
        os._exit(0)

    children = []
    for incarnation in (1, 2):
        pid = os.fork()
        if not pid:
            work(incarnation)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0]
    assert bytes(owners) == bytes(64)
