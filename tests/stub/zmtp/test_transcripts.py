"""Goal: what libzmq wrote once is read as it was, and our own bytes are the same again, by every cut.

Method: conversations recorded from libzmq with fixed keys (``transcripts.py``), replayed without it.
"""

from __future__ import annotations

import pytest

from client_stub.zmtp.frames import encode
from client_stub.zmtp.mechanism import GREETING_BYTES, opening
from tests.stub.zmtp.ends import as_bytes, feed, take
from tests.stub.zmtp.transcripts import MESSAGES, NAMES, PINGS, our_end, read, theirs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cut", [1, 2, 7, 64, 1 << 20])
def test_a_recorded_conversation_is_the_same_byte_by_byte(name: str, cut: int) -> None:
    end = our_end(name)
    sent, heard, expected = end.mechanism.opening, list[list[bytes]](), list[list[bytes]]()
    for word, fields in read(name):
        if word == "theirs":
            for start in range(0, len(fields[0]), cut):
                heard += feed(end, fields[0][start : start + cut])
                sent += take(end)
        elif word == "send":
            sent += as_bytes(end, *fields)
        elif word == "message":
            expected.append(fields)
        else:
            assert sent == fields[0]
            sent = b""
    assert heard == expected == MESSAGES
    assert end.is_ready and not sent and not end.has_part


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_cut_off_anywhere_holds_nothing_after_it_is_closed(name: str) -> None:
    data = theirs(name)
    for cut in range(len(data)):
        end = our_end(name)
        feed(end, data[:cut])
        end.close()
        assert end._buffers.held_bytes == 0, cut


def test_libzmq_writes_the_same_bytes_as_we_do() -> None:
    """But for the last byte of the signature's padding, which no peer reads."""
    for name, kind in (("null-client", b"ROUTER"), ("null-server", b"DEALER")):
        written, ours = bytearray(theirs(name)), bytearray(opening(kind))
        written[8] = ours[8] = 0
        messages = b"".join(b"".join(encode(message)) for message in MESSAGES)
        pings = b"\x04\x07\x04PING\0\0" * PINGS
        assert written == bytes(ours) + messages + pings
        assert len(ours) > GREETING_BYTES
