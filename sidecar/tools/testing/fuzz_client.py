"""Random, truncated, nested, oversized, reordered messages.

``python -m sidecar.tools.testing.fuzz_client RUN_DIR SEED N``

Each connection has a forked process of its own. The daemon remembers the cost that a process caused, and would make a
single process wait after a few connections. A seed repeats the messages; the order in which the daemon handles them
varies.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgpack

from client_stub.contract.wire import PROTOCOL_VERSION, Kind
from client_stub.native.hot import encode
from client_stub.zmtp.frames import COMMAND, LONG, MORE
from client_stub.zmtp.mechanism import opening
from sidecar.tools.testing.hostile_client import RECORD, Attacker, Link

PARALLEL: Final = 4
READ_AWAY_S: Final = 10.0
LONGEST_BYTES: Final = 3 << 20
NUMBERS: Final = (
    *(0, 1, -1, 127, 255, 65_535, 65_536, -(2**63)),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**64 - 1),
)
TEXTS: Final = (
    *("fuzz", "good ", "", "line\nfeed", "\x1b[31mred", "<script>"),
    *("x" * 249, "x" * 250, "\N{GREEK SMALL LETTER PI}" * 200),
)
NESTED: Final = (b"\x91", b"\x81\x01", b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff")
"""Heads of msgpack arrays, maps and extensions, most of them without the content that they announce."""


class Fuzz:
    """Generates the messages of one seed."""

    def __init__(self, attacker: Attacker, seed: int) -> None:
        self.chance = random.Random(seed)
        self.attacker = attacker

    def value(self, depth: int = 0) -> Any:
        """Return a random value that msgpack can encode."""
        chance = self.chance
        kind = chance.randrange(12 if depth < 4 else 8)
        if kind < 3:
            return chance.choice(NUMBERS) if chance.random() < 0.8 else chance.randrange(-(2**63), 2**64)
        if kind == 3:
            return chance.choice(TEXTS)
        if kind == 4:
            return chance.randbytes(chance.randrange(40))
        if kind == 5:
            return chance.choice((None, True, False, 0.5, float("nan"), float("inf")))
        if kind == 6:
            return msgpack.ExtType(chance.randrange(128), chance.randbytes(chance.randrange(20)))
        if kind == 7:
            return msgpack.Timestamp(chance.randrange(2**33), 5)
        if kind < 10:
            return [self.value(depth + 1) for _ in range(chance.randrange(6))]
        return {chance.choice(TEXTS): self.value(depth + 1) for _ in range(chance.randrange(4))}

    def head(self, epoch: int) -> bytes:
        """Return frame 0: a message of the protocol with some fields changed, or random content."""
        chance = self.chance
        kind = chance.randrange(8)
        if kind == 0:
            return chance.randbytes(chance.randrange(200))
        if kind == 1:
            return chance.choice(NESTED) * chance.randrange(1, 1_200)
        fields: list[Any] = chance.choice(
            (
                [Kind.HELLO, PROTOCOL_VERSION, chance.randbytes(20), "fuzz", os.getpid(), None],
                [
                    Kind.ATTACH,
                    PROTOCOL_VERSION,
                    chance.randbytes(20),
                    "fuzz",
                    os.getpid(),
                    epoch,
                    b"t" * 32,
                    None,
                ],
                self.attacker.submit(
                    epoch, stream=chance.randrange(1, 6), seq=chance.randrange(1, 5), topic="fuzz"
                ),
                [Kind.ACK, chance.randrange(5)],
                [Kind.FLUSH, chance.randrange(5)],
                [Kind.PING],
                [Kind.TOPICS, ["fuzz", "nobody"]],
                [Kind.ORDER, chance.choice(["stop", 7, None]), chance.choice([[], ["fuzz"], 3])],
                [Kind.BYE, chance.random() < 0.5] if chance.random() < 0.05 else [Kind.PING],
            )
        )
        if kind >= 6:
            return bytes(msgpack.packb(fields))
        for _ in range(chance.randrange(1, 3)):
            fields[chance.randrange(len(fields))] = self.value()
        if kind == 2:
            fields += [self.value() for _ in range(chance.randrange(4))]
        if kind == 3:
            del fields[chance.randrange(1, len(fields) + 1) :]
        data = bytes(msgpack.packb(fields))
        if kind == 4:
            data = data[: chance.randrange(len(data) + 1)]
        return data

    def payload(self) -> bytes:
        chance = self.chance
        kind = chance.randrange(6)
        if kind == 0:
            return chance.randbytes(chance.randrange(300))
        if kind == 1:
            return bytes(msgpack.packb(self.value()))
        data = bytearray(RECORD * chance.randrange(1, 20))
        if kind == 2:
            data[chance.randrange(len(data))] = chance.randrange(256)
        return bytes(data)

    def message(self, link: Link, epoch: int) -> bytes:
        """Return one message as bytes of the wire. A few break the framing, and with it the connection."""
        chance = self.chance
        frames = [self.head(epoch), *(self.payload() for _ in range(chance.choice((0, 1, 1, 1, 2, 5))))]
        data = link.encode(frames)
        kind = chance.randrange(200)
        if kind == 0:
            return data[: chance.randrange(len(data))]
        if kind == 1:
            size = chance.choice((1 << 16, LONGEST_BYTES, 60 << 20, 1 << 33, 2**64 - 1))
            return self._long(frames[0], size)
        if kind == 2:
            return (
                bytes([COMMAND | chance.choice((0, LONG, MORE))])
                + struct.pack(">Q", chance.randrange(2_000))
                + bytes(30)
            )
        if kind == 3:
            return b"\x01\x00" * 70
        if kind == 4:
            return chance.randbytes(chance.randrange(100))
        return data

    @staticmethod
    def _long(head: bytes, size: int) -> bytes:
        """Return a message whose second frame announces ``size`` bytes, of which only some follow."""
        first = bytearray(b"".join(encode([head])))
        first[0] |= MORE
        return bytes(first) + bytes([LONG]) + struct.pack(">Q", size) + bytes(min(size, LONGEST_BYTES))

    def connection(self) -> int:
        """Send the messages of one connection until the daemon has read them or ended it. Returns how many
        were sent.
        """
        chance = self.chance
        way = chance.randrange(10)
        epoch = 1
        if way == 0:
            return self.raw()
        if way < 3:
            link = self.attacker.control()
        elif way < 5:
            link = self.attacker.bare()
        else:
            link, epoch = self.attacker.attached()
        sent = 0
        with contextlib.closing(link), contextlib.suppress(OSError):
            for _ in range(chance.choice((20, 100, 400))):
                link.write(self.message(link, epoch))
                sent += 1
            self.read_away(link.socket)
        return sent

    def raw(self) -> int:
        """Send bytes that are not, or not quite, ZMTP."""
        chance = self.chance
        data = bytearray(opening(b"DEALER"))
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer, contextlib.suppress(OSError):
            peer.settimeout(READ_AWAY_S)
            control = str(self.attacker.run_dir / "control.sock")
            peer.connect(chance.choice((control, self.attacker.worker_path())))
            peer.sendall(
                chance.choice((bytes(data), data[: chance.randrange(len(data))], chance.randbytes(300)))
            )
            self.read_away(peer)
        return 1

    @staticmethod
    def read_away(peer: socket.socket) -> None:
        """Shut down the sending side and read until the daemon closes."""
        peer.shutdown(socket.SHUT_WR)
        peer.settimeout(READ_AWAY_S)
        while peer.recv(1 << 16):
            pass


def in_children(count: int, seed: int, work: Callable[[int], int]) -> int:
    """Do ``work(seed)`` in forked processes until ``count`` messages were sent. Returns how many were sent."""
    sent = 0
    running: dict[int, int] = {}
    while sent < count or running:
        while sent < count and len(running) < PARALLEL:
            seed += 1
            read_fd, write_fd = os.pipe()
            pid = os.fork()
            if not pid:
                _child(write_fd, seed, work)
            os.close(write_fd)
            running[pid] = read_fd
        pid, _ = os.wait()
        with os.fdopen(running.pop(pid), "rb") as result:
            sent += int(result.read() or b"0")
    return sent


def _child(write_fd: int, seed: int, work: Callable[[int], int]) -> None:
    try:
        os.write(write_fd, b"%d" % work(seed))
    finally:
        os._exit(0)


def main(run_dir: str, seed: str, count: str) -> None:
    def work(number: int) -> int:
        with contextlib.suppress(OSError, ValueError):  # refused: go on with the next one
            return Fuzz(Attacker(Path(run_dir), number), number).connection()
        return 1

    report(int(seed), int(count), work)


def report(seed: int, count: int, work: Callable[[int], int]) -> None:
    """Do ``work`` in children and print how many messages were sent."""
    began_s = time.monotonic()
    sent = in_children(count, seed << 32, work)
    print(f"sent {sent} messages in {time.monotonic() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
