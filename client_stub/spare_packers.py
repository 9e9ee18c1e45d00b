"""SparePackers: packers whose submission the daemon has, for the next ones."""

from __future__ import annotations

from typing import Final

from client_stub.hot import RecordPacker
from client_stub.wire import SUBMISSION_BYTES_MAX

COPIED_BYTES_MAX: Final = 4096
"""A payload up to this is copied out of its packer, so that many small submissions do not hold many buffers."""
PACKERS_KEPT_MAX: Final = 12
PACKER_KEPT_BYTES_MAX: Final = 2 * SUBMISSION_BYTES_MAX


class SparePackers:
    """Of one producer. Thread-safe: single operations of a list are atomic."""

    __slots__ = ("_spare",)

    def __init__(self) -> None:
        self._spare: list[RecordPacker] = []

    def take(self) -> RecordPacker:
        """An empty one."""
        try:
            return self._spare.pop()
        except IndexError:
            return RecordPacker()

    def keep(self, packer: RecordPacker) -> None:
        """Nobody needs its records any more."""
        if len(self._spare) >= PACKERS_KEPT_MAX or len(packer) > PACKER_KEPT_BYTES_MAX:
            return
        try:
            packer.reset()
        except BufferError:
            return  # somebody still looks at its bytes: leave it to the garbage collector
        self._spare.append(packer)
