"""Transports alone, over real socketpairs: bytes arrive unchanged however the kernel and the peer cut them."""

from __future__ import annotations

import _ssl
import contextlib
import ctypes
import random
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.net.kafka.transport import CHUNK_BYTES, LinkTransport, PlainTransport, TlsTransport
from tests.patience import PATIENCE_S

from .tls_harness import TlsHarness

KINDS = ["plaintext", "TLSv1.2", "TLSv1.3"]


def over(sock: socket.socket, tls: TlsHarness, version: ssl.TLSVersion) -> TlsTransport:
    """Our end, after a handshake on a blocking socket, which does not block from then on."""
    client = ssl.create_default_context(cadata=tls.ca.certificate_pem)
    client.minimum_version = client.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(incoming, outgoing, server_hostname="localhost")
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            incoming.write(sock.recv(1 << 16))
    sock.sendall(outgoing.read())
    sock.setblocking(False)
    return TlsTransport(sock, tls, incoming, outgoing, str)


class Pair:
    """``transport`` is ours, over one end; ``peer`` the other end, a blocking socket of Python's own."""

    def __init__(self, kind: str, tls: TlsHarness, buffer_bytes: int = 8 << 10) -> None:
        sock, peer = socket.socketpair()
        for each in (sock, peer):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        self.sock = sock
        self.peer: socket.socket | ssl.SSLSocket = peer
        self.transport: LinkTransport
        if kind == "plaintext":
            self.transport = PlainTransport(sock)
        else:
            server = tls.server()
            accepted: list[ssl.SSLSocket] = []
            thread = threading.Thread(
                target=lambda: accepted.append(server.wrap_socket(peer, server_side=True))
            )
            thread.start()
            self.transport = over(sock, tls, getattr(ssl.TLSVersion, kind.replace(".", "_")))
            thread.join()
            self.peer = accepted[0]
        sock.setblocking(False)
        self.is_blocked = threading.Event()

    def send_all(self, buffers: list[bytes | memoryview]) -> int:
        """As a link does: the buffers again, without the reported bytes; returns how often nothing was taken.

        ``is_blocked`` is set at the first time: a peer that reads from then on is slower, on any machine.
        """
        left: list[bytes | memoryview] = list(buffers)
        blocked = 0
        while left:
            try:
                taken = self.transport.send(left[:1024])
            except BlockingIOError:
                blocked += 1
                self.is_blocked.set()
                select.select([], [self.sock], [])
                continue
            while left and taken >= len(left[0]):
                taken -= len(left[0])
                left.pop(0)
            if taken:
                left[0] = memoryview(left[0])[taken:]
        return blocked

    def receive(self, count: int, step: int = 1 << 16) -> bytes:
        """Bytes that our side reads, ``step`` at a time, until it has ``count``."""
        data = bytearray()
        buffer = memoryview(bytearray(step))
        while len(data) < count:
            try:
                got = self.transport.receive_into(buffer)
            except BlockingIOError:
                select.select([self.sock], [], [], PATIENCE_S)
                continue
            assert got, "the stream has ended"
            data += buffer[:got]
        return bytes(data)

    def close(self) -> None:
        self.transport.close()
        self.peer.close()


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, tls_harness: TlsHarness) -> Iterator[Pair]:
    made = Pair(request.param, tls_harness)
    yield made
    made.close()


def read_slowly(peer: socket.socket, count: int, step: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        got = peer.recv(min(step, count - len(data)))
        if not got:
            break
        data += got
    return bytes(data)


@pytest.mark.parametrize("step", [1 << 16, 1000])
def test_two_thousand_buffers_to_a_slow_reader(pair: Pair, step: int) -> None:
    rng = random.Random(step)
    buffers = [rng.randbytes(rng.choice((1, 7, 60, 16_384))) for _ in range(2_000)]
    whole = b"".join(buffers)
    got: list[bytes] = []

    def read() -> None:
        assert pair.is_blocked.wait(PATIENCE_S), "all of it fitted into the socket"
        got.append(read_slowly(pair.peer, len(whole), step))

    reader = threading.Thread(target=read)
    reader.start()
    blocked = pair.send_all([memoryview(each) for each in buffers])
    reader.join()
    assert got == [whole]
    assert blocked


@pytest.mark.parametrize("kind", KINDS)
def test_buffers_may_be_used_again_once_they_are_reported(kind: str, tls_harness: TlsHarness) -> None:
    """Each reported byte is overwritten at once; the peer gets what it was."""
    pair = Pair(kind, tls_harness)
    storage = bytearray(random.Random(1).randbytes(3 * CHUNK_BYTES + 5))
    whole = bytes(storage)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(read_slowly(pair.peer, len(whole), 5_000)))
    reader.start()
    sent = 0
    while sent < len(storage):
        try:
            taken = pair.transport.send([memoryview(storage)[sent:]])
        except BlockingIOError:
            select.select([], [pair.sock], [])
            continue
        storage[sent : sent + taken] = bytes(taken)
        sent += taken
    reader.join()
    assert got == [whole]
    assert pair.transport.unreported_bytes == 0
    pair.close()


