"""Goal: each frame between stub and daemon has the bytes that earlier versions read and write.

wire_frames.txt has one line a frame: ``NAME frame0 [frame1]`` in hex, each below the drawing of its fields. The frames
here are made by the session, the topic lookup, the worker's port and the control endpoint themselves.
``python -m tests.worker.test_wire_frames`` prints the lines of today, without drawings.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from client_stub.contract.wire import (
    RELATIVE_ENDPOINTS,
    STAGE_BIT,
    Kind,
    LocalCode,
    Outcome,
    StagePart,
    TxnEffect,
    TxnPart,
    pack_outcome,
)
from client_stub.io import control_question
from client_stub.io.last_record import LastRecordQuestion
from client_stub.io.topic_lookup import TopicLookup
from client_stub.native.hot import RecordPacker
from client_stub.outbox.open_stage import OpenStage
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.submission import Submission
from client_stub.outbox.transaction import Transaction
from client_stub.outbox.transactional_outbox import TransactionalOutbox
from client_stub.outbox.txn_call import TxnCall
from client_stub.records.offsets import GroupMetadata, OffsetToCommit, offset_frames
from client_stub.records.record_fields import full_record
from client_stub.session import attachment
from client_stub.session.client_identity import ClientIdentity
from client_stub.session.session import Session
from sidecar.cli.orders import order_message
from sidecar.controller.front.asked_record import AskedRecord
from sidecar.controller.front.control_endpoint import ControlEndpoint
from tests.worker.harness import Harness
from tests.worker.port_harness import ListedEndpoint, Peer, PortHarness

GOLDEN = Path(__file__).with_name("wire_frames.txt")
CLIENT = bytes(range(20))
SECRET = bytes(range(100, 116))
TOKEN = b"1-0-9"
RECORDS = [
    full_record(b"key", b"value", [("name", b"x"), ("none", None)], 7, 1_700_000_000_001)[0],
    full_record(None, b"\0" * 300, None, None, None)[0],
]
Frames = list[bytes]


def payload(packer: Any) -> bytes:
    for record in RECORDS:
        packer.pack(record)
    return bytes(packer.view())


def stub_frames(records: bytes) -> Iterator[tuple[str, Frames]]:
    """By a session, from its first message to its last."""
    identity = ClientIdentity(
        name="app", pid=42, fork_generation=0, token="t0ken", hello_flags=RELATIVE_ENDPOINTS
    )
    it = Session(identity, delivery_timeout_ms=120_000)
    it.attachment._identity._client_id = CLIENT
    it.wake(0.0)
    yield "HELLO", it.attachment.take_effects()[0].frames
    it.receive_control([msgpack.packb([Kind.ASSIGNED, "worker-0.3.sock", 3, b"ticket"])], 0.0)
    yield "ATTACH", it.attachment.take_effects()[-1].frames
    it.receive_worker([msgpack.packb([Kind.WELCOME, 3, SECRET, False, 1 << 20, {}, []])], 0.0)
    submission = Submission(
        Outbox(max_block_ms=0, connect_timeout_ms=0, path="/x").waiters, "orders", None, 0, 1 << 40
    )
    submission.count = len(RECORDS)
    submission.seal(records)
    it.add([submission], 0.0, flush=True)
    yield "SUBMIT", [bytes(frame) for frame in it.next_frames() or ()]
    it.streams.windows[1].flush_sent_seq = 0
    it.add([], 0.0, flush=True)
    yield "FLUSH", it.next_frames() or []
    failed = Outcome(2, 0, 0, 9, 1, int(LocalCode.EXPIRED), 1, 3, 0, 1, -1, -1, b"", "expired")
    it.receive_worker([msgpack.packb([Kind.OUTCOMES, 9, 9]), pack_outcome(failed)], 0.0)
    yield "ACK", it.next_frames() or []
    yield "PING", it.ping_due(attachment.PING_INTERVAL_MS, is_moving=True) or []
    other = Session(identity, delivery_timeout_ms=120_000)
    other.wake(0.0)
    other.receive_control([msgpack.packb([Kind.ASSIGNED, "worker-0.3.sock", 3, b"ticket"])], 0.0)
    streams = [[9, "ended", 300, False]]
    other.receive_worker(
        [msgpack.packb([Kind.WELCOME, 3, SECRET, True, 1 << 20, {"streams": 200}, streams])], 0.0
    )
    yield "END_STREAM", other.next_frames() or []
    yield "BYE", it.bye() or []
    yield from transaction_frames(identity)


def attached_session(identity: ClientIdentity, **kind: Any) -> Session:
    it = Session(identity, delivery_timeout_ms=120_000, **kind)
    it.wake(0.0)
    it.receive_control([msgpack.packb([Kind.ASSIGNED, "worker-0.3.sock", 3, b"ticket"])], 0.0)
    limits = {"transactions": 1, "stages": 1}
    it.receive_worker([msgpack.packb([Kind.WELCOME, 3, SECRET, True, 1 << 20, limits, []])], 0.0)
    return it


def transaction_frames(identity: ClientIdentity) -> Iterator[tuple[str, Frames]]:
    it = attached_session(identity, transactional=("copy-1", 60_000))
    outbox = TransactionalOutbox(max_block_ms=0, connect_timeout_ms=0, path="/x", on_error=None)
    it.add_calls([TxnCall(TxnPart.INIT)])
    yield "TXN_INIT", it.next_frames() or []
    it.receive_worker([msgpack.packb([Kind.TXN, TxnPart.INIT, 0, 0, 0, ""])], 0.0)
    outbox.begin(Transaction(7, outbox.refuse_sends))
    submission = Submission(outbox.waiters, "orders", None, 0, 1 << 40)
    submission.count = 1
    submission.seal(b"x")
    it.add([submission], 0.0)
    assert msgpack.unpackb((it.next_frames() or [b""])[0])[10] == 7
    fields, payload = offset_frames([OffsetToCommit("in", 3, 17)], GroupMetadata("workers"))
    it.add_calls([TxnCall(TxnPart.OFFSETS, outbox.transaction, fields=(5, *fields), payload=payload)])
    yield "TXN_OFFSETS", it.next_frames() or []
    it.add_calls([TxnCall(TxnPart.END, outbox.transaction, commits=True)])
    yield "TXN_END", it.next_frames() or []
    packed = msgpack.packb([TOKEN])
    it = attached_session(identity, transactional=("copy-1", 60_000))
    it.add_calls([TxnCall(TxnPart.INCLUDE, outbox.transaction, fields=(6,), payload=packed)])
    yield "TXN_INCLUDE", it.next_frames() or []
    it.add_calls([TxnCall(StagePart.DROPPED, fields=(8, "copy-1", 3), payload=packed)])
    yield "STAGES_DROP", it.next_frames() or []
    it = attached_session(identity, stages=True)
    stage = OpenStage(1, outbox.refuse_sends, "copy-1", 3, "run-a")
    outbox.begin(stage)
    submission = Submission(outbox.waiters, "orders", None, 0, 1 << 40)
    submission.count = 500
    submission.seal(b"x")
    it.add([submission], 0.0)
    yield "STAGE_OPEN", it.next_frames() or []
    assert msgpack.unpackb((it.next_frames() or [b""])[0])[10] == STAGE_BIT | 1
    it.add_calls([TxnCall(StagePart.SEAL, stage)])
    yield "STAGE_SEAL", it.next_frames() or []
    it.add_calls([TxnCall(StagePart.DROP, stage)])
    yield "STAGE_DROP", it.next_frames() or []
    yield "STAGE", [msgpack.packb([Kind.STAGE, StagePart.SEAL, 1, 0, TxnEffect.NONE, "", TOKEN])]


def lookup_frames() -> Iterator[tuple[str, Frames]]:
    opened: list[Frames] = []

    class Recording:
        def __init__(self, path: str, keys: object, tries: int = 0) -> None: ...

        def open_control(self, frames: Frames) -> None:
            opened.append(frames)

        def poll(self, timeout_ms: float) -> list[Any]:
            return []

        def close(self, farewell: None) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_question, "Transport", Recording)
        lookup = TopicLookup("/x", "orders", 1_500.0, 0.0)
        lookup.step(0.0)
        lookup.close()
    yield "TOPICS", opened[0]


class RawEndpoint(ListedEndpoint):
    """Keeps the frames as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.raw: list[Frames] = []

    def send(self, routing_id: bytes, frames: list[bytes]) -> bool:
        self.raw.append([bytes(frame) for frame in frames])
        return super().send(routing_id, frames)


