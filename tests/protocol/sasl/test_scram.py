"""Goal: SCRAM as the RFCs and Kafka's brokers have it, and nothing that a broker says can fool or stall it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.protocol.sasl.credentials import LoginFailed, PasswordCredentials
from sidecar.protocol.sasl.scram import SCRAM_ITERATIONS_MAX, SCRAM_MESSAGE_BYTES_MAX, Scram

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


class Server:
    """The broker's side, written from RFC 5802 without scramp. It hashes a password as Kafka does: as UTF-8."""

    def __init__(self, mechanism: str, password: str, *, iterations: int = 4096) -> None:
        self.hash = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        self.salt, self.iterations = b"0123456789abcdef", iterations
        self.salted = hashlib.pbkdf2_hmac(self.hash, password.encode(), self.salt, iterations)
        self.first_bare = self.first = ""

    def _hmac(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self.hash)

    def answer_first(self, message: bytes) -> bytes:
        self.first_bare = message.decode().removeprefix("n,,")
        nonce = self.first_bare.rpartition(",r=")[2] + "server"
        self.first = f"r={nonce},s={base64.b64encode(self.salt).decode()},i={self.iterations}"
        return self.first.encode()

    def answer_final(self, message: bytes) -> bytes:
        """The server's signature; AssertionError for a wrong proof."""
        without_proof, _, proof = message.decode().rpartition(",p=")
        signed = f"{self.first_bare},{self.first},{without_proof}".encode()
        stored = hashlib.new(self.hash, self._hmac(self.salted, b"Client Key")).digest()
        signature = self._hmac(stored, signed)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        assert hashlib.new(self.hash, key).digest() == stored
        return b"v=" + base64.b64encode(self._hmac(self._hmac(self.salted, b"Server Key"), signed))


def scram(password: str = "pencil", mechanism: str = "SCRAM-SHA-256", user: str = "user") -> Scram:
    return Scram(mechanism, PasswordCredentials(user, password), NONCE)


def test_the_vector_of_rfc_7677() -> None:
    client = scram()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.answer(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert client.answer(SERVER_FINAL) is None


@given(TEXT, TEXT, st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512"]))
def test_any_password_is_proved_as_its_utf_8(user: str, password: str, mechanism: str) -> None:
    server, client = Server(mechanism, password), scram(password, mechanism, user)
    first = client.first()
    name = first.decode().removeprefix("n,,n=").rpartition(",r=")[0]
    assert name.replace("=2C", ",").replace("=3D", "=") == user and "," not in name
    final = client.answer(server.answer_first(first))
    assert final is not None
    assert client.answer(server.answer_final(final)) is None


@pytest.mark.parametrize(
    "first",
    [
        SERVER_FIRST.replace(b"rOpr", b"xOpr"),  # another nonce
        SERVER_FIRST.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""),  # only ours
        SERVER_FIRST.replace(b"i=4096", b"i=1"),
        SERVER_FIRST.replace(b"i=4096", b"i=2147483648"),
        SERVER_FIRST.replace(b"i=4096", b"i=" + b"9" * 4_000),
        SERVER_FIRST.replace(b"i=4096", b"i=%d" % (SCRAM_ITERATIONS_MAX + 1)),
        SERVER_FIRST.replace(b"W22Z", b"!!!!"),
        SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="),
        b"m=ext," + SERVER_FIRST,
        SERVER_FIRST + b"," * SCRAM_MESSAGE_BYTES_MAX,
        b"e=other-error",
        b"e=\x1b[31mred",
        b"",
        b"\xff\xfe",
        b"\0" * 100,
    ],
)
def test_a_first_message_that_is_refused_at_once(first: bytes) -> None:
    client = scram()
    client.first()
    before_s = time.process_time()
    with pytest.raises(LoginFailed) as caught:
        client.answer(first)
    assert time.process_time() - before_s < 1.0
    assert "pencil" not in str(caught.value) and "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "final", [SERVER_FINAL.replace(b"6rri", b"7rri"), b"v=", b"e=invalid-proof", b"", b"v=" + b"A" * 5_000]
)
def test_a_broker_that_does_not_know_the_password_is_refused(final: bytes) -> None:
    client = scram()
    client.first()
    client.answer(SERVER_FIRST)
    with pytest.raises(LoginFailed):
        client.answer(final)


def test_the_bound_of_iterations_itself_is_taken() -> None:
    server, client = Server("SCRAM-SHA-256", "pencil", iterations=SCRAM_ITERATIONS_MAX), scram()
    final = client.answer(server.answer_first(client.first()))
    assert final is not None and client.answer(server.answer_final(final)) is None
