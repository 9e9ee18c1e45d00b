"""IncompleteBatches: every batch without a fate, and the time at which the next one expires (rule A8)."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.producer.producer_batch import ProducerBatch


class IncompleteBatches:
    """Batches without a fate, in queues and on the wire. False if there are none.

    They stand in one line per delivery.timeout.ms (there are few), oldest first, so expiry looks only at the heads.
    """

    __slots__ = ("_pieces", "_serial", "lines", "next_expiry_ms")

    def __init__(self) -> None:
        self.lines: defaultdict[float, OrderedDict[ProducerBatch, None]] = defaultdict(OrderedDict)
        """delivery.timeout.ms → its batches. ``RecordAccumulator`` adds new ones, and removes all."""
        self._pieces: list[tuple[float, int, ProducerBatch]] = []
        """Pieces of split batches, by deadline: they are older than their place in their line says. There are few."""
        self._serial = count(1)
        self.next_expiry_ms = inf
        """Lower bound of all expiry times, monotonic ms. It may belong to a batch that is gone: :meth:`expired` finds
        the next.
        """

    def __bool__(self) -> bool:
        return any(self.lines.values())

    def __len__(self) -> int:
        return sum(map(len, self.lines.values()))

    def __iter__(self) -> Iterator[ProducerBatch]:
        """Iterate line by line, each oldest first. Batches must not be added or removed meanwhile."""
        for line in self.lines.values():
            yield from line

    def oldest(self) -> ProducerBatch | None:
        """The batch with the oldest record."""
        heads = [next(iter(line)) for line in self.lines.values() if line]
        return min(heads, key=lambda batch: batch.created_ms, default=None)

    def oldest_first(self) -> list[ProducerBatch]:
        lines = [line for line in self.lines.values() if line]
        if len(lines) == 1:
            return list(lines[0])
        return sorted((batch for line in lines for batch in line), key=lambda batch: batch.created_ms)

    def add(self, batch: ProducerBatch) -> None:
        """Add a batch at the end of the line of its delivery.timeout.ms."""
        self.lines[batch.lifetime_ms][batch] = None
        self.next_expiry_ms = min(self.next_expiry_ms, batch.deadline_ms)

    def add_piece(self, piece: ProducerBatch) -> None:
        """Add a piece of a split batch. It keeps the deadline of the whole."""
        self.add(piece)
        heappush(self._pieces, (piece.deadline_ms, next(self._serial), piece))

    def put_in_order(self) -> None:
        """Sort each line by deadline, after adoption: it adds batches topic by topic."""
        for line in self.lines.values():
            for batch in sorted(line, key=lambda batch: batch.deadline_ms):
                line.move_to_end(batch)

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        """Batches past delivery.timeout.ms, oldest first in each line. They stay here until they are forgotten."""
        expired: list[ProducerBatch] = []
        for line in self.lines.values():
            for batch in line:
                if batch.deadline_ms > now_ms:
                    break
                expired.append(batch)
        pieces = self._pieces
        while pieces and (pieces[0][0] <= now_ms or pieces[0][2].is_settled):
            piece = heappop(pieces)[2]
            if piece in self.lines[piece.lifetime_ms] and piece not in expired:
                expired.append(piece)
        heads_ms = [next(iter(line)).deadline_ms for line in self.lines.values() if line]
        self.next_expiry_ms = min(heads_ms, default=inf)
        if pieces and pieces[0][0] < self.next_expiry_ms:
            self.next_expiry_ms = pieces[0][0]
        return expired
