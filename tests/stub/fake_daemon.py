"""A scripted daemon on real ipc sockets: speaks ``client_stub.contract.wire``, and does what a test tells it.

By default it admits everybody, accepts everything and delivers it to partition 0 at once. ``accept``,
``deliver`` and ``refuse_hello`` change that; ``do`` runs a function on its thread (sockets belong to it).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import zmq

from client_stub.contract.wire import (
    Kind,
    Outcome,
    OutcomeKind,
    Persistence,
    Shape,
    StagePart,
    SubmitFlag,
    TxnPart,
    pack_outcome,
)


@dataclass
class Submit:
    """One SUBMIT as it arrived."""

    client_id: bytes
    stream: int
    seq: int
    topic: str
    base_timestamp_ms: int
    format: int
    flags: int
    count: int
    payload: bytes
    transaction: int = 0

    @property
    def records(self) -> list[Any]:
        unpacker = msgpack.Unpacker(max_buffer_size=1 << 30)
        unpacker.feed(self.payload)
        return list(unpacker)


@dataclass
class Client:
    """A worker's memory of a stub; survives its connections, not ``forget_clients``."""

    client_id: bytes
    name: str
    secret: bytes
    routing_id: bytes = b""
    positions: dict[int, int] = field(default_factory=dict)
    topics: dict[int, str] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    ring: list[tuple[int, bytes]] = field(default_factory=list)
    next_number: int = 1
    acked: int = 0
    accepted_bytes: int = 0
    log: list[Submit] = field(default_factory=list)
    """Accepted, in order: what a journal would hold."""


