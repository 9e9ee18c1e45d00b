"""A hostile local process: ``python -m sidecar.tools.testing.hostile_client KIND RUN_DIR SEED``. It runs until it is
killed.

It implements the protocol on its own, so that checks of our stub do not prevent bad messages.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack

from client_stub.contract.wire import PROTOCOL_VERSION, Format, Kind
from client_stub.native.hot import encode
from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.connection import ZmtpConnection
from client_stub.zmtp.mechanism import Null

PEER_TYPES = frozenset({b"ROUTER"})
RECORD = msgpack.packb([b"k", b"v"])
PATIENCE_S = 2.0
CONNECTIONS = 300
HALF_BYTES = 900_000


class Link:
    """One blocking connection with a short timeout."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(path)
        self._zmtp = ZmtpConnection(Null(b"DEALER"), PEER_TYPES, Buffers(1 << 16))
        self.socket.sendall(self._zmtp.mechanism.opening)

    def encode(self, frames: Sequence[bytes]) -> bytes:
        """Return one message as bytes of the wire."""
        return b"".join(encode(frames))

    def send(self, message: list[Any], *frames: bytes) -> None:
        self.write(self.encode([msgpack.packb(message), *frames]))

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> list[Any]:
        while True:
            frames = self._zmtp.next_message()
            if frames is not None:
                found: list[Any] = msgpack.unpackb(frames[0])
                return found
            count = self.socket.recv_into(self._zmtp.space())
            if not count:
                raise OSError("closed")
            self._zmtp.received(count)

    def close(self) -> None:
        self.socket.close()


