"""Gauges: publishes a worker's own numbers as counters of its slot, for readers of the segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.shm.slots import RunningTotals
from sidecar.shm.stage_records import StageEnd
from sidecar.shm.stage_states import StageRowState

if TYPE_CHECKING:
    from sidecar.producer.core import Core
    from sidecar.worker.sides import Brokers
    from sidecar.worker.slot_memory import SlotMemory
    from sidecar.worker.stubs.shares import Shares
    from sidecar.worker.topics.topics import Topics


class Gauges:
    """Publishes in each periodic round of the worker's loop. Unchanged rows are not stored."""

    def __init__(
        self,
        memory: SlotMemory,
        core: Core,
        topics: Topics,
        brokers: Brokers,
        shares: Shares,
    ) -> None:
        self._counters = memory.counters
        self._pool = memory.pool
        self._sender = core.sender
        self._incomplete = core.accumulator.incomplete
        self._ids = core.ids
        self._topics = topics
        self._links = brokers.links
        self._produce_port = brokers.produce_port
        self._transactions = brokers.transactions
        self._shares = shares
        self._running = RunningTotals(memory.counters)
        self._held: dict[str, int] = {}
        self._counted: dict[str, int] = {}

    def publish(self, wakeups: int, now_ms: float) -> None:
        """Store the rooms' numbers that have changed. Counters go on from those of the slot's earlier workers."""
        sender, throttle_times = self._sender, self._sender.throttle_times
        open_ms, stages = self._transactions.open_ms(), self._transactions.all_stages
        held = {
            "buffer_pages_taken": self._pool.taken_count,
            "buffer_waiters": self._pool.waiting_count,
            "topics_waiting": self._topics.waiting.topic_count,
            "in_flight_requests": sender.in_flight_count,
            "broker_connections": self._links.connection_count,
            "incomplete_batches": len(self._incomplete),
            "produce_throttle_avg_ms": throttle_times.average_ms(now_ms),
            "produce_throttle_max_ms": throttle_times.max_ms(now_ms),
            "transactions_open": len(open_ms),
            "transaction_oldest_ms": max(open_ms, default=0),
            "stages_open": stages.count(StageRowState.OPEN),
            "stages_sealed": stages.count(StageRowState.SEALED),
            "stage_oldest_ms": stages.oldest_ms,
            "staged_bytes": self._shares.staged_bytes,
            "staged_bytes_max": self._shares.staged_bytes_max,
        }
        if held != self._held:
            self._held = held
            for row, value in held.items():
                self._counters.set(row, value)
        counts, transactions = sender.counts, self._transactions.tally
        counted = {
            "wakeups_total": wakeups,
            "requests_total": counts.requests,
            "request_errors_total": counts.request_errors,
            "batches_sent_total": counts.batches_sent,
            "batches_retried_total": counts.batches_retried,
            "batches_split_total": counts.batches_split,
            "batches_expired_total": counts.batches_expired,
            "batch_errors_total": counts.batch_errors,
            "bytes_sent_total": self._produce_port.bytes_sent,
            "requests_saved_total": self._produce_port.requests_saved,
            "record_errors_total": counts.record_errors,
            "late_answers_total": counts.late_answers,
            "epoch_bumps_total": self._ids.epoch_bumps,
            "produce_throttle_ms_total": counts.throttle_ms,
            "transactions_committed_total": transactions.committed,
            "transactions_aborted_total": transactions.aborted,
            "transactions_fenced_total": transactions.fenced,
            "stages_included_total": stages.ended[StageEnd.INCLUDED],
            "stages_dropped_total": stages.ended[StageEnd.DROPPED],
            "stages_expired_total": stages.ended[StageEnd.EXPIRED],
            "stages_abandoned_total": stages.ended[StageEnd.ABANDONED],
            "stages_evicted_total": stages.ended[StageEnd.EVICTED],
            "stages_failed_total": stages.ended[StageEnd.FAILED],
        }
        if counted != self._counted:
            self._counted = counted
            self._running.publish(counted)
