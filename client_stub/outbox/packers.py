"""Packers: empty packers of a producer, for reuse. Any thread."""

from __future__ import annotations

from typing import Final

from client_stub.contract.wire import SUBMISSION_BYTES_MAX
from client_stub.native.hot import RecordPacker

PACKERS_KEPT_MAX: Final = 12
PACKER_KEPT_BYTES_MAX: Final = 2 * SUBMISSION_BYTES_MAX


class Packers:
    """A new packer's buffer grows by realloc; one that is taken again has its size already."""

    def __init__(self) -> None:
        self._kept: list[RecordPacker] = []
        """Single operations on the list are atomic."""

    def take(self) -> RecordPacker:
        try:
            return self._kept.pop()
        except IndexError:
            return RecordPacker()

    def put_back(self, packer: RecordPacker) -> None:
        """Keep a packer for reuse, whose records are no longer needed."""
        if len(self._kept) >= PACKERS_KEPT_MAX or len(packer) > PACKER_KEPT_BYTES_MAX:
            return
        try:
            packer.reset()
        except BufferError:
            return  # a view of its bytes exists: leave it to the garbage collector
        self._kept.append(packer)