@pytest.mark.parametrize("kind", ["TLSv1.2", "TLSv1.3"])
def test_encrypted_bytes_that_the_kernel_has_not_taken_are_not_reported(
    kind: str, tls_harness: TlsHarness
) -> None:
    """A peer that does not read: at most one chunk is encrypted ahead, and its bytes count as perhaps sent."""
    pair = Pair(kind, tls_harness)
    data = memoryview(bytes(4 * CHUNK_BYTES))
    reported = 0
    with pytest.raises(BlockingIOError):
        while True:
            reported += pair.transport.send([data[reported:]])
    assert pair.transport.unreported_bytes == CHUNK_BYTES
    assert pair.transport.wants_write
    assert reported % CHUNK_BYTES == 0
    pair.close()


def test_one_byte_reads(pair: Pair) -> None:
    data = random.Random(2).randbytes(3_000)
    pair.peer.sendall(data)
    assert pair.receive(len(data), step=1) == data


def test_more_is_pending_than_the_socket_shows(tls_harness: TlsHarness) -> None:
    """A record is 16 KiB: after a small read the rest is inside OpenSSL, and the socket is silent."""
    pair = Pair("TLSv1.3", tls_harness, buffer_bytes=1 << 18)
    pair.peer.sendall(bytes(10_000))
    select.select([pair.sock], [], [], PATIENCE_S)
    buffer = memoryview(bytearray(4_000))
    assert pair.transport.receive_into(buffer) == 4_000
    assert pair.transport.has_pending
    assert select.select([pair.sock], [], [], 0)[0] == []
    assert [pair.transport.receive_into(buffer) for _ in range(2)] == [4_000, 2_000]
    assert not pair.transport.has_pending
    with pytest.raises(BlockingIOError):
        pair.transport.receive_into(buffer)
    pair.close()


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_the_end_comes_after_the_last_bytes(pair: Pair, says_goodbye: bool) -> None:
    pair.peer.sendall(b"last words")
    if says_goodbye and isinstance(pair.peer, ssl.SSLSocket):
        pair.peer.setblocking(False)
        with pytest.raises(ssl.SSLWantReadError):
            pair.peer.unwrap()
    pair.peer.close()
    assert pair.receive(10) == b"last words"
    assert pair.transport.receive_into(memoryview(bytearray(100))) == 0


def test_we_say_goodbye(pair: Pair) -> None:
    """The peer sees an end in good order, not a cut."""
    pair.transport.close()
    assert pair.peer.recv(10) == b""


def test_a_connection_cut_in_the_middle_of_a_record(tls_harness: TlsHarness) -> None:
    """Bytes that are whole are read; then the stream has ended, or the failure is said."""
    pair = Pair("TLSv1.3", tls_harness, buffer_bytes=1 << 18)
    pair.peer.sendall(b"whole")
    raw = socket.socket(fileno=pair.peer.detach())
    raw.sendall(b"\x17\x03\x03\x01\x00half of a record")
    raw.close()
    assert pair.receive(5) == b"whole"
    assert pair.transport.receive_into(memoryview(bytearray(100))) == 0
    pair.transport.close()


def test_a_forged_record_is_a_failure_after_what_was_read(tls_harness: TlsHarness) -> None:
    pair = Pair("TLSv1.3", tls_harness, buffer_bytes=1 << 18)
    pair.peer.sendall(b"whole")
    raw = socket.socket(fileno=pair.peer.detach())
    raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert pair.receive(5) == b"whole"
    assert pair.transport.has_pending
    for _ in range(2):
        with pytest.raises(ConnectionError):
            pair.transport.receive_into(memoryview(bytearray(100)))
    raw.close()
    pair.transport.close()


