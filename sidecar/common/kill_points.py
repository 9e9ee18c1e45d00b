"""Kill points: every place at which a worker may be made to die on purpose. For tests only; off by default.

A worker that is started with ``KAFKA_SIDECAR_KILL_POINTS=FOLDER`` in its environment takes the first order it
finds there (by file name; taken by unlinking it, so exactly one worker has it) and kills itself with SIGKILL when
it passes that point. A replacement takes the next order. docs/testing.md has the form of an order.

Unarmed, a point costs one look at ``ARMED``, per batch or submission; in the kernel one predicted branch per store.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ENVIRONMENT: Final = "KAFKA_SIDECAR_KILL_POINTS"
ARMED: Final = ENVIRONMENT in os.environ
"""Orders may come to this process: what is passed often asks this first (``if ARMED: passed(...)``)."""
PASSED_FILE: Final = "passed"
"""In the folder of orders: one line (point, pass, pid) for each order carried out."""
ALWAYS_SUFFIX: Final = ".always"
"""An order of that name stays for every worker until somebody removes it."""

# The points inside the kernel, in the order of ``sidecar/kernel/store_hook.pxi``: each right after the store.
KERNEL_POINTS: Final = (
    "accept.page_header",
    "accept.page_linked",
    "accept.entry_header",
    "accept.entry_words",
    "accept.entry_payload",
    "accept.page_entry",
    "accept.tail",
    "index.word",
    "fail.word",
    "words.word",
    "pages.taken",
    "pages.given",
)

POINTS: Final[dict[str, str]] = {
    # A client comes and goes.
    "client.taking": "a row is taken, nothing is in it",
    "client.row": "the row is written, not yet live",
    "client.live": "the row is live, its client does not know it",
    "client.released": "the row of a client that is gone is free",
    "stream.placed": "a stream has its place in the row, no record of it is accepted",
    # Accept.
    "pages.taken": "one page is taken from the pool, not yet linked",
    "accept.page_header": "the page's header is written",
    "accept.page_linked": "the page is linked, beyond the tail",
    "accept.entry_header": "plain writes of the entry: its header",
    "accept.entry_words": "its words",
    "accept.entry_payload": "its payload",
    "accept.page_entry": "the page names its first entry",
    "accept.tail": "fact 1: the tail is stored, the row's position is not",
    "accept.position": "the row's position is stored, the counters are not",
    "accept.counted": "accepted and counted, not yet indexed",
    # Index.
    "index.begin": "before the walk over an entry",
    "index.word": "one record has its partition, the next has not",
    "index.batched": "the walk is over, the records are in open batches",
    "fail.word": "one record has its failure word, its client has no outcome",
    # Publish, encode, send.
    "publish.content": "plain writes of a descriptor",
    "publish.state": "fact 2: published, nothing encoded",
    "encode.begin": "before a batch is encoded",
    "encode.batch": "one batch of a request is encoded",
    "encode.compressed": "all batches of a request are compressed",
    "send.begin": "the request is handed to the socket's queue, no byte has gone",
    "send.part": "the kernel has taken a part of a request",
    "send.all": "the kernel has taken all of a request",
    "answer.read": "an answer is read, nothing is done about it",
    # Done, tell, words, descriptor.
    "done.content": "plain writes of a result",
    "done.state": "fact 3: settled, not counted",
    "done.counted": "settled and counted, no client has an outcome",
    "tell.entry": "an outcome is in the ring, the ring's head is not moved",
    "tell.head": "the ring's head is moved",
    "told.state": "the descriptor has its outcomes out, no word is done",
    "words.word": "one word is done, the next is not",
    "words.done": "all words of the batch are done",
    "row.place": "a lane row has its place and no sequence",
    "row.stored": "the lane row is stored, the descriptor is not free",
    "free.state": "the descriptor is free",
    "pages.released": "finished pages have left their chain, none is free",
    "pages.given": "one page is free",
    "ack.number": "the number of an ACK is stored, the ring's tail is not",
    "ack.read": "the ring's tail is stored",
    # Identity.
    "producer.stored": "a producer id has come and is stored in the slot",
    "renumber.freed": "one of several batches that lose their identity has lost its descriptor",
    "split.pending": "one half of a batch that was too large is published, pending on the whole",
    "split.switched": "the halves stand in the whole's place, none is live",
    "split.raised": "one half is live",
    # Adoption, in its order.
    "adopt.begin": "the slot's byte is taken, nothing is touched",
    "adopt.page": "one page has the new incarnation",
    "adopt.pages": "all pages are taken over",
    "adopt.slot": "plain writes of the slot's header",
    "adopt.claimed": "the slot has the new incarnation",
    "adopt.half_taken": "half-taken rows are released",
    "adopt.chains": "the chains are read",
    "adopt.clients": "rows are sessions, positions are stored",
    "adopt.ranges": "descriptors are read",
    "adopt.indexed": "every chain is walked",
    "adopt.balanced": "the counters balance",
    "adopt.told": "acked batches have ended, outcomes of settled ones and of failures are written again",
    "adopt.sent": "what was sent and not answered waits for its broker",
    "adopt.pages_back": "the pages of one chain have gone back",
    "adopt.end": "the adoption is over",
    "inquiry.asked": "a leader is asked what it has",
    "inquiry.answered": "its answer is there, nothing is sent again yet",
}
"""Point → what stands there when a worker is killed at it."""

assert set(KERNEL_POINTS) <= POINTS.keys()

DURING: Final = ("live", "adoption")


@dataclass(slots=True)
class Order:
    """One order. ``nth``: at the n-th pass. ``during``: passes in the adoption, or after it; None: all count.

    ``stop``: SIGSTOP instead of SIGKILL. ``text``: only passes with these bytes in what is worked on count.
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
        """Raises ValueError for an order that names no point of ours."""
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


def passed(point: str, content: Callable[[], bytes] | None = None) -> None:
    """This point is reached. Nothing happens unless an order names it.

    ``content`` gives the bytes that are worked on; it is called only for an order that asks for a text.
    """
    if _orders:
        for order in _orders:
            order.passed(point, content)


def kernel_passed(number: int) -> None:
    """The kernel's store hook."""
    passed(KERNEL_POINTS[number])


def adoption_is_over() -> None:
    """From now on passes count as ``live``."""
    passed("adopt.end")
    _phase[0] = "live"


def take_order(folder: str | None) -> bool:
    """Take the first order of the folder, and all that stay; False when there is none (or no folder).

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
    return bool(_orders)


def needs_store_hook() -> bool:
    """An order names a point inside the kernel."""
    return any(order.point in KERNEL_POINTS for order in _orders)


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
    """Leave an order for the next worker that starts (``always``: for all); returns its file."""
    fields = {"point": point, "nth": nth, "during": during, "stop": stop, "text": text}
    path = folder / f"{name}.order{ALWAYS_SUFFIX if always else ''}"
    unfinished = folder / f"{name}.tmp"
    unfinished.write_text(json.dumps(fields))
    unfinished.rename(path)
    return path