class FakeDaemon:
    def __init__(self, run_dir: Path, *, worker_epoch: int = 1, limits: dict[str, Any] | None = None) -> None:
        self.run_dir = run_dir
        self.worker_epoch = worker_epoch
        self.limits = (
            {"max_request_size": 1 << 20, "partitioners": 0xFE, "transactions": 1, "stages": 1}
            if limits is None
            else limits
        )
        self.window_bytes = 4 << 20
        self.partitions = 1
        """Of each topic."""
        self.accept: Callable[[Client, Submit], bool] = lambda client, submit: True
        self.deliver: Callable[[Client, Submit], None] | None = self.deliver_all
        self.refuse_hello: tuple[str, str] | None = None
        self.topic_refusals: dict[str, tuple[Any, ...]] = {}
        """By topic: the fields of REFUSED in place of its one partition."""
        self.refuse_attach: tuple[str, str] | None = None
        self.clients: dict[bytes, Client] = {}
        self.received: list[Submit] = []
        """Every SUBMIT that arrived, repeats too."""
        self.hellos: list[list[Any]] = []
        self.attaches: list[list[Any]] = []
        self.questions: list[list[Any]] = []
        """The topics of each TOPICS, and what it asks for."""
        self.flushes: list[tuple[int, int]] = []
        self.byes: list[bool] = []
        self.acks: list[int] = []
        self.ended: list[tuple[int, int]] = []
        self.pings = 0
        self.txn_frames: list[list[Any]] = []
        """TXN_INIT, TXN_END, TXN_OFFSETS and TXN_INCLUDE, each with its unpacked second frame."""
        self.stage_frames: list[list[Any]] = []
        """STAGE_OPEN, STAGE_SEAL, STAGE_DROP and STAGES_DROP, each with its unpacked second frame."""
        self.on_stage: Callable[[Client, list[Any]], None] = self.answer_stage
        self.on_txn: Callable[[Client, list[Any]], None] = self.answer_txn
        self.next_offset: dict[str, int] = {}
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._by_routing_id: dict[bytes, Client] = {}
        self._stop = False
        self._context = zmq.Context()
        self._wake_in = self._context.socket(zmq.PAIR)
        self._wake_in.bind(f"inproc://wake-{id(self)}")
        self._wake_out = self._context.socket(zmq.PAIR)
        self._wake_out.connect(f"inproc://wake-{id(self)}")
        self.control = self._bind(run_dir / "control.sock")
        self.worker = self._bind(self.worker_path)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def worker_path(self) -> Path:
        return self.run_dir / f"worker-0.{self.worker_epoch}.sock"

    # --- for tests, any thread ----------------------------------------------------------------------

    def do(self, function: Callable[[], None]) -> None:
        """Run ``function`` on the daemon's thread and wait for it."""
        done = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                function()
            except BaseException as error:
                failed.append(error)
            finally:
                done.set()

        self._commands.put(run)
        self._wake_out.send(b"")
        assert done.wait(10)
        if failed:
            raise failed[0]

    def stop(self) -> None:
        if not self._thread.is_alive():
            return

        def end() -> None:
            self._stop = True

        self.do(end)
        self._thread.join(10)
        self._wake_out.close(0)
        self._context.destroy(0)

    def kill_worker(self, *, forget: bool = False) -> None:
        """The worker dies and another one takes its place under a new epoch."""

        def run() -> None:
            old = self.worker_path
            self.worker.close(0)
            old.unlink(missing_ok=True)
            self.worker_epoch += 1
            self._by_routing_id.clear()
            if forget:
                self.clients.clear()
            self.worker = self._bind(self.worker_path)

        self.do(run)

    def rebind_worker(self) -> None:
        """Options of the worker's socket count from its binding on (call on the daemon's thread)."""
        self.worker.unbind(f"ipc://{self.worker_path}")
        self.worker.bind(f"ipc://{self.worker_path}")

    def tell(self, client: Client, message: list[Any], *frames: bytes) -> None:
        """Send a message to a stub (call on the daemon's thread)."""
        self.worker.send_multipart([client.routing_id, msgpack.packb(message), *frames])

    @property
    def only_client(self) -> Client:
        (client,) = self.clients.values()
        return client

    def outcome(self, client: Client, submit: Submit, **fields: Any) -> None:
        """Write one outcome to the ring and tell it; the whole submission, delivered, unless fields say else."""
        values: dict[str, Any] = {
            "kind": OutcomeKind.DELIVERED,
            "persistence": Persistence.PERSISTED,
            "shape": Shape.RANGE if submit.flags & SubmitFlag.WANT_INDEXES else Shape.COUNT,
            "number": client.next_number,
            "stream": submit.stream,
            "code": 0,
            "seq": submit.seq,
            "partition": 0,
            "first_index": 0,
            "count": submit.count,
            "base_offset": -1,
            "append_time_ms": -1,
            "indexes": b"",
            "text": "",
        }
        values.update(fields)
        data = pack_outcome(Outcome(**values))
        client.ring.append((client.next_number, data))
        client.next_number += 1
        self.tell(client, [Kind.OUTCOMES, values["number"], values["number"]], data)

    def answer_txn(
        self,
        client: Client,
        txn: list[Any],
        *,
        code: int = 0,
        effect: int = 0,
        text: str = "",
        value: Any = None,
    ) -> None:
        """Answer a TXN_INIT, TXN_END, TXN_OFFSETS or TXN_INCLUDE (call on the daemon's thread)."""
        part, number = {
            Kind.TXN_INIT: (TxnPart.INIT, 0),
            Kind.TXN_END: (TxnPart.END, txn[1]),
            Kind.TXN_OFFSETS: (TxnPart.OFFSETS, txn[2]),
            Kind.TXN_INCLUDE: (TxnPart.INCLUDE, txn[2]),
        }[txn[0]]
        if part is TxnPart.INCLUDE and not code and value is None:
            value = [10 * len(txn[3]), 100 * len(txn[3])]
        self.tell(client, [Kind.TXN, part, number, code, effect, text, *([] if value is None else [value])])

    def answer_stage(
        self, client: Client, stage: list[Any], *, code: int = 0, effect: int = 0, text: str = ""
    ) -> None:
        """Answer a STAGE_SEAL, STAGE_DROP or STAGES_DROP (call on the daemon's thread)."""
        kind, number = stage[:2]
        if kind == Kind.STAGE_OPEN:
            return
        part, value = {
            Kind.STAGE_SEAL: (StagePart.SEAL, b"token-%d" % number),
            Kind.STAGE_DROP: (StagePart.DROP, None),
            Kind.STAGES_DROP: (StagePart.DROPPED, len(stage[4]) if kind == Kind.STAGES_DROP else 0),
        }[kind]
        self.tell(client, [Kind.STAGE, part, number, code, effect, text, None if code else value])

    def deliver_all(self, client: Client, submit: Submit) -> None:
        offset = self.next_offset.get(submit.topic, 0)
        self.next_offset[submit.topic] = offset + submit.count
        self.outcome(client, submit, base_offset=offset)

    def deliver_log(self) -> None:
        """Deliver what was accepted while ``deliver`` was None (call on the daemon's thread)."""
        for client in self.clients.values():
            for submit in client.log:
                self.deliver_all(client, submit)
            client.log.clear()

    # --- the daemon's thread ------------------------------------------------------------------------

    def _bind(self, path: Path) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)  # beyond a bound, a ROUTER drops messages to a slow stub
        socket.bind(f"ipc://{path}")
        return socket

    def _run(self) -> None:
        while not self._stop:
            poller = zmq.Poller()
            for socket in (self._wake_in, self.control, self.worker):
                poller.register(socket, zmq.POLLIN)
            ready = dict(poller.poll())
            if self._wake_in in ready:
                self._wake_in.recv()
                while not self._commands.empty():
                    self._commands.get()()
                continue
            for socket, handle in ((self.control, self._on_control), (self.worker, self._on_worker)):
                if socket in ready:
                    routing_id, *frames = socket.recv_multipart()
                    handle(routing_id, frames)
        for socket in (self.control, self.worker, self._wake_in):
            socket.close(0)
        (self.run_dir / "control.sock").unlink(missing_ok=True)
        self.worker_path.unlink(missing_ok=True)

    def _on_control(self, routing_id: bytes, frames: list[bytes]) -> None:
        message = msgpack.unpackb(frames[0])
        if message[0] == Kind.TOPICS:
            self.questions.append([message[1], *message[3:]])
            self._tell_topics(routing_id, message[1])
            return
        assert message[0] == Kind.HELLO
        self.hellos.append(message)
        if self.refuse_hello is not None:
            answer = [Kind.REFUSED, *self.refuse_hello, None]
        else:
            answer = [Kind.ASSIGNED, str(self.worker_path), self.worker_epoch, b"ticket"]
        self.control.send_multipart([routing_id, msgpack.packb(answer)])

    def _tell_topics(self, routing_id: bytes, names: list[str]) -> None:
        asked = names or [""]
        refusal = next((self.topic_refusals[name] for name in asked if name in self.topic_refusals), None)
        found = [[name, 0, [[p, 1, [1], [1], []] for p in range(self.partitions)]] for name in names]
        answer = [Kind.TOPICS_REPLY, found] if refusal is None else [Kind.REFUSED, *refusal]
        self.control.send_multipart([routing_id, msgpack.packb(answer)])

    def _on_worker(self, routing_id: bytes, frames: list[bytes]) -> None:
        message = msgpack.unpackb(frames[0])
        kind = message[0]
        if kind == Kind.ATTACH:
            self._attach(routing_id, message)
            return
        client = self._by_routing_id.get(routing_id)
        if client is None:
            self.worker.send_multipart([routing_id, msgpack.packb([Kind.HELLO_AGAIN, self.worker_epoch])])
        elif kind == Kind.SUBMIT:
            submit = Submit(client.client_id, *message[2:9], frames[1], *message[10:])
            assert message[1] == self.worker_epoch
            self._acked(client, message[9])
            if submit.flags & SubmitFlag.FLUSH:
                self.flushes.append((submit.stream, submit.seq))
            self.received.append(submit)
            self._submit(client, submit)
        elif kind == Kind.ACK:
            self._acked(client, message[1])
        elif kind == Kind.FLUSH:
            self.flushes.append((message[1], message[2]))
        elif kind == Kind.END_STREAM:
            self.ended.append((message[1], message[2]))
            if client.positions.get(message[1]) == message[2] and message[1] not in client.held:
                del client.positions[message[1]]
        elif kind == Kind.BYE:
            self.byes.append(message[1])
        elif kind in (Kind.STAGE_OPEN, Kind.STAGE_SEAL, Kind.STAGE_DROP, Kind.STAGES_DROP):
            stage = [*message, *map(msgpack.unpackb, frames[1:])]
            self.stage_frames.append(stage)
            self.on_stage(client, stage)
        elif kind in (Kind.TXN_INIT, Kind.TXN_END, Kind.TXN_OFFSETS, Kind.TXN_INCLUDE):
            txn = [*message, *map(msgpack.unpackb, frames[1:])]
            self.txn_frames.append(txn)
            self.on_txn(client, txn)
        elif kind == Kind.PING:
            self.pings += 1
            self.tell(client, [Kind.PONG])

    def _acked(self, client: Client, up_to_number: int) -> None:
        self.acks.append(up_to_number)
        client.acked = up_to_number
        client.ring = [(number, data) for number, data in client.ring if number > client.acked]

    def _attach(self, routing_id: bytes, message: list[Any]) -> None:
        self.attaches.append(message)
        _, _version, client_id, name, _pid, worker_epoch, ticket, secret = message
        assert ticket == b"ticket"
        if self.refuse_attach is not None:
            answer = [Kind.REFUSED, *self.refuse_attach, None]
            self.worker.send_multipart([routing_id, msgpack.packb(answer)])
            return
        known = client_id in self.clients
        if not known:
            self.clients[client_id] = Client(client_id, name, b"secret-%d" % len(self.attaches))
        client = self.clients[client_id]
        assert not known or secret == client.secret
        self._by_routing_id.pop(client.routing_id, None)
        client.routing_id = routing_id
        client.accepted_bytes = 0
        self._by_routing_id[routing_id] = client
        streams = [
            [stream, client.topics[stream], position, stream in client.held]
            for stream, position in client.positions.items()
        ]
        self.tell(
            client,
            [Kind.WELCOME, worker_epoch, client.secret, known, self.window_bytes, self.limits, streams],
        )
        if client.ring:
            numbers = [number for number, _ in client.ring]
            data = b"".join(data for _, data in client.ring)
            self.tell(client, [Kind.OUTCOMES, min(numbers), max(numbers)], data)

    def _submit(self, client: Client, submit: Submit) -> None:
        position = client.positions.get(submit.stream, 0)
        if submit.stream in client.held or submit.seq > position + 1:
            return
        if submit.seq == position + 1:
            most = self.limits.get("streams", len(client.positions) + 1)
            if submit.stream not in client.positions and len(client.positions) >= most:
                self.tell(client, [Kind.REFUSED, "TOO_MANY_STREAMS", "Too many topics.", submit.stream])
                return
            if not self.accept(client, submit):
                return
            self.take(client, submit)
        credit = client.accepted_bytes + self.window_bytes
        self.tell(client, [Kind.ACCEPTED, credit, [[submit.stream, client.positions[submit.stream]]]])
        if submit.seq == position + 1 and self.deliver is not None:
            self.deliver(client, submit)

    def take(self, client: Client, submit: Submit) -> None:
        client.positions[submit.stream] = submit.seq
        client.topics[submit.stream] = submit.topic
        client.accepted_bytes += len(submit.payload)
        if self.deliver is None:
            client.log.append(submit)
