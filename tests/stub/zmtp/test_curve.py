"""CURVE: our ends against each other, and against peers that break its rules. (For libzmq see test_interop.py.)"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Final

import pytest
import zmq
from zmq.utils import z85

from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.connection import ZmtpConnection
from client_stub.zmtp.curve import KeyPair
from client_stub.zmtp.frames import Pieces, ZmtpError, command
from tests.patience import PATIENCE_S
from tests.stub.zmtp.ends import (
    CLIENT,
    DAEMON,
    STRANGER,
    as_bytes,
    client,
    feed,
    joined,
    proved_key,
    pump,
    server,
    take,
)

pytestmark = pytest.mark.skipif(not zmq.has("curve"), reason="needs a libzmq with CURVE")
_WAIT_MS: Final = 5_000


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context
        context.destroy(linger=0)


@pytest.mark.parametrize("keys, events", [(STRANGER, "auth"), (None, "none")])
def test_a_libzmq_client_without_a_known_key_is_refused(
    context: zmq.Context[Any], keys: KeyPair | None, events: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        dealer = context.socket(zmq.DEALER)
        if keys is not None:
            dealer.curve_secretkey, dealer.curve_publickey = z85.encode(keys.secret), z85.encode(keys.public)
            dealer.curve_serverkey = z85.encode(DAEMON.public)
        monitor = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        monitor.rcvtimeo = _WAIT_MS
        dealer.connect(f"tcp://127.0.0.1:{door.getsockname()[1]}")
        dealer.send(b"let me in")
        connected, _ = door.accept()
        with connected:
            connected.settimeout(PATIENCE_S)
            ours = server()
            connected.sendall(ours.mechanism.opening)
            if events == "none":
                # Which of the two is first to see that the other wants another mechanism is a race.
                with contextlib.suppress(ZmtpError, ConnectionError):
                    assert pump(ours, connected) is None
            else:
                assert pump(ours, connected) is None
                frames = monitor.recv_multipart()
                assert int.from_bytes(frames[0][:2], "little") == zmq.EVENT_HANDSHAKE_FAILED_AUTH
                assert int.from_bytes(frames[0][2:6], "little") == 400
            assert not ours.is_ready and not proved_key(ours)
        dealer.disable_monitor()
        dealer.close(0)


# --- two ends of ours, byte by byte ------------------------------------------------------------------------


def test_every_cut_of_a_conversation_is_the_same_conversation() -> None:
    ours, theirs = client(), server()
    joined(ours, theirs)
    assert ours.is_ready and theirs.is_ready
    data = as_bytes(ours, b"head", b"x" * 600) + as_bytes(ours, b"next")
    found = [message for place in range(len(data)) for message in feed(theirs, data[place : place + 1])]
    assert found == [[b"head", b"x" * 600], [b"next"]]
    assert not theirs.has_part
    assert theirs._buffers.held_bytes == 0


@pytest.mark.parametrize("place", [0, 8, 30, 60, -1])
def test_a_changed_byte_ends_the_connection(place: int) -> None:
    ours, theirs = client(), server()
    joined(ours, theirs)
    data = bytearray(as_bytes(ours, b"m" * 100))
    data[place] ^= 1
    with pytest.raises(ZmtpError):
        feed(theirs, bytes(data) + bytes(300))


def test_a_repeated_or_reordered_frame_ends_the_connection() -> None:
    ours, theirs = client(), server()
    joined(ours, theirs)
    first, second = as_bytes(ours, b"one"), as_bytes(ours, b"two")
    assert feed(theirs, second) == [[b"two"]]
    with pytest.raises(ZmtpError, match="came twice, or out of order"):
        feed(theirs, first)


def test_a_client_of_another_server_is_refused_at_its_first_word() -> None:
    ours, theirs = client(server_key=STRANGER.public), server()
    with pytest.raises(ZmtpError, match=r"HELLO.*does not open: made for another key"):
        joined(ours, theirs)


def test_a_stranger_hears_error_and_nothing_else() -> None:
    ours, theirs = client(keys=STRANGER), server()
    with pytest.raises(ZmtpError, match="refuses the connection: b'400'"):
        joined(ours, theirs)
    assert not theirs.is_ready
    with pytest.raises(ZmtpError, match="its key is not known"):
        feed(theirs, command(b"READY", b""))


def test_a_recorded_handshake_opens_no_second_connection() -> None:
    ours, theirs = client(), server()
    feed(theirs, ours.mechanism.opening)
    feed(ours, theirs.mechanism.opening)
    hello = take(ours)
    feed(theirs, hello)
    feed(ours, take(theirs))
    initiate = take(ours)
    again = server()
    feed(again, ours.mechanism.opening)
    feed(again, hello)
    with pytest.raises(ZmtpError, match="does not follow its WELCOME"):
        feed(again, initiate)


class Handshake:
    """Commands of each end, in order, in a handshake that went well."""

    def __init__(self) -> None:
        ours, theirs = client(), server()
        self.of_client, self.of_server = [ours.mechanism.opening], [theirs.mechanism.opening]
        feed(theirs, ours.mechanism.opening)
        feed(ours, theirs.mechanism.opening)
        while data := take(ours):
            self.of_client.append(data)
            feed(theirs, data)
            self.of_server.append(take(theirs))
            feed(ours, self.of_server[-1])
        assert ours.is_ready and theirs.is_ready
        self.names = [b"greeting", b"HELLO", b"INITIATE"]


def outcome(end: ZmtpConnection, *parts: bytes) -> str:
    """The state of an end that hears these: it is ready, waits, or closes."""
    try:
        for part in parts:
            feed(end, part)
    except ZmtpError:
        return "closes"
    return "is ready" if end.is_ready else "waits"


def test_a_handshake_that_is_cut_off_anywhere_only_waits() -> None:
    greeting_, hello, _ = Handshake().of_client
    whole = greeting_ + hello
    for place in range(len(whole)):
        theirs = server()
        assert outcome(theirs, whole[:place]) == "waits", place
        theirs.close()
        assert theirs._buffers.held_bytes == 0, place
    ours, theirs = client(), server()
    feed(ours, theirs.mechanism.opening)
    assert outcome(theirs, ours.mechanism.opening, take(ours)) == "waits"
    feed(ours, take(theirs))
    initiate = take(ours)
    for place in range(len(initiate) - 1):
        assert outcome(theirs, initiate[place : place + 1]) == "waits", place
    assert outcome(theirs, initiate[-1:]) == "is ready"


@pytest.mark.parametrize("step", [1, 2], ids=["HELLO", "INITIATE"])
def test_a_changed_byte_of_a_handshake_proves_nothing(step: int) -> None:
    """But for the padding of HELLO, which no box covers and nobody reads."""
    padding = range(10, 82)
    for place in range(0, len(Handshake().of_client[step]), 3):
        if step == 1 and place in padding:
            continue
        ours, theirs = client(), server()
        feed(ours, theirs.mechanism.opening)
        parts = [ours.mechanism.opening, take(ours)]
        if step == 2:
            feed(theirs, parts[0])
            feed(theirs, parts[1])
            feed(ours, take(theirs))
            parts = [take(ours)]
        changed = bytearray(parts[-1])
        changed[place] ^= 1
        assert outcome(theirs, *parts[:-1], bytes(changed)) in {"closes", "waits"}, place
        assert not theirs.is_ready and not proved_key(theirs), place


@pytest.mark.parametrize("step", [1, 2], ids=["WELCOME", "READY"])
def test_a_changed_byte_of_the_daemons_answer_is_noticed(step: int) -> None:
    for place in range(0, len(Handshake().of_server[step]), 3):
        ours, theirs = client(), server()
        feed(theirs, ours.mechanism.opening)
        feed(ours, theirs.mechanism.opening)
        for _ in range(step):
            feed(theirs, take(ours))
            answer = bytearray(take(theirs))
            if _ + 1 < step:
                feed(ours, bytes(answer))
        answer[place] ^= 1
        assert outcome(ours, bytes(answer)) in {"closes", "waits"}, place
        assert not ours.is_ready, place


def test_a_whole_recorded_conversation_gets_no_further_than_its_hello() -> None:
    recorded = Handshake()
    theirs = server()
    assert outcome(theirs, *recorded.of_client[:2]) == "waits"
    assert outcome(theirs, recorded.of_client[2]) == "closes"
    ours = client()
    assert outcome(ours, *recorded.of_server) == "closes"


def test_no_two_connections_have_a_key_in_common() -> None:
    """So the numbers that begin again with each connection never make the same nonce for the same key."""
    hellos = [Handshake().of_client[1] for _ in range(3)]
    assert len({hello[82:114] for hello in hellos}) == 3
    welcomes = [Handshake().of_server[1] for _ in range(3)]
    assert len({welcome[10:26] for welcome in welcomes}) == 3


def test_a_daemon_with_two_keys_is_known_by_either() -> None:
    earlier = KeyPair.new()
    for keys in (DAEMON, earlier):
        ours = client(server_key=keys.public)
        theirs = server(keys=[DAEMON, earlier])
        joined(ours, theirs)
        assert ours.is_ready and proved_key(theirs) == CLIENT.public
    theirs = server(keys=[DAEMON, earlier])
    with pytest.raises(ZmtpError, match=r"HELLO.*does not open"):
        joined(client(server_key=STRANGER.public), theirs)


def test_nobody_sends_a_message_or_much_before_ready() -> None:
    for data in (b"\x00\x05hello", b"\x02" + (5000).to_bytes(8, "big"), b"\x06" + (5000).to_bytes(8, "big")):
        theirs = server()
        with pytest.raises(ZmtpError, match=r"a command of more than 1024 bytes|flags 0x0 where none"):
            feed(theirs, client().mechanism.opening + data)


def test_low_order_points_are_no_keys() -> None:
    theirs = server()
    hello = b"\x01\x00" + bytes(72) + bytes(32) + (1).to_bytes(8, "big") + bytes(80)
    with pytest.raises(ZmtpError):
        feed(theirs, client().mechanism.opening + command(b"HELLO", hello))


def test_a_message_beyond_the_bound_is_refused_before_attach_and_read_away_after_it() -> None:
    ours, theirs = client(), server(message_bytes_max=1_000)
    joined(ours, theirs)
    with pytest.raises(ZmtpError, match="a message of more than 1000 bytes"):
        feed(theirs, as_bytes(ours, b"head", b"x" * 2_000))
    ours, theirs = client(), server(message_bytes_max=1_000)
    joined(ours, theirs)
    buffers = Buffers(64 << 10)
    theirs.skip_long_messages(buffers, 5_000)
    data = as_bytes(ours, b"head", b"x" * 200_000) + as_bytes(ours, b"next", b"y" * 4_000)
    skipped = []
    found = []
    for place in range(0, len(data), 1_000):
        for message in feed(theirs, data[place : place + 1_000]):
            found.append(message)
            skipped.append(theirs.skipped_bytes)
        assert buffers.held_bytes <= 140_000
    assert found == [[b"head"], [b"next", b"y" * 4_000]]
    assert buffers.held_bytes == 0


def test_frames_without_an_end_are_bounded_and_counted() -> None:
    ours, theirs = client(), server(message_bytes_max=4_000)
    joined(ours, theirs)
    half = [b"x" * 1_000] * 3
    feed(theirs, b"".join(ours.mechanism.encode([*half, b"its end, not sent"])[:6]))
    assert theirs.has_part
    assert theirs._buffers.held_bytes >= 3_000
    with pytest.raises(ZmtpError, match="a message of more than 4000 bytes"):
        feed(theirs, b"".join(ours.mechanism.encode([*half, b"its end, not sent"])[:4]))
    theirs.close()
    assert theirs._buffers.held_bytes == 0


def test_a_frame_in_pieces_is_sealed_whole() -> None:
    ours, theirs = client(), server()
    joined(ours, theirs)
    pieces = Pieces([b"a" * 5_000, memoryview(b"b" * 5_000)])
    sealed = b"".join(ours.mechanism.encode([b"head", pieces]))  # type: ignore[list-item]
    assert feed(theirs, sealed) == [[b"head", bytes(pieces)]]
