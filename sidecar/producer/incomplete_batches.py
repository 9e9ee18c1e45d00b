"""IncompleteBatches: every batch without a fate, and when the next one runs out of time (rule A8)."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.producer.producer_batch import ProducerBatch


class IncompleteBatches:
    """In queues and on the wire alike. False when there are none.

    In lines by delivery.timeout.ms (few), each oldest first, so that only their heads are looked at for expiry.
    """

    __slots__ = ("_lines", "_pieces", "_serial", "next_expiry_ms")

    def __init__(self) -> None:
        self._lines: defaultdict[float, OrderedDict[ProducerBatch, None]] = defaultdict(OrderedDict)
        self._pieces: list[tuple[float, int, ProducerBatch]] = []
        """Pieces of split batches are older than their place in their line says; they are few."""
        self._serial = count(1)
        self.next_expiry_ms = inf
        """No batch here runs out of time earlier. It may be the time of one that is gone by now: :meth:`expired`
        finds the next."""

    def __bool__(self) -> bool:
        return any(self._lines.values())

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[ProducerBatch]:
        """Line by line, each oldest first. Nothing may be added or discarded meanwhile."""
        for line in self._lines.values():
            yield from line

    def oldest(self) -> ProducerBatch | None:
        """The batch with the oldest record."""
        heads = [next(iter(line)) for line in self._lines.values() if line]
        return min(heads, key=lambda batch: batch.created_ms, default=None)

    def oldest_first(self) -> list[ProducerBatch]:
        lines = [line for line in self._lines.values() if line]
        if len(lines) == 1:
            return list(lines[0])
        return sorted((batch for line in lines for batch in line), key=lambda batch: batch.created_ms)

    def add(self, batches: Iterable[ProducerBatch]) -> None:
        """Behind those that live as long."""
        for batch in batches:
            self._lines[batch.lifetime_ms][batch] = None
            next_ms, deadline_ms = self.next_expiry_ms, batch.deadline_ms
            self.next_expiry_ms = deadline_ms if deadline_ms < next_ms else next_ms

    def add_piece(self, piece: ProducerBatch) -> None:
        """Of a batch that was split: it has that one's deadline."""
        self.add((piece,))
        heappush(self._pieces, (piece.deadline_ms, next(self._serial), piece))

    def put_in_order(self) -> None:
        """Adopted batches were added topic by topic, each as old as its first record: from now on oldest first."""
        for line in self._lines.values():
            for batch in sorted(line, key=lambda batch: batch.deadline_ms):
                line.move_to_end(batch)

    def discard(self, batches: Iterable[ProducerBatch]) -> None:
        """Their fates are decided, or their pieces take their place. Nothing for one that is not here any more."""
        for batch in batches:
            line = self._lines[batch.lifetime_ms]
            line.pop(batch, None)
            if not line and not any(self._lines.values()):
                self.next_expiry_ms = inf

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        """Those past delivery.timeout.ms, oldest first; they stay until they are discarded."""
        expired: list[ProducerBatch] = []
        for line in self._lines.values():
            for batch in line:
                if batch.deadline_ms > now_ms:
                    break
                expired.append(batch)
        pieces = self._pieces
        while pieces and (pieces[0][0] <= now_ms or pieces[0][2].is_settled):
            piece = heappop(pieces)[2]
            if piece in self._lines[piece.lifetime_ms] and piece not in expired:
                expired.append(piece)
        heads_ms = [next(iter(line)).deadline_ms for line in self._lines.values() if line]
        self.next_expiry_ms = min(heads_ms, default=inf)
        if pieces and pieces[0][0] < self.next_expiry_ms:
            self.next_expiry_ms = pieces[0][0]
        return expired
