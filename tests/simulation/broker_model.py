"""A Kafka cluster's treatment of Produce requests, as far as the producer can see: a model, not an emulation.

Sequence rules as Kafka's ProducerStateManager and as measured on Kafka 4.1. A batch is known again by epoch, first
and last sequence among the last five. Anything else that is not next is OUT_OF_ORDER; an unknown or forgotten id is
taken at any sequence. Size and content are judged before sequences, as in UnifiedLog.append. The topic's bounds may
become narrower while batches are under way.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

MASK = (1 << 31) - 1
MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
OUT_OF_ORDER = 45
INVALID_EPOCH = 47
INVALID_RECORD = 87


class Answer(NamedTuple):
    code: int
    base_offset: int = -1
    record_errors: tuple[tuple[int, str | None], ...] = ()


class WireBatch(NamedTuple):
    """A batch as its bytes left: later changes to it do not reach them. ``generation`` is the topic's, by its id."""

    partition: int
    payloads: list[Any]
    producer_id: int
    epoch: int
    base_sequence: int
    max_timestamp_ms: int
    generation: int | None


@dataclass
class ProducerState:
    epoch: int
    appended_ms: float = 0.0
    last_timestamp_ms: float = 0.0
    """Of the last batch, as its records say."""
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))
    """(first sequence, last sequence, base offset) of the last five."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][1] if self.batches else -1


class PartitionLog:
    """One partition: its records in order, and what is remembered of its producers. Survives leader
    changes, not the topic. ``happened`` counts what it did."""

    def __init__(self, *, records_max: int, happened: Counter[str], expiration_ms: float = inf) -> None:
        self.records: list[Any] = []
        self.records_max = records_max
        self.oldest_ms = -inf
        """A batch of older records is refused (message.timestamp.before.max.ms)."""
        self.needs_keys = False
        self.producers: dict[int, ProducerState] = {}
        self.forgotten: set[int] = set()
        self.expiration_ms = expiration_ms
        self.happened = happened

    def forget_expired(self, now_ms: float) -> None:
        """The broker's check: ids go by the timestamp of their last batch."""
        for producer_id, state in list(self.producers.items()):
            if now_ms - state.last_timestamp_ms >= self.expiration_ms:
                is_idle = now_ms - state.appended_ms >= self.expiration_ms
                self.happened[
                    "id forgotten after a silence" if is_idle else "id forgotten by timestamps"
                ] += 1
                del self.producers[producer_id]
                self.forgotten.add(producer_id)

    def append(self, batch: WireBatch, now_ms: float, *, forgets: bool = False) -> Answer:
        """``forgets``: the id is lost just before the batch if one before it is missing, so that this one is taken."""
        answer = self._append(batch, now_ms, forgets)
        if answer.code:
            self.happened[f"refused with {answer.code} by the log"] += 1
        return answer

    def _append(self, batch: WireBatch, now_ms: float, forgets: bool) -> Answer:
        payloads = batch.payloads
        if len(payloads) > self.records_max:
            return Answer(MESSAGE_TOO_LARGE)
        if batch.max_timestamp_ms < self.oldest_ms:
            return Answer(
                INVALID_TIMESTAMP, record_errors=tuple((index, None) for index in range(len(payloads)))
            )
        bad = tuple(
            (index, None)
            for index, payload in enumerate(payloads)
            if payload.is_bad or (self.needs_keys and payload.is_keyless)
        )
        if bad:
            return Answer(INVALID_RECORD, record_errors=bad)
        if batch.producer_id < 0:
            return Answer(0, self._store(payloads))
        first, epoch = batch.base_sequence, batch.epoch
        last = (first + len(payloads) - 1) & MASK
        state = self.producers.get(batch.producer_id)
        if state is None:
            if batch.producer_id in self.forgotten:
                self.happened["batch of a forgotten id taken"] += 1
            state = self.producers[batch.producer_id] = ProducerState(epoch)
        elif epoch < state.epoch:
            return Answer(INVALID_EPOCH)
        elif epoch > state.epoch:
            if first != 0:
                return Answer(OUT_OF_ORDER)
            state = self.producers[batch.producer_id] = ProducerState(epoch)
        else:
            for first_known, last_known, offset in state.batches:
                if (first_known, last_known) == (first, last):
                    self.happened["duplicate recognised"] += 1
                    return Answer(0, offset)
            missing = (first - state.last_sequence - 1) & MASK
            if missing:
                if not forgets or missing > MASK // 2:
                    return Answer(OUT_OF_ORDER)
                self.happened["id forgotten between two batches"] += 1
                state = self.producers[batch.producer_id] = ProducerState(epoch)
        offset = self._store(payloads)
        state.batches.append((first, last, offset))
        state.appended_ms, state.last_timestamp_ms = now_ms, batch.max_timestamp_ms
        return Answer(0, offset)

    def _store(self, payloads: list[Any]) -> int:
        offset = len(self.records)
        self.records.extend(payloads)
        return offset
