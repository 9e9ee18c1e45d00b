"""A producer with pyzmq and msgpack, written from docs/protocol.md alone. Each submission is one record, for brevity.

``python examples/pyzmq_client.py RUN_DIR TOPIC < lines`` sends each line of its input.
"""

import os
import struct
import sys
import time
from typing import Any

import msgpack
import zmq

HELLO, ASSIGNED, REFUSED, ATTACH, WELCOME, SUBMIT, ACCEPTED, RESEND = 1, 2, 3, 10, 11, 12, 13, 14
HELLO_AGAIN, HOLD, RESUME, OUTCOMES, ACK, BYE, DRAINING, PING = 15, 16, 17, 18, 19, 21, 23, 24
VERSION, RELATIVE_ENDPOINTS, MSGPACK, FLUSH, FAILED = 1, 1, 1, 2, 2
OUTCOME = struct.Struct("<IBBBBQIiQIIIHHqq")


class Stream:
    """The records of one topic, by seq."""

    def __init__(self, topic: str, number: int) -> None:
        self.topic, self.number, self.is_held = topic, number, False
        self.waiting: dict[int, bytes] = {}  # without ACCEPTED
        self.undecided: set[int] = set()  # without an outcome
        self.last = self.sent = 0  # seqs

    def under_way(self) -> int:
        return sum(len(payload) for seq, payload in self.waiting.items() if seq <= self.sent)


