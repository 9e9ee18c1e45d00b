"""Goal: libzmq and SIGSTOP do what docs/broker-facts.md says; our rules are built on it."""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process

PATIENCE_MS = 10_000
FLOOD = 20_000


class Sockets:
    """Sockets of one context on one path, closed after the test."""

    def __init__(self, folder: Path) -> None:
        self.address = f"ipc://{folder}/peer.sock"
        self._context = zmq.Context()
        self._made: list[zmq.Socket[bytes]] = []

    def router(self, **options: int) -> zmq.Socket[bytes]:
        made = self._make(zmq.ROUTER, options)
        made.bind(self.address)
        return made

    def dealer(self, identity: bytes, **options: int) -> zmq.Socket[bytes]:
        made = self._make(zmq.DEALER, options)
        made.setsockopt(zmq.ROUTING_ID, identity)
        made.connect(self.address)
        return made

    def close(self) -> None:
        for each in self._made:
            each.close(0)
        self._context.term()

    def _make(self, kind: int, options: dict[str, int]) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        self._made.append(made)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        for name, value in options.items():
            made.setsockopt(getattr(zmq, name), value)
        return made


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    with tempfile.TemporaryDirectory(prefix="ks-", dir="/tmp") as folder:
        made = Sockets(Path(folder))
        yield made
        made.close()


def test_a_second_bind_steals_the_path(sockets: Sockets) -> None:
    """Which is why a run dir has a lock; and why a takeover may bind before the old daemon has ended."""
    first = sockets.router()
    before = sockets.dealer(b"before")
    before.send(b"1")
    assert first.recv_multipart() == [b"before", b"1"]
    second = sockets.router()
    after = sockets.dealer(b"after")
    after.send(b"2")
    assert second.recv_multipart() == [b"after", b"2"]
    before.send(b"3")
    assert first.recv_multipart() == [b"before", b"3"], "connections that were there stay with the first"


def test_a_plain_router_drops_silently(sockets: Sockets) -> None:
    """And one that must route says so, which is what the daemon's do."""
    router = sockets.router(SNDHWM=100)
    slow = sockets.dealer(b"slow", RCVHWM=100)
    slow.send(b"here")
    router.recv_multipart()
    for number in range(FLOOD):
        router.send_multipart([b"slow", b"%d" % number], zmq.NOBLOCK)
    slow.setsockopt(zmq.RCVTIMEO, 300)
    arrived = 0
    try:
        while slow.recv():
            arrived += 1
    except zmq.Again:
        pass
    assert 0 < arrived < FLOOD
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    with pytest.raises(zmq.Again):
        for number in range(FLOOD):
            router.send_multipart([b"slow", b"%d" % number], zmq.NOBLOCK)
    with pytest.raises(zmq.ZMQError):
        router.send_multipart([b"nobody", b"x"], zmq.NOBLOCK)


def test_the_second_of_the_same_identity_is_not_heard(sockets: Sockets) -> None:
    """Unless ROUTER_HANDOVER is on, which it is in the daemon."""
    router = sockets.router()
    first = sockets.dealer(b"same")
    first.send(b"1")
    assert router.recv_multipart() == [b"same", b"1"]
    second = sockets.dealer(b"same")
    second.send(b"2")
    first.send(b"3")
    assert router.recv_multipart() == [b"same", b"3"]
    router.setsockopt(zmq.RCVTIMEO, 200)
    with pytest.raises(zmq.Again):
        router.recv_multipart()
    router.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    third = sockets.dealer(b"same")
    third.send(b"4")
    assert router.recv_multipart() == [b"same", b"4"]


def test_a_dealer_gives_a_new_peer_the_rest_of_its_pipe(sockets: Sockets) -> None:
    """Why a stub makes a new socket for every attachment: its successor is given the middle, and asks no HELLO."""
    first = sockets.router(RCVHWM=1)
    dealer = sockets.dealer(b"d", RECONNECT_IVL=10, SNDHWM=2 * FLOOD, SNDTIMEO=PATIENCE_MS)
    dealer.send(b"HELLO")
    assert first.recv_multipart() == [b"d", b"HELLO"]
    for number in range(FLOOD):
        dealer.send(b"%d" % number)
    first.recv_multipart()
    first.close(0)
    second = sockets.router()
    _, begins = second.recv_multipart()
    assert begins != b"HELLO"
    assert 0 < int(begins) < FLOOD


def test_a_check_is_no_fence() -> None:
    """A process looks whether a page is still its own, is stopped, and writes when it wakes: the check was true.

    So nothing is taken from a worker before it is dead.
    """
    page = mmap.mmap(-1, 4096)
    page[0:4] = b"mine"
    child = os.fork()
    if child == 0:
        if page[0:4] == b"mine":
            os.kill(os.getpid(), signal.SIGSTOP)
            page[100:103] = b"old"
        os._exit(0)
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    page[0:4] = b"next"
    page[100:103] = b"new"
    os.kill(child, signal.SIGCONT)
    wait_until(lambda: os.waitpid(child, os.WNOHANG)[0] == child, "the child to end")
    assert page[100:103] == b"old"
