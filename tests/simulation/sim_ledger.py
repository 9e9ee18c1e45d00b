"""The one check every simulated run ends in: accepted = delivered + failed, nothing twice, order kept."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from client_stub.contract.wire import Persistence
from sidecar.producer.producer_batch import ProducerBatch

from .broker_model import OUT_OF_ORDER, PartitionLog


class Payload(NamedTuple):
    partition: int
    number: int
    is_bad: bool
    """The broker rejects this record (INVALID_RECORD)."""
    is_keyless: bool = False
    """The broker rejects it once the topic is compacted."""
    client: int = 0
    """Order is promised to each, not between them."""
    is_express: bool = False
    """It stands in the express chain."""


class SimLedger:
    def __init__(self) -> None:
        self.accepted: list[Payload] = []
        self.outcomes: dict[Payload, tuple[int, int, int]] = {}
        """payload → (code, persistence, offset)"""
        self.last_told: dict[tuple[int, int], int] = {}
        """(Partition, client) → number of its last record that was told as delivered."""
        self.told_late: list[Payload] = []
        self.generation_then: dict[Payload, int] = {}
        """The topic that was there when its outcome was told."""

    def told(self, batch: ProducerBatch, generation: int) -> None:
        for index, payload in enumerate(batch.records.payloads):  # type: ignore[attr-defined]
            assert payload not in self.outcomes, f"{payload} was told twice"
            offset = batch.base_offset + index if batch.base_offset >= 0 else -1
            self.generation_then[payload] = generation
            self.outcomes[payload] = (batch.code, batch.persistence, offset)
            if not batch.code:
                key = payload.partition, payload.client
                if payload.number < self.last_told.get(key, -1):
                    self.told_late.append(payload)
                self.last_told[key] = payload.number

    def check(
        self,
        generations: list[dict[int, PartitionLog]],
        *,
        told_in_order: bool,
        single: bool,
        ordered: bool,
        remembered: bool,
        fenced: bool,
    ) -> None:
        """``generations``: the logs by partition, of the topic and of those that were deleted before it. ``single``: no
        log has a record twice. ``remembered``: no broker forgot the producer id too soon, so nothing was overtaken."""
        missing = [payload for payload in self.accepted if payload not in self.outcomes]
        assert not missing, f"accepted and never told: {missing[:5]} of {len(missing)}"
        logs = [(partition, log) for each in generations for partition, log in each.items()]
        everywhere: Counter[Payload] = Counter()
        for _, log in logs:
            copies = Counter(log.records)
            everywhere += copies
            twice = [payload for payload, found in copies.items() if found > 1]
            assert not (single and twice), f"in the log more than once: {twice[:5]}"
        for payload, (code, persistence, offset) in self.outcomes.items():
            found = everywhere[payload]
            if persistence == Persistence.NOT_PERSISTED:
                # Records of a topic that was deleted before are gone; nothing may be there then, or come later.
                there = [each[payload.partition] for each in generations[self.generation_then[payload] - 1 :]]
                assert not any(payload in log.records for log in there), (
                    f"{payload} failed with {code} as not persisted, but is in the log"
                )
                assert code != OUT_OF_ORDER or not remembered, f"{payload} was overtaken, and failed for that"
            if code == 0:
                assert found >= 1, f"{payload} was told delivered, but is not in the log"
                if offset >= 0:
                    own = [each[payload.partition].records for each in generations]
                    assert any(records[offset : offset + 1] == [payload] for records in own), (
                        f"{payload} is not at {offset}"
                    )
        if told_in_order:
            assert not self.told_late, f"told as delivered behind later records: {self.told_late[:5]}"
        if ordered:
            for partition, log in logs:
                # A record given up may still arrive from a dead connection, after later ones, unless a higher epoch
                # of the same producer id fences it. Without sequences a record may stand twice.
                kept = [each for each in log.records if fenced or self.outcomes[each][0] == 0]
                by_client: dict[int, list[Payload]] = {}
                for payload in kept:
                    by_client.setdefault(payload.client, []).append(payload)
                for client, own in by_client.items():
                    numbers = [payload.number for payload in dict.fromkeys(own)]
                    assert numbers == sorted(numbers), (
                        f"client {client} is out of order in partition {partition}: {numbers}"
                    )
