"""A disk whose power can be cut: what sidecar.shm.disk promises, and nothing more.

Everything that is done to it is recorded. An image is what may be left when the power goes after so many steps. It
has all that was synced, and of the 512-byte sectors written since any part, in any order. A file being made may be
there, cut short or empty; a removed one may still be there.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SECTOR = 512


@dataclass
class _Stored:
    """One file: what is on the medium for certain, and sectors written since, oldest first."""

    durable: bytearray
    dirty: list[tuple[int, bytes]] = field(default_factory=list)
    is_made: bool = False
    is_removed: bool = False

    def current(self) -> bytearray:
        data = bytearray(self.durable)
        for at, sector in self.dirty:
            data[at : at + len(sector)] = sector
        return data


class PowerDisk:
    """DiskFolder in memory. ``files``: what is on it to begin with."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self._files = {name: _Stored(bytearray(data), is_made=True) for name, data in (files or {}).items()}
        self._begin = dict(files or {})
        self.steps: list[tuple[Any, ...]] = []
        self.fail_sync = 0
        """Error number that the next sync raises; 0: none."""
        self.free_bytes_max: int | None = None
        """How much new files may take; None: any amount."""

    # --- DiskFolder -----------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(self._files)

    def read(self, name: str) -> memoryview:
        return memoryview(bytes(self._files[name].current()))

    def create(self, name: str, size: int) -> _PowerFile:
        if name in self._files:
            raise FileExistsError(errno.EEXIST, "File exists")
        if self.free_bytes_max is not None:
            if size > self.free_bytes_max:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.free_bytes_max -= size
        self.do("making", name, size)
        self.do("made", name)
        return _PowerFile(self, name, size)

    def open(self, name: str) -> _PowerFile:
        return _PowerFile(self, name, len(self._files[name].durable))

    def remove(self, name: str) -> None:
        if self.free_bytes_max is not None:
            self.free_bytes_max += len(self._files[name].durable)
        self.do("remove", name)

    # --- the record -----------------------------------------------------------------------------------------

    def do(self, *step: Any) -> None:
        self.steps.append(step)
        _apply(self._files, step)
        if step[0] == "remove":
            del self._files[step[1]]

    def note(self, *what: Any) -> None:
        """Something that is not the disk's, in its place between the steps."""
        self.steps.append(("note", *what))

    def notes(self, steps: int) -> list[tuple[Any, ...]]:
        return [step[1:] for step in self.steps[:steps] if step[0] == "note"]

    def image(self, steps: int, chance: random.Random) -> dict[str, bytes]:
        """The files as they may be found when the power went after ``steps``."""
        files = {name: _Stored(bytearray(data), is_made=True) for name, data in self._begin.items()}
        for step in self.steps[:steps]:
            if step[0] == "making":
                files.pop(step[1], None)  # a removed one of the same name is certainly gone
            _apply(files, step)
        found: dict[str, bytes] = {}
        for name, stored in files.items():
            if stored.is_removed and chance.random() < 0.5:
                continue
            if not stored.is_made:
                if chance.random() < 0.5:
                    found[name] = bytes(chance.choice([0, SECTOR, len(stored.durable)]))
                continue
            data = bytearray(stored.durable)
            kept = chance.choice([0.0, 0.2, 0.5, 0.8, 0.98, 1.0])
            survivors = [each for each in stored.dirty if chance.random() < kept]
            chance.shuffle(survivors)
            for at, sector in survivors:
                data[at : at + len(sector)] = sector
            found[name] = bytes(data)
        return found


class _PowerFile:
    def __init__(self, disk: PowerDisk, name: str, size: int) -> None:
        self._disk, self.name, self.size = disk, name, size

    def write(self, position: int, buffers: Sequence[Any]) -> None:
        data = b"".join(bytes(each) for each in buffers)
        assert position + len(data) <= self.size, "never beyond what was allocated"
        self._disk.do("write", self.name, position, data)

    def sync(self) -> None:
        if self._disk.fail_sync:
            raise OSError(self._disk.fail_sync, "Input/output error")
        self._disk.do("sync", self.name)

    def close(self) -> None:
        pass


def _apply(files: dict[str, _Stored], step: tuple[Any, ...]) -> None:
    kind, *arguments = step
    if kind == "making":
        name, size = arguments
        files[name] = _Stored(bytearray(size))
    elif kind == "made":
        files[arguments[0]].is_made = True
    elif kind == "remove":
        files[arguments[0]].is_removed = True
    elif kind == "sync":
        stored = files[arguments[0]]
        stored.durable, stored.dirty = stored.current(), []
    elif kind == "write":
        name, position, data = arguments
        stored = files[name]
        view = stored.current()
        view[position : position + len(data)] = data
        first = position // SECTOR * SECTOR
        for at in range(first, position + len(data), SECTOR):
            stored.dirty.append((at, bytes(view[at : at + SECTOR])))
