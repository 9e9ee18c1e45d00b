"""IncompleteBatches: every batch without an outcome, when the next one expires (rule A8), and how many are under way
to each broker.

Sans-IO: the accumulator owns it, on the worker's loop.
"""

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
    """Batches without an outcome, in queues and on the wire. False if there are none.

    They wait in one queue per delivery.timeout.ms (there are few), oldest first, so expiry checks only the heads.
    """

    __slots__ = ("_by_lifetime", "_pieces", "_serial", "next_expiry_ms", "under_way")

    def __init__(self) -> None:
        self._by_lifetime: defaultdict[float, OrderedDict[ProducerBatch, None]] = defaultdict(OrderedDict)
        """delivery.timeout.ms → its batches."""
        self.under_way: defaultdict[int, int] = defaultdict(int)
        """Broker → the number of batches last drained for it that hold a descriptor and have no outcome yet."""
        self._pieces: list[tuple[float, int, ProducerBatch]] = []
        """Pieces of split batches, by deadline: they are older than their position in the queue says. There are few."""
        self._serial = count(1)
        self.next_expiry_ms = inf
        """Lower bound of all expiry times, monotonic ms. It may belong to a batch that is gone: :meth:`expired` finds
        the next.
        """

    def __bool__(self) -> bool:
        return any(self._by_lifetime.values())

    def __len__(self) -> int:
        return sum(map(len, self._by_lifetime.values()))

    def __iter__(self) -> Iterator[ProducerBatch]:
        """Iterate queue by queue, each oldest first. Batches must not be added or removed meanwhile."""
        for queue in self._by_lifetime.values():
            yield from queue

    def oldest(self) -> ProducerBatch | None:
        """The batch with the oldest record."""
        heads = [next(iter(queue)) for queue in self._by_lifetime.values() if queue]
        return min(heads, key=lambda batch: batch.created_ms, default=None)

    def oldest_first(self) -> list[ProducerBatch]:
        queues = [queue for queue in self._by_lifetime.values() if queue]
        if len(queues) == 1:
            return list(queues[0])
        return sorted((batch for queue in queues for batch in queue), key=lambda batch: batch.created_ms)

    def add(self, batch: ProducerBatch) -> None:
        """Add a batch at the end of the queue of its delivery.timeout.ms."""
        self._by_lifetime[batch.lifetime_ms][batch] = None
        self.next_expiry_ms = min(self.next_expiry_ms, batch.deadline_ms)

    def remove(self, batch: ProducerBatch) -> bool:
        """Remove a batch whose outcome is known, or whose pieces replace it. False if it was removed before."""
        batches = self._by_lifetime[batch.lifetime_ms]
        if batch not in batches:
            return False
        del batches[batch]
        if not batches and not any(self._by_lifetime.values()):
            self.next_expiry_ms = inf
        broker = batch.drained_to
        if broker is not None:  # as back_to_start
            self.under_way[broker] -= 1
            batch.drained_to = None
        return True

    def sent_to(self, batch: ProducerBatch, broker: int) -> None:
        """Count a drained batch as under way to this broker."""
        if batch.drained_to != broker:
            if batch.drained_to is not None:
                self.back_to_start(batch)
            self.under_way[broker] += 1
            batch.drained_to = broker

    def back_to_start(self, batch: ProducerBatch) -> None:
        """Note that a batch needs a descriptor again, or none any more, so it is no longer under way to a broker."""
        if batch.drained_to is not None:
            self.under_way[batch.drained_to] -= 1
            batch.drained_to = None

    def add_piece(self, piece: ProducerBatch) -> None:
        """Add a piece of a split batch. It keeps the deadline of the whole."""
        self.add(piece)
        heappush(self._pieces, (piece.deadline_ms, next(self._serial), piece))

    def put_in_order(self) -> None:
        """Sort each queue by deadline, after adoption: it adds batches topic by topic."""
        for queue in self._by_lifetime.values():
            for batch in sorted(queue, key=lambda batch: batch.deadline_ms):
                queue.move_to_end(batch)

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        """Batches past delivery.timeout.ms, oldest first in each queue. They stay here until they are removed."""
        expired: list[ProducerBatch] = []
        for queue in self._by_lifetime.values():
            for batch in queue:
                if batch.deadline_ms > now_ms:
                    break
                expired.append(batch)
        pieces = self._pieces
        while pieces and (pieces[0][0] <= now_ms or pieces[0][2].is_all_decided):
            piece = heappop(pieces)[2]
            if piece in self._by_lifetime[piece.lifetime_ms] and piece not in expired:
                expired.append(piece)
        heads_ms = [next(iter(queue)).deadline_ms for queue in self._by_lifetime.values() if queue]
        self.next_expiry_ms = min(heads_ms, default=inf)
        if pieces and pieces[0][0] < self.next_expiry_ms:
            self.next_expiry_ms = pieces[0][0]
        return expired
