"""Stages at a worker, by the frames of its clients: who stages, and who includes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from client_stub.contract.wire import STAGE_BIT, Kind, StagePart, TxnEffect, TxnPart
from sidecar.common.model import ProducerIdAndEpoch
from sidecar.producer.transaction_states import TransactionState
from sidecar.worker.streams.lane import Lane
from sidecar.worker.streams.session import ClientSession

from .manual_worker import EPOCH
from .slot_harness import SNAPSHOT, STAMP_MS, SlotHarness

ID = "job-7"


def messages(session: ClientSession, kind: Kind) -> list[list[Any]]:
    """What the client was told since the last call, without the kind."""
    told = [msgpack.unpackb(frames[0]) for frames in (*session.outbox, *session.after_outcomes)]
    session.outbox.clear()
    session.after_outcomes.clear()
    return [message[1:] for message in told if message[0] == kind]


class Stager:
    """A client that stages."""

    def __init__(
        self, harness: SlotHarness, client_id: bytes = b"s" * 20, secret: bytes | None = None
    ) -> None:
        self.harness = harness
        self.session, _ = harness.attach(secret, client_id)
        self._streams: dict[str, int] = {}
        self._sent: dict[int, int] = {}
        """By stage: its records."""
        self.told: list[list[Any]] = []

    def _frame(self, kind: Kind, *fields: Any, payload: bytes = b"") -> None:
        port = self.harness.rooms.brokers.transactions.stages
        port.on_frame(self.session, kind, list(fields), payload, self.harness.now_ms)

    def open(self, number: int, caller_number: int = 1, owner: str = "run-a", name: str = ID) -> None:
        self._frame(Kind.STAGE_OPEN, number, caller_number, owner, name)

    def send(
        self,
        number: int,
        values: Sequence[bytes],
        partitions: Sequence[int | None] | None = None,
        topic: str = "t",
    ) -> bool:
        """One submission; whether it was accepted."""
        stream_id = self._streams.setdefault(topic, len(self._streams) + 1)
        stream = self.session.streams.get(stream_id)
        payload = b"".join(
            msgpack.packb([None, value, None, partition])
            for value, partition in zip(values, partitions or [None] * len(values), strict=True)
        )
        seq = 1 if stream is None else stream.position + 1
        fields = [EPOCH, stream_id, seq, topic, STAMP_MS, 1, 0, len(values)]
        intake = self.harness.rooms.stubs.intake
        is_taken = intake.submit(self.session, fields, payload, self.harness.now_ms, 0, STAGE_BIT | number)
        if is_taken:
            self._sent[number] = self._sent.get(number, 0) + len(values)
        return is_taken

    def seal(self, number: int, records: int | None = None) -> bytes:
        """Seal it; the token, or b"" and :attr:`told` has why there is none."""
        positions = [[stream, state.position] for stream, state in self.session.streams.items()]
        records = self._sent.get(number, 0) if records is None else records
        self._frame(Kind.STAGE_SEAL, number, records, payload=msgpack.packb(positions))
        step(self.harness)
        self.told = messages(self.session, Kind.STAGE)
        answers = [message for message in self.told if message[:2] == [StagePart.SEAL, number]]
        return answers[0][5] if answers and not answers[0][2] else b""

    def stage(
        self, number: int, values: Sequence[bytes], partitions: Sequence[int | None] | None = None
    ) -> bytes:
        """A whole one."""
        self.open(number)
        assert self.send(number, values, partitions)
        return self.seal(number)

    def drop(self, number: int) -> None:
        self._frame(Kind.STAGE_DROP, number)
        step(self.harness)

    def drop_many(self, tokens: Sequence[bytes] = (), up_to: int | None = None, name: str = ID) -> list[Any]:
        """[code, effect, text, count]."""
        self._frame(Kind.STAGES_DROP, 5, name, up_to, payload=msgpack.packb(list(tokens)))
        step(self.harness)
        ((_, _, *answer),) = [
            each for each in messages(self.session, Kind.STAGE) if each[0] == StagePart.DROPPED
        ]
        return answer


class Includer:
    """The client that has the transactional id, with a transaction open under transaction.version 2."""

    def __init__(
        self, harness: SlotHarness, client_id: bytes = b"i" * 20, secret: bytes | None = None
    ) -> None:
        self.harness = harness
        self.requests = self.number = 0
        self.session, _ = harness.attach(secret, client_id)
        lanes = harness.rooms.lanes
        lane = lanes.of_id(ID) or lanes.open(ID, self.session)
        assert lane is not None
        self.lane = lane
        if lane.session is self.session and lane.manager.state is TransactionState.IN_TRANSACTION:
            self.number = lane.manager.number
            return
        self.session.lane, lane.session = lane, self.session
        manager = lane.manager
        manager.client = self.session.row.index, self.session.row.generation
        manager.is_abandoned, manager.number = False, 0  # as an init has it
        manager._transaction_version = lambda: 2
        manager.state, manager.identity = TransactionState.READY, ProducerIdAndEpoch(900, 5)
        self.begin(1)

    def begin(self, number: int) -> None:
        self.number = number
        assert self.lane.manager.begin(number)

    def include(self, *tokens: bytes, request: int | None = None) -> list[Any]:
        """[code, effect, text, [records, bytes]]."""
        self.requests += 1
        number = self.requests if request is None else request
        port = self.harness.rooms.brokers.transactions.stages
        fields = [self.number, number]
        port.on_frame(
            self.session, Kind.TXN_INCLUDE, fields, msgpack.packb(list(tokens)), self.harness.now_ms
        )
        ((what, answered, *answer),) = messages(self.session, Kind.TXN)
        assert (what, answered) == (TxnPart.INCLUDE, number)
        assert answer[1] == TxnEffect.NONE
        return answer

    def drop(self, tokens: Sequence[bytes]) -> None:
        port = self.harness.rooms.brokers.transactions.stages
        payload = msgpack.packb(list(tokens))
        port.on_frame(self.session, Kind.STAGES_DROP, [9, ID, None], payload, self.harness.now_ms)
        step(self.harness)
        messages(self.session, Kind.STAGE)


def step(harness: SlotHarness) -> None:
    """What a turn does for transactions and stages, until nothing is left."""
    transactions = harness.rooms.brokers.transactions
    for _ in range(100):
        if not transactions.active:
            break
        transactions.step(harness.now_ms)
    harness.rooms.pages.give_back(harness.now_ms)


def send_all(harness: SlotHarness) -> None:
    """Turns, until nothing is on its way."""
    for _ in range(60):
        harness.topics.waiting.go_on(harness.now_ms)
        harness.turn()
        if harness.sender.is_idle and not harness.topics.waiting.entry_count:
            harness.turn()
            return
    raise AssertionError("not idle")


def know_topic(harness: SlotHarness) -> None:
    harness.topics.on_snapshot(SNAPSHOT, harness.now_ms)


def ledger(harness: SlotHarness) -> dict[str, int]:
    """The counters of records; they balance."""
    values = harness.counters.read()
    names = ("accepted", "delivered", "failed", "dead_lettered", "aborted")
    found = {name: values[f"records_{name}_total"] for name in names}
    found |= {name: values[f"records_{name}"] for name in ("held", "staged")}
    assert found["accepted"] == sum(found.values()) - found["accepted"], found
    return {name: value for name, value in found.items() if value}


def adopted(harness: SlotHarness) -> SlotHarness:
    """The successor of a dead worker, as Worker.adopt leaves it."""
    following = SlotHarness(harness.segment, harness.broker, harness.segment.slot(0).incarnation + 1)
    following.rooms.lanes.adopted(following.now_ms)
    following.rooms.stages.adopted(following.now_ms)
    know_topic(following)
    return following


def lane_of(harness: SlotHarness) -> Lane:
    lane = harness.rooms.lanes.of_id(ID)
    assert lane is not None
    return lane