class Attacker:
    def __init__(self, run_dir: Path, seed: int) -> None:
        self.run_dir = run_dir
        self.name = f"hostile-{os.getpid()}"
        self.chance = random.Random(seed)
        self.number = 0

    def worker_path(self) -> str:
        workers = json.loads((self.run_dir / "daemon.json").read_text())["workers"]
        return str(self.chance.choice(workers)["endpoint"]).removeprefix("ipc://")

    def control(self) -> Link:
        return Link(str(self.run_dir / "control.sock"))

    def bare(self) -> Link:
        return Link(self.worker_path())

    def at(self, endpoint: str) -> Link:
        """Open a connection to the worker that ASSIGNED names."""
        return Link(endpoint.removeprefix("ipc://"))

    def attached(self) -> tuple[Link, int]:
        """Attach as a new client; returns its connection and the worker's epoch. Raises OSError when it is refused."""
        control = self.control()
        client_id, name = secrets.token_bytes(20), self.name
        control.send([Kind.HELLO, PROTOCOL_VERSION, client_id, name, os.getpid(), None])
        answer = control.receive()
        control.close()
        if answer[0] != Kind.ASSIGNED:
            raise OSError(f"not let in: {answer}")
        _, endpoint, epoch, ticket = answer[:4]
        link = self.at(str(endpoint))
        link.send([Kind.ATTACH, PROTOCOL_VERSION, client_id, name, os.getpid(), epoch, ticket, None])
        welcome = link.receive()
        if welcome[0] != Kind.WELCOME:
            raise OSError(f"not attached: {welcome}")
        return link, epoch

    def submit(self, epoch: int, **changes: Any) -> list[Any]:
        fields = {
            "epoch": epoch,
            "stream": 1,
            "seq": 1,
            "topic": "good",
            "base_timestamp_ms": 1_700_000_000_000,
            "format": int(Format.MSGPACK),
            "flags": 0,
            "count": 1,
        }
        return [Kind.SUBMIT, *(fields | changes).values()]

    # ---- kinds

    def large_first_frame(self) -> None:
        """Send 60 MB of one msgpack array over a connection that no client has attached to."""
        with contextlib.closing(self.bare()) as link:
            body = b"\xdd" + (60_000_000).to_bytes(4, "big") + bytes(1 << 20)
            link.write(b"\x02" + (60_000_005).to_bytes(8, "big"))
            for _ in range(60):
                link.write(body)

    def half_messages(self) -> None:
        """Open many clients, send half a submission on each, and keep them as long as the daemon allows."""
        with contextlib.ExitStack() as stack:
            links = []
            for _ in range(60):
                link, epoch = self.attached()
                stack.callback(link.close)
                head = b"".join(encode([msgpack.packb(self.submit(epoch, count=1)), b""]))[:-2]
                link.write(b"\x01" + head[1:] + b"\x02" + (2 * HALF_BYTES).to_bytes(8, "big"))
                links.append(link)
            for link in links:
                with contextlib.suppress(OSError):
                    link.write(bytes(HALF_BYTES))
            time.sleep(2)

    def never_attach(self) -> None:
        """Open as many connections as possible, and send nothing or a part of a message on each."""
        with contextlib.ExitStack() as stack:
            for number in range(CONNECTIONS):
                link = self.bare()
                stack.callback(link.close)
                if number % 2:
                    link.write(b"\x01\x05ha")
            time.sleep(1)

    def topic_flood(self) -> None:
        link, epoch = self.attached()
        with contextlib.closing(link):
            for stream in range(1, 1_101):
                self.number += 1
                topic = f"nobody-{os.getpid()}-{self.number}"
                seq = 5 if stream % 3 else 1
                link.send(self.submit(epoch, stream=stream, seq=seq, topic=topic), RECORD)
            self.drain(link)

    def absurd_values(self) -> None:
        link, epoch = self.attached()
        with contextlib.closing(link):
            for message in (
                self.submit(epoch, base_timestamp_ms=1 << 63),
                self.submit(epoch, flags=1 << 20),
                self.submit(epoch, count=1 << 40),
                self.submit(epoch, stream=[1]),
                [Kind.ACK, (1 << 64) - 1],
                [Kind.FLUSH, -1, -1],
                [Kind.BYE],
                [Kind.ATTACH],
                [255] * 1_000,
            ):
                link.send(message, RECORD)
            self.drain(link)

    def deep_and_wide(self) -> None:
        """Send frames that are as costly to unpack as the limits allow, and some above the limits."""
        link, _ = self.attached()
        with contextlib.closing(link):
            for body in (
                b"\x91" * 60_000,
                b"\xdc\xff\xf0" + b"\x90" * 65_520,
                b"\xdd\xff\xff\xff\xff",
                b"\x81\x01" * 20_000,
            ):
                link.write(link.encode([body]))
            link.write(link.encode([b"x" * 70_000]))
            self.drain(link)

    def pings_unread(self) -> None:
        link, _ = self.attached()
        with contextlib.closing(link):
            for _ in range(500):
                link.write(b"".join(link.encode([msgpack.packb([Kind.PING])]) for _ in range(1_000)))

    def random_frames(self) -> None:
        """Send mutated messages of a stub."""
        link, epoch = self.attached()
        chance = self.chance
        with contextlib.closing(link):
            for _ in range(40):
                data = bytearray(b"".join(encode([msgpack.packb(self.submit(epoch)), RECORD])))
                for _ in range(chance.randrange(1, 4)):
                    data[chance.randrange(len(data))] = chance.randrange(256)
                if chance.random() < 0.2:
                    data = data[: chance.randrange(len(data))] + data
                link.write(bytes(data))
            self.drain(link)

    def long_messages(self) -> None:
        """Send submissions far above WELCOME's limit, as a stub of an earlier version would."""
        link, epoch = self.attached()
        with contextlib.closing(link):
            piece = bytes(1 << 20)
            for seq in (1, 2):
                head = msgpack.packb(self.submit(epoch, seq=seq))
                link.write(bytes((1, len(head))) + head + b"\x02" + (100 << 20).to_bytes(8, "big"))
                for _ in range(100):
                    link.write(piece)
            self.drain(link)

    def hellos(self) -> None:
        """Attack the control socket: requests whose answers are never read, and messages without an end."""
        with contextlib.closing(self.control()) as link:
            hello = [Kind.HELLO, PROTOCOL_VERSION, secrets.token_bytes(20), "h", 1, None]
            for _ in range(2_000):
                link.send(hello)
            for _ in range(200):
                link.write(b"\x03" + (60_000).to_bytes(8, "big") + bytes(60_000))

    @staticmethod
    def drain(link: Link) -> None:
        with contextlib.suppress(OSError):
            link.socket.settimeout(0.05)
            while link.socket.recv(1 << 16):
                pass


KINDS: dict[str, Callable[[Attacker], None]] = {
    each.__name__: each
    for each in (
        Attacker.large_first_frame,
        Attacker.half_messages,
        Attacker.never_attach,
        Attacker.topic_flood,
        Attacker.absurd_values,
        Attacker.deep_and_wide,
        Attacker.pings_unread,
        Attacker.random_frames,
        Attacker.long_messages,
        Attacker.hellos,
    )
}


def main(kind: str, run_dir: str, seed: str) -> None:
    go_on(Attacker(Path(run_dir), int(seed)), kind)


def go_on(attacker: Attacker, kind: str) -> None:
    """Repeat attacks until the process is killed. Prints ``struck`` after the first."""
    for turn in itertools.count():
        chosen = kind if kind != "any" else attacker.chance.choice(list(KINDS))
        with contextlib.suppress(OSError, ValueError):
            KINDS[chosen](attacker)
        if not turn:
            print("struck", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
