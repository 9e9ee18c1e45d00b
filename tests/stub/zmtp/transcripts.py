"""Conversations with libzmq, with fixed keys: ``python -m tests.stub.zmtp.transcripts`` records them anew.

A line is ``ours HEX`` or ``theirs HEX`` (bytes of the wire), ``send FRAME ...`` or ``message FRAME ...`` (what our end
was given to send, or received; ``-`` is an empty frame). All our randomness is fixed, so a replay of
``theirs`` must make ``ours`` again, byte by byte.
"""

from __future__ import annotations

import hashlib
import itertools
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.connection import ZmtpConnection
from client_stub.zmtp.curve import CurveClient, CurveServer, KeyPair
from client_stub.zmtp.mechanism import Null
from tests.stub.zmtp.ends import DEALERS, ROUTERS, take

FOLDER: Final = Path(__file__).parent / "recorded"
SERVER_KEYS, CLIENT_KEYS = (KeyPair.of_secret(bytes([number]) * 32) for number in (1, 2))
MESSAGES: Final = [[b"head", b"x" * 222], [b"", b"y" * 223], [b"a", b"", b"z" * 256]]
NAMES: Final = ("null-client", "null-server", "curve-client", "curve-server")
PINGS: Final = 2


def fixed_random() -> Callable[[int], bytes]:
    numbers = itertools.count()
    return lambda size: hashlib.shake_256(b"%d" % next(numbers)).digest(size)


def our_end(name: str) -> ZmtpConnection:
    if name == "curve-client":
        mechanism = CurveClient(b"DEALER", CLIENT_KEYS, SERVER_KEYS.public, fixed_random())
        return ZmtpConnection(mechanism, ROUTERS, Buffers(16 << 10))
    if name == "curve-server":
        known = {CLIENT_KEYS.public}.__contains__
        return ZmtpConnection(
            CurveServer(b"ROUTER", [SERVER_KEYS], known, fixed_random()), DEALERS, Buffers(16 << 10)
        )
    kind, peers = (b"DEALER", ROUTERS) if name == "null-client" else (b"ROUTER", DEALERS)
    return ZmtpConnection(Null(kind), peers, Buffers(16 << 10))


def read(name: str) -> Iterator[tuple[str, list[bytes]]]:
    """(word, bytes of each field) of each line."""
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        word, *fields = line.split()
        yield word, [b"" if field == "-" else bytes.fromhex(field) for field in fields]


def theirs(name: str) -> bytes:
    """All that libzmq wrote."""
    return b"".join(fields[0] for word, fields in read(name) if word == "theirs")


class Recorder:
    def __init__(self, name: str, connected: socket.socket) -> None:
        self.end = our_end(name)
        self.connected = connected
        self.lines: list[str] = []
        self.write(self.end.mechanism.opening)

    def note(self, word: str, *fields: bytes) -> None:
        self.lines.append(" ".join((word, *(field.hex() or "-" for field in fields))))

    def write(self, data: bytes) -> None:
        self.note("ours", data)
        self.connected.sendall(data)

    def send(self, frames: list[bytes]) -> None:
        self.note("send", *frames)
        self.write(b"".join(self.end.mechanism.encode(frames)))

    def hear(self, until: Callable[[], bool]) -> None:
        """Read, reply and note messages until then."""
        while not until():
            space = self.end.space()
            count = self.connected.recv_into(space)
            self.note("theirs", bytes(space[:count]))
            self.end.received(count)
            while (message := self.end.next_message()) is not None:
                self.note("message", *map(bytes, message))
            if data := take(self.end):
                self.write(data)

    def count(self, word: str) -> int:
        return sum(line.startswith(word + " ") for line in self.lines)


def record(name: str) -> list[str]:
    """A handshake, messages each way, and heartbeats."""
    with zmq.Context() as context, tempfile.TemporaryDirectory() as folder:
        is_client = name.endswith("client")
        peer = context.socket(zmq.ROUTER if is_client else zmq.DEALER)
        peer.linger, peer.rcvtimeo = 0, 5_000
        peer.setsockopt(zmq.HEARTBEAT_IVL, 100)
        if name.startswith("curve"):
            keys = SERVER_KEYS if is_client else CLIENT_KEYS
            peer.curve_secretkey, peer.curve_publickey = z85.encode(keys.secret), z85.encode(keys.public)
            if is_client:
                peer.curve_server = True
            else:
                peer.curve_serverkey = z85.encode(SERVER_KEYS.public)
        path = f"{folder}/s"
        if is_client:
            peer.bind(f"ipc://{path}")
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(path)
        else:
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(path)
            listening.listen()
            peer.connect(f"ipc://{path}")
            connected, _ = listening.accept()
            listening.close()
        with connected, peer:
            recorder = Recorder(name, connected)
            recorder.hear(lambda: recorder.end.is_ready)
            for message in MESSAGES:
                recorder.send(message)
                got = peer.recv_multipart()
                peer.send_multipart(got)
            recorder.hear(lambda: recorder.count("message") == len(MESSAGES))
            before = recorder.count("ours")
            recorder.hear(lambda: recorder.count("ours") >= before + PINGS)
        return recorder.lines


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in NAMES:
        (FOLDER / f"{each}.txt").write_text("\n".join(record(each)) + "\n")