def test_new_keys_on_the_way(tls_harness: TlsHarness) -> None:
    """OpenSSL's own server changes the keys of TLS 1.3 on a line with K, and asks us for the same."""
    certificate = tls_harness.file(tls_harness.ca.issue("broker", hosts=("localhost",)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        "openssl",
        "s_server",
        "-accept",
        str(port),
        "-cert",
        str(certificate),
        "-key",
        str(certificate),
        "-tls1_3",
        "-num_tickets",
        "0",  # so that the first bytes for us are the new keys
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        while b"ACCEPT" not in server.stdout.readline():
            assert server.poll() is None
        sock = socket.create_connection(("127.0.0.1", port))
        transport = over(sock, tls_harness, ssl.TLSVersion.TLSv1_3)
        buffer = memoryview(bytearray(1000))

        def reads_nothing_for_us() -> None:
            assert select.select([sock], [], [], PATIENCE_S)[0]
            with pytest.raises(BlockingIOError):
                transport.receive_into(buffer)

        for number in range(3):
            server.stdin.write(b"K\n")
            server.stdin.flush()
            reads_nothing_for_us()
            said = b"word %d\n" % number
            server.stdin.write(said)
            server.stdin.flush()
            got = b""
            while not got.endswith(said):
                assert select.select([sock], [], [], PATIENCE_S)[0]
                with contextlib.suppress(BlockingIOError):
                    count = transport.receive_into(buffer)
                    assert count
                    got += buffer[:count]
            line = b"ours %d\n" % number
            assert transport.send([line]) == len(line)
            while server.stdout.readline() != line:
                assert server.poll() is None
        transport.close()
        server.terminate()


def test_words_of_tls_alone_do_not_hold_the_loop(tls_harness: TlsHarness) -> None:
    """Tickets bring no byte for us: one call reads a bounded part of them, and the socket shows that there is more."""
    server = tls_harness.server()
    server.num_tickets = 800
    sock, peer = socket.socketpair()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    accepted: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: accepted.append(server.wrap_socket(peer, server_side=True)))
    thread.start()
    transport = over(sock, tls_harness, ssl.TLSVersion.TLSv1_3)
    thread.join(PATIENCE_S)
    accepted[0].sendall(b"words")
    buffer = memoryview(bytearray(1 << 16))
    with pytest.raises(BlockingIOError):
        transport.receive_into(buffer)
    assert select.select([sock], [], [], 0)[0]
    count = 0
    while not count:
        with contextlib.suppress(BlockingIOError):
            count = transport.receive_into(buffer)
    assert buffer[:count] == b"words"
    transport.close()
    accepted[0].close()


def test_new_keys_without_end(tls_harness: TlsHarness) -> None:
    """A peer that asks for them and reads no answer: Python has no word for that, so OpenSSL is called itself."""
    pair = Pair("TLSv1.3", tls_harness)
    openssl = ctypes.CDLL(_ssl.__file__)
    tls_object = pair.peer._sslobj  # type: ignore[union-attr]
    # PyObject's head of two words, the socket, SSL *
    handle = ctypes.c_void_p.from_address(id(tls_object) + 3 * ctypes.sizeof(ctypes.c_void_p))

    def ask() -> None:
        while openssl.SSL_key_update(handle, 1) == 1 and openssl.SSL_do_handshake(handle) == 1:
            pass

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(ConnectionError, match="new TLS keys"):
        for _ in range(10_000):
            assert select.select([pair.sock], [], [], PATIENCE_S)[0]
            with contextlib.suppress(BlockingIOError):
                pair.transport.receive_into(memoryview(bytearray(1000)))
    pair.transport.close()
    asking.join(PATIENCE_S)
    pair.close()


@given(
    sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=30),
    step=st.integers(1, 70_000),
    kind=st.sampled_from(KINDS),
)
def test_any_bytes_arrive_unchanged_both_ways(
    tls_harness: TlsHarness, sizes: list[int], step: int, kind: str
) -> None:
    rng = random.Random(sum(sizes))
    buffers = [rng.randbytes(size) for size in sizes]
    whole = b"".join(buffers)
    pair = Pair(kind, tls_harness)
    got: list[bytes] = []

    def answer() -> None:
        got.append(read_slowly(pair.peer, len(whole), max(step, 500)))
        pair.peer.sendall(got[0][::-1])

    reader = threading.Thread(target=answer)
    reader.start()
    pair.send_all([memoryview(each) for each in buffers])
    back = pair.receive(len(whole), max(step, 100))
    reader.join()
    assert got == [whole]
    assert back == whole[::-1]
    pair.close()
