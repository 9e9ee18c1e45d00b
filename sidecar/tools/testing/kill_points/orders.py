"""Orders to die at a kill point, and the code in the process that carries them out.

A worker that starts with ``KAFKA_SIDECAR_KILL_POINTS=FOLDER`` takes the first order in that folder, by file name. It
takes an order by unlinking it, so exactly one worker has it. It kills itself with SIGKILL when it passes the point.
Its replacement takes the next order. docs/testing.md describes the form of an order.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from sidecar.kernel import Chain, entry_payload, set_store_hook, store_release_u64
from sidecar.shm.in_work import entry_word
from sidecar.tools.testing.kill_points.points import KERNEL_POINTS, POINTS

PASSED_FILE: Final = "passed"
"""File in the folder of orders: one line (point, pass, phase, pid) for each order carried out."""
ALWAYS_SUFFIX: Final = ".always"
"""Suffix of an order that applies to every worker until its file is removed."""

DURING: Final = ("live", "adoption")


@dataclass(slots=True)
class Order:
    """One order. ``nth``: die at the n-th pass. ``during``: count passes in the adoption only, or after it only; None:
    all.

    ``stop``: SIGSTOP instead of SIGKILL. ``text``: count only passes whose work contains these bytes.
    """

    point: str
    folder: Path
    nth: int = 1
    during: str | None = None
    stop: bool = False
    text: bytes = b""
    seen: int = 0

    @classmethod
    def read(cls, data: bytes, folder: Path) -> Order:
        """Parse an order. Raises ValueError if it names no known point or a field is out of range."""
        fields = json.loads(data)
        order = cls(folder=folder, **{**fields, "text": fields.get("text", "").encode()})
        if order.point not in POINTS or order.during not in (None, *DURING) or order.nth < 1:
            raise ValueError(f"{data!r} is no order for a kill point")
        return order

    def passed(self, point: str, content: Callable[[], bytes] | None) -> None:
        if point != self.point or (self.during is not None and self.during != _phase[0]):
            return
        if self.text and (content is None or self.text not in content()):
            return
        self.seen += 1
        if self.seen != self.nth:
            return
        line = f"{point} {self.seen} {_phase[0]} {os.getpid()}\n"
        fd = os.open(self.folder / PASSED_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, line.encode())
        os.close(fd)
        os.kill(os.getpid(), signal.SIGSTOP if self.stop else signal.SIGKILL)


_orders: list[Order] = []
_phase = ["adoption"]


def passed(point: str, *work: Any) -> None:
    """Handle the pass of a point. Nothing happens unless an order names it.

    ``work``: the objects in work there. Their bytes are read only for an order with a text.
    """
    if point == "index.begin":
        # The kernel marks an entry as in work before it reads it; a worker killed here must leave the same mark.
        word, chain, ordinal = work
        store_release_u64(word, 0, entry_word(chain.chain_id, ordinal))
    for order in _orders:
        order.passed(point, partial(_CONTENT[point], *work) if work else None)
    if point == "adopt.end":
        _phase[0] = "live"


def _entry_content(_word: memoryview, chain: Chain, ordinal: int) -> bytes:
    return entry_payload(chain, chain.entry(ordinal))


def _batch_content(batch: Any) -> bytes:
    return b"".join(entry_payload(batch.chain, entry) for entry, _ in batch.records.entries())


_CONTENT: Final[dict[str, Callable[..., bytes]]] = {
    "index.begin": _entry_content,
    "encode.begin": _batch_content,
}
"""Point → function that returns the bytes in work there."""


def kernel_passed(number: int) -> None:
    """The kernel's store hook."""
    passed(KERNEL_POINTS[number])


def take_order(folder: str | None) -> bool:
    """Take the first order of the folder, and all that stay. False if there is none, or no folder.

    Raises ValueError for an order that cannot be read.
    """
    if not folder:
        return False
    taken = False
    for path in sorted(Path(folder).glob("*.order*")):
        stays = path.suffix == ALWAYS_SUFFIX
        if taken and not stays:
            continue
        try:
            data = path.read_bytes()
            if not stays:
                path.unlink()
        except FileNotFoundError:
            continue  # another worker was quicker
        _orders.append(Order.read(data, path.parent))
        taken = taken or not stays
    if any(order.point in KERNEL_POINTS for order in _orders):
        set_store_hook(kernel_passed)
    return bool(_orders)


def give_order(
    folder: Path,
    name: str,
    point: str,
    *,
    nth: int = 1,
    during: str | None = None,
    stop: bool = False,
    text: str = "",
    always: bool = False,
) -> Path:
    """Write an order for the next worker that starts (``always``: for all). Returns its file."""
    fields = {"point": point, "nth": nth, "during": during, "stop": stop, "text": text}
    path = folder / f"{name}.order{ALWAYS_SUFFIX if always else ''}"
    unfinished = folder / f"{name}.tmp"
    unfinished.write_text(json.dumps(fields))
    unfinished.rename(path)
    return path
