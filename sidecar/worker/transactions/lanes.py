"""Lanes: opens and closes the transactional lanes of a worker, and keeps a record of each in the segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_stub.contract.wire import LocalCode
from sidecar.producer.lanes import TRANSACTIONAL
from sidecar.shm.layout import LANES_MAX
from sidecar.worker.streams.lane import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sidecar.producer.core import Core
    from sidecar.producer.transaction_manager import TransactionManager
    from sidecar.shm.lane_records import LaneRecords
    from sidecar.worker.streams.session import ClientSession
    from sidecar.worker.topics.topics import Topics


class Lanes:
    """By transactional id. Belongs to the worker's loop. A lane's number is its row in the segment + TRANSACTIONAL."""

    def __init__(self, records: LaneRecords, core: Core, topics: Topics) -> None:
        self._records = records
        self._accumulator = core.accumulator
        self._sender = core.sender
        self._topics = topics
        self._by_id: dict[str, Lane] = {}
        self._by_number: dict[int, Lane] = {}
        self._stored: dict[int, bytes] = {}
        """By lane: the content of its record."""
        self._free = list(range(TRANSACTIONAL + LANES_MAX - 1, TRANSACTIONAL - 1, -1))

    def __iter__(self) -> Iterator[Lane]:
        """Iterate over a copy, so lanes may be closed meanwhile."""
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def of_id(self, transactional_id: str) -> Lane | None:
        return self._by_id.get(transactional_id)

    def of_number(self, number: int) -> Lane | None:
        return self._by_number.get(number)

    def open(
        self, transactional_id: str, session: ClientSession, make: Callable[[int], TransactionManager]
    ) -> Lane | None:
        """Open a lane for an id that has none. ``make`` gets its number. None if all are in use."""
        if not self._free:
            return None
        lane = Lane(make(self._free.pop()), session)
        self._by_id[transactional_id] = self._by_number[lane.number] = lane
        self._accumulator.open_lane(lane.manager)
        content = self._stored[lane.number] = lane.manager.record
        self._records.open(lane.number - TRANSACTIONAL, transactional_id, content)
        return lane

    def store(self, lane: Lane) -> None:
        """Store the lane's record, if it has changed. Call before each request that the manager asks for."""
        content = lane.manager.record
        if content != self._stored[lane.number]:
            self._stored[lane.number] = content
            self._records.store(lane.number - TRANSACTIONAL, content)

    def close(self, lane: Lane) -> bool:
        """Give up the lane of a client that is gone. False while something of it is left: try again later."""
        if not self.is_quiet(lane) or not self._topics.forget_lane(lane.number):
            return False
        self._accumulator.close_lane(lane.number)
        self._records.free(lane.number - TRANSACTIONAL)
        del (
            self._by_id[lane.manager.transactional_id],
            self._by_number[lane.number],
            self._stored[lane.number],
        )
        self._free.append(lane.number)
        return True

    def check_clients(self) -> None:
        """Abandon the transactions of clients that are gone for good, and close their lanes once nothing of them is
        left.
        """
        for lane in self:
            if lane.session is not None and lane.session.is_gone:
                lane.session = None
                lane.manager.abandon()
            if lane.session is None and lane.manager.is_over:
                self.close(lane)

    # --- the records of a lane ------------------------------------------------------------------------------

    def is_quiet(self, lane: Lane) -> bool:
        """Whether none of its accepted records is unsent or unanswered."""
        return self._accumulator.is_quiet(lane.number) and self._topics.is_quiet(lane.number)

    def flush(self, lane: Lane, now_ms: float) -> None:
        """End linger for its records, including those that wait for metadata."""
        self._accumulator.expedite_lane(lane.number, now_ms)
        self._topics.flush_lane(lane.number)
        self._sender.wake()

    def may_send_more(self, lane: Lane, now_ms: float) -> None:
        """Continue with records that the manager would not let go before. Call after each answer that it took."""
        self._sender.lane_changed(lane.number, now_ms)

    def abort(self, lane: Lane, now_ms: float) -> None:
        """End its records that were not sent. Those on the wire are awaited, and are not sent again."""
        text = f"Its transaction is aborted. {lane.manager.cause[1]}".rstrip()
        self._topics.abort_lane(lane.number, LocalCode.TXN_ABORTED, text, now_ms)
        self._sender.abort_lane(lane.number, text, now_ms)
