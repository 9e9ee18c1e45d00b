"""A hostile peer at a daemon's tcp:// endpoint, with or without a known key. Each seed has an address of its own.

``python -m sidecar.tools.testing.hostile_over_tcp KEY_FILE PORT WORKERS SEED N`` sends N messages of the fuzz. When the
daemon does not know the key, it spoils handshakes instead, and each connection counts as a message. With a kind of
hostile_client.py in the place of N it runs until it is killed.
"""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from client_stub.contract.tcp import split_address
from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.connection import ZmtpConnection
from client_stub.zmtp.curve import CurveClient, KeyPair
from client_stub.zmtp.frames import ZmtpError, command
from client_stub.zmtp.keys import KeyFile, read_key_file
from sidecar.tools.testing.fuzz_client import READ_AWAY_S, Fuzz, report
from sidecar.tools.testing.hostile_client import PATIENCE_S, PEER_TYPES, Attacker, Link, go_on
from sidecar.tools.testing.tcp_access import HOST

NAME: Final = "hostile"
"""The only client name that its key may use."""


def own_host(seed: int) -> str:
    """Return a random loopback address that no other peer of a test uses."""
    chance = random.Random(seed)
    return f"127.{chance.randrange(1, 255)}.{chance.randrange(256)}.{chance.randrange(1, 255)}"


def dial(port: int, host: str) -> socket.socket:
    """Open a connection whose source address is ``host``."""
    return socket.create_connection((HOST, port), PATIENCE_S, source_address=(host, 0))


class TcpLink(Link):
    """A connection with a finished handshake. Raises ValueError when the daemon does not know the key."""

    def __init__(self, port: int, host: str, keys: KeyFile) -> None:
        self.socket = dial(port, host)
        self._zmtp = client_end(keys)
        self.socket.sendall(self._zmtp.mechanism.opening)
        shake_hands(self.socket, self._zmtp)

    def encode(self, frames: Sequence[bytes]) -> bytes:
        return b"".join(self._zmtp.mechanism.encode(frames))

    def part(self, frame: bytes) -> bytes:
        """Return one encrypted frame that another one should follow."""
        return b"".join(self._zmtp.mechanism.encode([frame, b""])[:2])


def client_end(keys: KeyFile) -> ZmtpConnection:
    mechanism = CurveClient(b"DEALER", KeyPair.of_secret(keys.secret_key), keys.server_key)
    return ZmtpConnection(mechanism, PEER_TYPES, Buffers(1 << 16))


def shake_hands(
    peer: socket.socket,
    ours: ZmtpConnection,
    spoilt: int = 0,
    spoil: Callable[[bytes], bytes] = lambda data: data,
) -> None:
    """Run the handshake to its end.

    With ``spoilt`` 1 (HELLO) or 2 (INITIATE) it ends there, after sending that command as changed by ``spoil``.
    """
    step = 0
    while not ours.is_ready:
        count = peer.recv_into(ours.space())
        if not count:
            raise OSError("closed")
        ours.received(count)
        ours.next_message()
        if ours.replies:
            step += 1
            data = b"".join(ours.replies)
            ours.replies.clear()
            peer.sendall(spoil(data) if step == spoilt else data)
            if step == spoilt:
                return


class TcpAttacker(Attacker):
    """The attacks of hostile_client.py over TCP. ``seed`` decides the source address."""

    def __init__(self, keys: KeyFile, port: int, workers: int, seed: int) -> None:
        super().__init__(Path(), seed)
        self.name = NAME
        self.keys = keys
        self.host = own_host(seed)
        self._port = port
        self._workers = workers

    def any_port(self) -> int:
        return self._port + self.chance.randrange(1 + self._workers)

    def control(self) -> TcpLink:
        return TcpLink(self._port, self.host, self.keys)

    def bare(self) -> TcpLink:
        return TcpLink(self._port + 1 + self.chance.randrange(self._workers), self.host, self.keys)

    def at(self, endpoint: str) -> TcpLink:
        return TcpLink(split_address(endpoint)[1], self.host, self.keys)


class TcpFuzz(Fuzz):
    """The fuzz inside encrypted frames, and broken handshakes."""

    def __init__(self, attacker: TcpAttacker, seed: int) -> None:
        super().__init__(attacker, seed)
        self.tcp = attacker

    def raw(self) -> int:
        """Send a handshake with one step spoilt, or something else."""
        chance, ours = self.chance, client_end(self.tcp.keys)
        spoilt = chance.randrange(5)
        with dial(self.tcp.any_port(), self.tcp.host) as peer, contextlib.suppress(OSError, ZmtpError):
            peer.settimeout(READ_AWAY_S)
            if spoilt == 4:
                peer.sendall(chance.randbytes(300))
            else:
                peer.sendall(self._spoilt(ours.mechanism.opening) if spoilt == 0 else ours.mechanism.opening)
                with contextlib.suppress(ZmtpError):
                    shake_hands(peer, ours, spoilt, self._spoilt)
                peer.sendall(chance.randbytes(chance.randrange(1, 2_000)))
            self.read_away(peer)
        return 1

    def _spoilt(self, data: bytes) -> bytes:
        chance, changed = self.chance, bytearray(data)
        kind = chance.randrange(5)
        if kind == 0:
            return data[: chance.randrange(len(data))]
        if kind == 1:
            return data + data
        if kind == 2:
            return command(
                chance.choice((b"HELLO", b"INITIATE", b"READY", b"")), chance.randbytes(chance.randrange(900))
            )
        if kind == 3:
            return b"\x06" + chance.choice((1 << 11, 60 << 20, 2**64 - 1)).to_bytes(8, "big") + data
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        return bytes(changed)


def main(key_file: str, port: str, workers: str, seed: str, count: str) -> None:
    keys = read_key_file(key_file, is_client=True)
    if not count.isdigit():
        go_on(TcpAttacker(keys, int(port), int(workers), int(seed)), count)
    is_known = _is_known(keys, int(port))

    def work(number: int) -> int:
        with contextlib.suppress(OSError, ValueError):  # refused: go on with the next one
            fuzz = TcpFuzz(TcpAttacker(keys, int(port), int(workers), number), number)
            return fuzz.connection() if is_known else fuzz.raw()
        return 1

    report(int(seed), int(count), work)


def _is_known(keys: KeyFile, port: int) -> bool:
    try:
        TcpLink(port, own_host(0), keys).close()
    except ZmtpError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
