"""Lanes: opens and closes the transactional lanes of a worker, and keeps a record of each in the segment."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from client_stub.contract.wire import LocalCode
from sidecar.producer.lanes import TRANSACTIONAL
from sidecar.producer.transaction_manager import SELF_ADDING_VERSION
from sidecar.producer.transaction_record import unpack_transaction_record
from sidecar.producer.transaction_states import TransactionState
from sidecar.shm.layout import LANES_MAX
from sidecar.worker.streams.lane import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sidecar.producer.core import Core
    from sidecar.producer.partition_queue import PartitionQueue
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.transaction_manager import TransactionManager
    from sidecar.shm.lane_records import LaneRecords
    from sidecar.worker.streams.session import ClientSession
    from sidecar.worker.topics.topics import Topics

log = logging.getLogger(__name__)


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
        self.make: Callable[[str, int], TransactionManager]
        """Makes the manager of an id and lane. Set by the port."""
        self.ask_for_sequence: Callable[[PartitionQueue], None]
        """Asks which sequence is next in a partition of a dead worker's transaction. Set where the worker is built."""
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

    def open(self, transactional_id: str, session: ClientSession | None) -> Lane | None:
        """Open a lane for an id that has none; ``session`` None: for its stages. None if all are in use."""
        if not self._free:
            return None
        manager = self.make(transactional_id, self._free.pop())
        if session is not None:
            manager.client = session.row.index, session.row.generation
        lane = self._add(manager, manager.record)
        lane.session = session
        self._records.open(lane.number - TRANSACTIONAL, transactional_id, self._stored[lane.number])
        return lane

    def _add(self, manager: TransactionManager, content: bytes) -> Lane:
        lane = Lane(manager, None)
        self._by_id[manager.transactional_id] = self._by_number[lane.number] = lane
        self._accumulator.open_lane(manager)
        self._stored[lane.number] = content
        manager.store = partial(self.store, lane)
        return lane

    def store(self, lane: Lane) -> None:
        """Store the lane's record, if it has changed. Call before each request that the manager asks for."""
        content = lane.manager.record
        if content != self._stored[lane.number]:
            self._stored[lane.number] = content
            self._records.store(lane.number - TRANSACTIONAL, content)

    def close(self, lane: Lane) -> bool:
        """Give up the lane of a client that is gone. False while something of it is left: try again later."""
        if (
            lane.stages
            or lane.has_stagers
            or not self.is_quiet(lane)
            or not self._topics.forget_lane(lane.number)
        ):
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

    def note_included(self, batch: ProducerBatch) -> None:
        """Note a delivered batch of records of stages."""
        lane = self._by_number.get(batch.lane)
        if lane is not None and lane.inclusion is not None:
            lane.inclusion.note(batch.topic, batch.partition, batch.base_offset, batch.records.count)

    # --- after the death of a worker ------------------------------------------------------------------------

    def adopt(self) -> None:
        """Take over the lanes of a dead worker, each as its record has it. They have no client yet."""
        for row in self._records:
            number = row.row + TRANSACTIONAL
            self._free.remove(number)
            manager = self.make(row.transactional_id, number)
            record = unpack_transaction_record(row.content)
            if record is None:
                log.error("ALARM: the record of transactional id %r cannot be read.", row.transactional_id)
            else:
                manager.client = record.client_row, record.client_generation
                manager.adopt(record)
            self._add(manager, row.content)
            if manager.state is not TransactionState.READY or manager.version < SELF_ADDING_VERSION:
                self._accumulator.lanes[number].continue_transaction(self.ask_for_sequence)

    def of_client(self, client: tuple[int, int]) -> Lane | None:
        """The lane of a client's row and generation."""
        return next((lane for lane in self._by_id.values() if lane.manager.client == client), None)

    def manager_of(self, number: int) -> TransactionManager:
        """The manager of a lane in which the journal has records."""
        return self.lane_of(number).manager

    def lane_of(self, number: int) -> Lane:
        """A lane of which something is left."""
        lane = self._by_number.get(number)
        if lane is None:
            log.error("ALARM: records of transactional lane %d have no id. They end as aborted.", number)
            self._free.remove(number)
            lane = self._add(self.make(f"(lane {number})", number), b"")
        return lane

    def adopted(self, now_ms: float) -> None:
        """End what the dead worker left of transactions that are over, and those whose client is gone. Call after its
        records were read.
        """
        for lane in self:
            manager = lane.manager
            if lane.session is None:
                manager.abandon()
            if manager.state not in (TransactionState.IN_TRANSACTION, TransactionState.COMMITTING):
                self.abort(lane, now_ms)
                continue
            text = "Another producer with its transactional id fenced the one that sent it."
            for queue in self._accumulator.lanes[lane.number]:
                for batch in list(queue.batches):
                    if batch.has_sequence and (batch.producer_id, batch.epoch) != manager.identity:
                        self._sender.give_up(batch, LocalCode.TXN_ABORTED, text, now_ms)

    # --- the records of a lane ------------------------------------------------------------------------------

    def is_quiet(self, lane: Lane) -> bool:
        """Whether none of its accepted records is unsent or unanswered, and their outcomes are with their clients."""
        return (
            not self._sender.has_decided
            and self._accumulator.is_quiet(lane.number)
            and self._topics.is_quiet(lane.number)
        )

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