def worker_frames(harness: Harness) -> Iterator[tuple[str, Frames]]:
    port_harness = PortHarness(harness)
    endpoint = port_harness.port.endpoint = port_harness.endpoint = RawEndpoint()  # type: ignore[assignment]

    def last() -> Frames:
        return endpoint.raw[-1]

    peer = Peer(port_harness, b"routing", "app", CLIENT, 42)
    peer.send([Kind.PING])
    yield "HELLO_AGAIN", last()
    welcome = peer.attach()
    yield "WELCOME", [last()[0].replace(welcome[2], SECRET)]
    peer.submit(2)
    yield "RESEND", last()
    peer.submit(1)
    yield "ACCEPTED", last()
    peer.send([Kind.PING])
    yield "PONG", last()
    (client,) = port_harness.harness.sessions
    outcome = Outcome(1, 2, 1, 1, 1, 0, 1, 3, 0, 2, 77, -1, b"\3", "")
    client.row.ring_append(pack_outcome(outcome))
    port_harness.harness.outboxes.pending.add(client)
    port_harness.port.end_turn(0.0)
    yield "OUTCOMES", last()
    while client.row.ring_free_bytes > client.row.ring_bytes // 5:
        number = client.row.next_number
        client.row.ring_append(
            pack_outcome(Outcome(1, 2, 0, number, 1, 0, 5, 0, 0, 1, 9, -1, b"", "x" * 4_000))
        )
    peer.submit(2, payload=msgpack.packb([None, bytes(20_000)]))  # more pages are needed
    yield "HOLD", next(each for each in endpoint.raw if each[0][1:2] == bytes([Kind.HOLD]))
    peer.send([Kind.ACK, client.row.next_number - 1])
    yield "RESUME", next(each for each in endpoint.raw if each[0][1:2] == bytes([Kind.RESUME]))
    peer.submit(1, stream=2, topic="")
    yield "REFUSED", next(each for each in endpoint.raw if each[0][1:2] == bytes([Kind.REFUSED]))
    port_harness.harness.outboxes.send_after_outcomes(
        client, [Kind.TXN, TxnPart.END, 7, 120, TxnEffect.ABORTABLE, "expired"]
    )
    port_harness.port.end_turn(0.0)
    yield "TXN", next(each for each in endpoint.raw if each[0][1:2] == bytes([Kind.TXN]))
    port_harness.port.start_draining()
    port_harness.port.end_turn(0.0)
    port_harness.port.end_draining()
    port_harness.port.end_turn(0.0)
    yield "DRAINING", next(each for each in reversed(endpoint.raw) if each[0][1:2] == bytes([Kind.DRAINING]))


