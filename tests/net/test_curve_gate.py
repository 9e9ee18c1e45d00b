"""The gate's key file while it is open: a new key, two of them, a broken file."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.connection import ZmtpConnection
from client_stub.zmtp.curve import KeyPair
from client_stub.zmtp.frames import ZmtpError
from client_stub.zmtp.keys import key_file_text
from sidecar.config.client_rules import ClientRule, ClientRules
from sidecar.net.stubs.curve_gate import CurveGate
from sidecar.net.stubs.peer import Peer
from tests.stub.zmtp.ends import DEALERS, client, joined

OLD, NEW, CLIENT = KeyPair.new(), KeyPair.new(), KeyPair.new()


class Harness:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "daemon.key"
        self.file.touch(0o600)
        self.write(OLD)
        self.rules = ClientRules({"billing": ClientRule("billing", keys=(CLIENT.public,))})
        self.changes = 0
        self.socket = socket.socket()
        self.gate = CurveGate(self.socket, str(self.file), lambda: self.rules, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def write(self, *keys: KeyPair) -> None:
        self.file.write_text("".join(key_file_text(each.secret, each.public) for each in keys))

    def lets_in(self, server_key: bytes) -> bool:
        """A client that knows the daemon by this key."""
        ours = client(server_key, CLIENT)
        peer = Peer(0, 1 << 62, 0, "192.0.2.1", "192.0.2.1")
        theirs = ZmtpConnection(self.gate.mechanism(peer), DEALERS, Buffers(1 << 16))
        try:
            joined(ours, theirs)
        except ZmtpError:
            return False
        return ours.is_ready and theirs.is_ready


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path)
    yield made
    made.socket.close()


def test_the_next_connection_finds_the_key_that_the_file_has_by_then(harness: Harness) -> None:
    assert (harness.lets_in(OLD.public), harness.lets_in(NEW.public), harness.changes) == (True, False, 0)
    harness.write(NEW, OLD)
    assert (harness.lets_in(OLD.public), harness.lets_in(NEW.public), harness.changes) == (True, True, 1)
    assert harness.gate.public_keys == [NEW.public.hex(), OLD.public.hex()]
    harness.write(NEW)
    assert (harness.lets_in(OLD.public), harness.lets_in(NEW.public), harness.changes) == (False, True, 2)
    assert harness.gate.public_keys == [NEW.public.hex()]


def test_a_file_that_is_broken_meanwhile_is_said_once_and_the_earlier_key_stays(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        harness.file.write_text(key_file_text(NEW.secret, NEW.public)[:100])
        assert [harness.lets_in(OLD.public) for _ in range(3)] == [True] * 3
        harness.file.chmod(0o644)
        assert harness.lets_in(OLD.public)
        harness.file.unlink()
        assert harness.lets_in(OLD.public)
    words = [record.getMessage() for record in caplog.records]
    assert len(words) == 3, words
    assert all(each.endswith("The earlier keys stay in use.") for each in words)
    assert NEW.secret.hex() not in "".join(words) and harness.changes == 0
    harness.file.touch(0o600)
    harness.write(NEW)
    assert harness.lets_in(NEW.public)
