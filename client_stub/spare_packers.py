"""SparePackers: packers whose submissions the daemon has accepted, for reuse."""

from __future__ import annotations

from typing import Final

from client_stub.hot import RecordPacker
from client_stub.wire import SUBMISSION_BYTES_MAX

COPIED_BYTES_MAX: Final = 4096
"""A payload up to this size is copied out of its packer, so that many small submissions do not hold many large
buffers.
"""
PACKERS_KEPT_MAX: Final = 12
PACKER_KEPT_BYTES_MAX: Final = 2 * SUBMISSION_BYTES_MAX


class SparePackers:
    """The spare packers of one producer. Thread-safe, as single operations of a list are atomic."""

    __slots__ = ("_spare",)

    def __init__(self) -> None:
        self._spare: list[RecordPacker] = []

    def take(self) -> RecordPacker:
        """An empty packer."""
        try:
            return self._spare.pop()
        except IndexError:
            return RecordPacker()

    def keep(self, packer: RecordPacker) -> None:
        """Keep a packer whose records are no longer needed."""
        if len(self._spare) >= PACKERS_KEPT_MAX or len(packer) > PACKER_KEPT_BYTES_MAX:
            return
        try:
            packer.reset()
        except BufferError:
            return  # a view of its bytes exists: leave it to the garbage collector
        self._spare.append(packer)