def made(harness: Harness, records: bytes) -> dict[str, Frames]:
    return {
        name: frames
        for source in (stub_frames(records), lookup_frames(), worker_frames(harness))
        for name, frames in source
    }


def golden() -> dict[str, Frames]:
    lines = [line.split() for line in GOLDEN.read_text().splitlines() if line and not line.startswith("#")]
    return {name: [bytes.fromhex(frame) for frame in frames] for name, *frames in lines}


CONTROL = (
    "ASSIGNED", "TOPICS_REPLY", "ORDER_REPLY", "EXPLAIN_REPLY", "LAST_RECORD_REPLY", "ORDER", "EXPLAIN", "LAST_RECORD"
)  # fmt: skip
"""Of the control endpoint: compared in test_control_frames."""


def test_frames_have_the_bytes_of_the_golden_file(harness: Harness) -> None:
    expected = {name: frames for name, frames in golden().items() if name not in CONTROL}
    found = made(harness, payload(RecordPacker()))
    assert {name: [each.hex() for each in frames] for name, frames in found.items()} == {
        name: [each.hex() for each in frames] for name, frames in expected.items()
    }


def control_frames() -> Iterator[tuple[str, Frames]]:
    """The answers as the control endpoint packs them; its socket is a list."""
    sent: list[Frames] = []

    async def topics(
        names: list[str] | None, max_wait_ms: float | None, caller: object
    ) -> list[list[object]]:
        return [["orders", 0, [[0, 1, [1, 2], [1, 2, 3], [3]], [1, None, []]]], ["gone", 3, []]]

    async def order(verb: str, names: list[str], caller: object) -> list[object]:
        return [{"topics": dict.fromkeys(names, 1_790_000_000_000), "drained_since_ms": None}, [verb]]

    async def explain(name: str, caller: object) -> list[object]:
        return [{"asked": name}]

    async def last_record(question: AskedRecord, caller: object) -> list[object]:
        return [3, [17, 1_790_000_000_000, question.key, [["name", b"x"], ["none", None]]]]

    asked = LastRecordQuestion(
        "", "commits", b"key", 5.0, 0.0, name="app", token="token", creates=True
    )._question(5.0)

    async def run(folder: Path) -> None:
        endpoint = ControlEndpoint(folder / "control.sock")
        endpoint.last_record = last_record
        endpoint.serve(lambda fields, caller: ("worker-0.3.sock", 3, b"ticket"), topics, order, explain)
        try:
            endpoint._endpoint.send = lambda routing_id, frames: bool(sent.append(list(frames))) or True  # type: ignore[method-assign]
            endpoint._on_message(
                b"x", [memoryview(msgpack.packb([Kind.HELLO, 1, CLIENT, "app", 42, None]))], 0
            )
            endpoint._on_message(b"x", [memoryview(msgpack.packb([Kind.TOPICS, ["orders", "gone"], 5.0]))], 0)
            await asyncio.gather(*endpoint._tasks)
            endpoint._on_message(b"x", [memoryview(msgpack.packb(order_message("pause", ("orders",))))], 0)
            await asyncio.gather(*endpoint._tasks)
            endpoint._on_message(b"x", [memoryview(msgpack.packb([Kind.EXPLAIN, "orders"]))], 0)
            await asyncio.gather(*endpoint._tasks)
            endpoint._on_message(b"x", [memoryview(msgpack.packb(asked))], 0)
            await asyncio.gather(*endpoint._tasks)
            sent.append([msgpack.packb(order_message("pause", ("orders",)))])
            sent.append([msgpack.packb([Kind.EXPLAIN, "orders"])])
            sent.append([msgpack.packb(asked)])
        finally:
            endpoint.close()

    with tempfile.TemporaryDirectory(prefix="ks-") as folder:
        asyncio.run(run(Path(folder)))
    yield from zip(CONTROL, sent, strict=True)


def test_control_frames() -> None:
    assert dict(control_frames()) == {name: golden()[name] for name in CONTROL}


def test_every_kind_has_a_golden_frame_below_a_drawing() -> None:
    frames = golden()
    assert frames.keys() == {kind.name for kind in Kind}
    assert 22 not in set(Kind), "reserved: it was CREDIT"
    for name, found in frames.items():
        fields = msgpack.unpackb(found[0], strict_map_key=False)
        assert fields[0] == Kind[name]
        above = GOLDEN.read_text().split(f"\n{name} ")[0].splitlines()[-1]
        assert above.startswith("#"), f"{name} has no drawing"
        assert above.count(",") >= len(fields) - 2, f"{name}: the drawing lacks fields of {fields}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(Path(folder) / "segment")
        for name, frames in {**made(harness, payload(RecordPacker())), **dict(control_frames())}.items():
            print(name, *(frame.hex() for frame in frames))
        harness.close()


if __name__ == "__main__":
    main()
