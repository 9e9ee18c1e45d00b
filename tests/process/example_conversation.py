"""Records examples/conversation.txt: ``python -m tests.process.example_conversation``; ``Replayed`` plays it back.

A line is ``> KIND FRAME ...`` (the client to the daemon) or ``< KIND FRAME ...``, each frame in hex. The client's id,
pid and clock are fixed.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Final

import msgpack
import zmq

from client_stub.contract.wire import Kind
from examples import pyzmq_client
from examples.pyzmq_client import Client
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker

FILE: Final = Path(pyzmq_client.__file__).with_name("conversation.txt")
ID: Final = bytes(range(16)) + bytes(4)
VALUES: Final = (b"first", b"second")


class FixedSystem(types.SimpleNamespace):
    """Stands for the modules os and time of the example."""

    def __init__(self) -> None:
        super().__init__(
            urandom=lambda size: ID[:size], getpid=lambda: 4711, time=lambda: 1_766_287_000.0,
            monotonic=lambda: 1.0, sleep=lambda _: None,
        )  # fmt: skip


def converse(client: Client) -> None:
    for value in VALUES:
        client.send("orders", value, b"key")
    client.flush()
    client.close()


class Recorder(Client):
    def __init__(self, run_dir: str) -> None:
        self.lines: list[str] = []
        super().__init__(run_dir, "example")

    def note(self, sign: str, frames: list[bytes]) -> None:
        kind = Kind(msgpack.unpackb(frames[0])[0])
        self.lines.append(" ".join((sign, kind.name, *(frame.hex() for frame in frames))))

    def ask(self, endpoint: str, question: list[Any]) -> list[Any]:
        answer = super().ask(endpoint, question)
        self.note("<", [msgpack.packb(answer)])
        return answer

    def write(self, head: list[Any], *frames: bytes) -> bool:
        self.note(">", [msgpack.packb(head), *frames])
        return super().write(head, *frames)

    def handle(self, frame: bytes, data: bytes = b"") -> bool:
        self.note("<", [frame, data] if data else [frame])
        return super().handle(frame, data)


class Played:
    """The worker's socket, played from the file: what the client writes is compared with it."""

    def __init__(self) -> None:
        lines = [line.split() for line in FILE.read_text().splitlines()]
        self.left = [(sign, kind, [bytes.fromhex(each) for each in frames]) for sign, kind, *frames in lines]

    def poll(self, _timeout_ms: int, flags: int = zmq.POLLIN) -> bool:
        return flags == zmq.POLLOUT or (bool(self.left) and self.left[0][0] == "<")

    def recv_multipart(self) -> list[bytes]:
        return self.left.pop(0)[2]

    def send_multipart(self, frames: list[bytes]) -> None:
        assert self.left.pop(0) == (">", Kind(msgpack.unpackb(frames[0])[0]).name, frames)

    def close(self, _linger_ms: int) -> None:
        assert not self.left


class Replayed(Client):
    def __init__(self) -> None:
        self.played = Played()
        super().__init__("", "example")

    def ask(self, endpoint: str, question: list[Any]) -> list[Any]:
        self.worker = self.played
        self.write(question)
        answer: list[Any] = msgpack.unpackb(self.played.recv_multipart()[0])
        return answer


if __name__ == "__main__":
    system: Any = FixedSystem()
    pyzmq_client.os = pyzmq_client.time = system
    with FakeBroker({"orders": 1}) as kafka:
        daemon = SidecarDaemon(kafka.bootstrap_servers, settings={"daemon.workers": 1})
        try:
            daemon.start()
            recorder = Recorder(str(daemon.run_dir))
            converse(recorder)
        finally:
            daemon.remove()
    FILE.write_text("\n".join(recorder.lines) + "\n")
