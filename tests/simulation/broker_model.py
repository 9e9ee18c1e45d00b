"""What a Kafka cluster does with Produce requests, as far as the producer can see: a model, not an emulation.

Sequence rules as Kafka's ProducerStateManager and as measured on Kafka 4.1: a batch is known again by epoch,
first and last sequence among the last five; anything else that is not next is OUT_OF_ORDER; an unknown id is
taken at any sequence. Size and content are judged before sequences, as in UnifiedLog.append.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MASK = (1 << 31) - 1


class Answer(NamedTuple):
    code: int
    base_offset: int = -1
    record_errors: tuple[tuple[int, str | None], ...] = ()


@dataclass
class ProducerState:
    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))
    """(first sequence, last sequence, base offset) of the last five."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][1] if self.batches else -1


class PartitionLog:
    """One partition: its records in order, and what is remembered of its producers. Survives leader
    changes."""

    def __init__(self, *, records_max: int) -> None:
        self.records: list[Any] = []
        self.records_max = records_max
        self.producers: dict[int, ProducerState] = {}

    def append(self, payloads: list[Any], producer_id: int, epoch: int, base_sequence: int) -> Answer:
        if len(payloads) > self.records_max:
            return Answer(10)
        bad = tuple((index, None) for index, payload in enumerate(payloads) if payload.is_bad)
        if bad:
            return Answer(87, record_errors=bad)
        if producer_id < 0:
            return Answer(0, self._store(payloads))
        last = (base_sequence + len(payloads) - 1) & MASK
        state = self.producers.get(producer_id)
        if state is None:
            state = self.producers[producer_id] = ProducerState(epoch)
        elif epoch < state.epoch:
            return Answer(47)
        elif epoch > state.epoch:
            if base_sequence != 0:
                return Answer(45)
            state = self.producers[producer_id] = ProducerState(epoch)
        else:
            for first_known, last_known, offset in state.batches:
                if (first_known, last_known) == (base_sequence, last):
                    return Answer(0, offset)
            if base_sequence != (state.last_sequence + 1) & MASK:
                return Answer(45)
        offset = self._store(payloads)
        state.batches.append((base_sequence, last, offset))
        return Answer(0, offset)

    def _store(self, payloads: list[Any]) -> int:
        offset = len(self.records)
        self.records.extend(payloads)
        return offset
