"""The twin's store hook: the points of ``store_hook.pxi``, called at the same stores in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

AT_PAGE_HEADER: Final = 0
AT_PAGE_LINKED: Final = 1
AT_ENTRY_HEADER: Final = 2
AT_ENTRY_WORDS: Final = 3
AT_ENTRY_PAYLOAD: Final = 4
AT_PAGE_ENTRY: Final = 5
AT_TAIL: Final = 6
AT_INDEX_WORD: Final = 7
AT_FAILED_WORD: Final = 8
AT_DONE_WORD: Final = 9
AT_PAGE_TAKEN: Final = 10
AT_PAGE_GIVEN: Final = 11

_hooks: list[Callable[[int], object]] = []


def set_store_hook(hook: Callable[[int], object] | None) -> None:
    _hooks[:] = [hook] if hook is not None else []


def stored(point: int) -> None:
    for hook in _hooks:
        hook(point)
