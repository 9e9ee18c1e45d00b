"""SpareMemory: returns private memory of a past backlog to the system, even while records flow.

Otherwise a worker that is never idle would keep the most that it ever needed: request buffers, and free parts of
malloc's heap below a part still in use.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sidecar.producer.request_room import RequestBufferPool

TRIM_MS: Final = 10_000.0
"""Interval between trims in ms. A trim costs 0.02 ms if there is nothing to return, and 0.1 ms per MB."""

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's malloc_trim, or None: other C libraries return free pages without a call."""


class SpareMemory:
    """Trims memory. Belongs to the worker's loop, which calls it twice a second."""

    def __init__(self, buffers: RequestBufferPool) -> None:
        self._buffers = buffers
        self._due_ms = 0.0

    def step(self, now_ms: float) -> None:
        """Trim when it is due."""
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + TRIM_MS
        self._buffers.trim_unused()
        if _malloc_trim is not None:
            _malloc_trim(0)