class Client:
    """``failures`` has a sentence for each record that failed. Call poll() while there is nothing to send."""

    def __init__(self, run_dir: str, name: str) -> None:
        self.run_dir, self.name = run_dir, name
        self.id, self.secret, self.outcomes = os.urandom(16) + bytes(4), None, 0
        self.streams: dict[str, Stream] = {}  # in the order of their numbers, from 1
        self.failures: list[str] = []
        self.worker: Any = None
        self.taken = self.under_way = self.ping_s = 0.0
        self.connect()

    def send(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        stream = self.streams.setdefault(topic, Stream(topic, len(self.streams) + 1))
        stream.last += 1
        stream.waiting[stream.last] = msgpack.packb([key, value])
        stream.undecided.add(stream.last)
        self.pump()

    def flush(self) -> None:
        """Wait until each record has its outcome."""
        while any(each.undecided for each in self.streams.values()):
            self.poll(100)

    def close(self) -> None:
        self.write([BYE, False])
        self.worker.close(500)

    def poll(self, timeout_ms: int) -> None:
        """Handle what has come. A lost connection is replaced, after all that came before its end was read."""
        is_lost, before = not self.worker.poll(0, zmq.POLLOUT), self.outcomes
        while self.worker.poll(0 if is_lost else timeout_ms):
            is_lost |= self.handle(*self.worker.recv_multipart())
            timeout_ms = 0
        if self.outcomes > before:
            self.write([ACK, self.outcomes])
        if time.monotonic() > self.ping_s:
            self.ping_s = time.monotonic() + 10
            self.write([PING])
        if is_lost:
            self.connect()
        self.under_way = sum(each.under_way() for each in self.streams.values())
        self.pump()

    def pump(self) -> None:
        """Send as long as accepted bytes and those under way stay below the credit; a record alone may exceed it."""
        for stream in self.streams.values():
            while stream.sent < stream.last and not (stream.is_held or self.is_draining):
                seq, payload = stream.sent + 1, stream.waiting[stream.sent + 1]
                is_alone = not self.under_way and self.taken < self.credit
                if self.taken + self.under_way + len(payload) > self.credit and not is_alone:
                    return
                now_ms = int(time.time() * 1000)
                head = [SUBMIT, self.epoch, stream.number, seq, stream.topic, now_ms, MSGPACK, FLUSH, 1]
                if not self.write(head, payload):
                    return
                stream.sent, self.under_way = seq, self.under_way + len(payload)

    def write(self, head: list[Any], *frames: bytes) -> bool:
        """False if the connection is gone: the next poll() makes another."""
        if is_writable := bool(self.worker.poll(0, zmq.POLLOUT)):
            self.worker.send_multipart([msgpack.packb(head), *frames])
        return is_writable

    def handle(self, frame: bytes, data: bytes = b"") -> bool:
        """One message; unknown kinds and further fields are ignored. True if HELLO has to follow."""
        kind, *fields = msgpack.unpackb(frame)
        if kind == ACCEPTED:
            self.accept(fields[0], fields[1])
        elif kind == OUTCOMES:
            self.decide(data)
            self.outcomes = max(self.outcomes, fields[1])
            if len(fields) > 3:
                self.accept(fields[2], fields[3])
        elif kind in {HOLD, RESUME, RESEND}:
            stream = self.stream(fields[0])
            stream.sent, stream.is_held = fields[1] - 1, kind == HOLD or (kind == RESEND and stream.is_held)
        elif kind == REFUSED:  # of a stream, or of all: this client has no remedy
            raise RuntimeError(f"{fields[0]}: {fields[1]}")
        self.is_draining |= kind == DRAINING
        return bool(kind == HELLO_AGAIN)

    def accept(self, credit: int, positions: list[tuple[int, int]]) -> None:
        self.credit = credit
        for number, position in positions:
            waiting = self.stream(number).waiting
            while waiting and (seq := next(iter(waiting))) <= position:
                self.taken += len(waiting.pop(seq))

    def decide(self, data: bytes) -> None:
        while data:
            size, kind, saved, _, _, number, stream, code, seq, *_, text, _, _ = OUTCOME.unpack_from(data)
            if number > self.outcomes and kind == FAILED:
                self.failures.append(f"{code:#x}, persistence {saved}: {data[64 : 64 + text].decode()}")
            self.stream(stream).undecided.discard(seq)
            data = data[size:]

    def connect(self) -> None:
        """HELLO until a worker says WELCOME. Then all begins again after the positions that it knows."""
        kind, backoff_s = 0, 0.0
        while kind != WELCOME:
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s + 0.02, 1)
            me = [VERSION, self.id, self.name, os.getpid()]
            kind, *fields = self.ask("control.sock", [HELLO, *me, None, RELATIVE_ENDPOINTS])
            if kind == ASSIGNED:
                kind, *fields = self.ask(fields[0], [ATTACH, *me, *fields[1:3], self.secret])
        self.epoch, secret, known, credit, _, streams, *_ = fields
        if not known and self.secret is not None:  # what was sent may be in the log: the caller has to decide
            raise RuntimeError("the daemon has forgotten this client")
        found = {number: (position, is_held) for number, _, position, is_held in streams}
        for stream in self.streams.values():
            stream.sent, stream.is_held = found.get(stream.number, (0, False))
            self.accept(credit, [(stream.number, stream.sent)])
        self.secret, self.is_draining = secret, False
        self.credit, self.taken, self.under_way = credit, 0, 0
        self.write([ACK, self.outcomes])

    def stream(self, number: int) -> Stream:
        return next(each for each in self.streams.values() if each.number == number)

    def ask(self, endpoint: str, question: list[Any]) -> list[Any]:
        """The answer over a new socket: libzmq would deliver the rest of an old one's queue."""
        if self.worker is not None:
            self.worker.close(0)
        self.worker = zmq.Context.instance().socket(zmq.DEALER)
        self.worker.reconnect_ivl, self.worker.sndhwm = -1, 0  # so it is writable as long as it is connected
        self.worker.connect(endpoint if "://" in endpoint else f"ipc://{self.run_dir}/{endpoint}")
        self.write(question)
        return msgpack.unpackb(self.worker.recv()) if self.worker.poll(5_000) else [0]


if __name__ == "__main__":
    client = Client(sys.argv[1], "pyzmq-example")
    for line in sys.stdin.buffer:
        client.send(sys.argv[2], line.rstrip(b"\n"))
    client.flush()
    client.close()
    sys.exit("\n".join(client.failures) or 0)
