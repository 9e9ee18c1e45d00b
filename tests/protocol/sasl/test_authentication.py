"""Goal: the exchange around the mechanisms, and one sentence for all that a broker may answer instead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.protocol.messages import ApiKey, ProtocolError, decode_response
from sidecar.protocol.sasl.authentication import ROUNDS_MAX, Authentication
from sidecar.protocol.sasl.credentials import LoginFailed, PasswordCredentials
from sidecar.protocol.sasl.session import SESSION_MS_MAX

VERSIONS = {ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 2}
ALICE = PasswordCredentials("alice", "s3cret")


def answer(code: int = 0, **fields: Any) -> Any:
    return SimpleNamespace(error_code=code, **fields)


def after_handshake(mechanism: str = "PLAIN") -> Authentication:
    login = Authentication(mechanism, ALICE, VERSIONS)
    request: Any = login.next_request()
    assert (request.__api_key__, request.mechanism) == (ApiKey.SASL_HANDSHAKE, mechanism)
    login.receive(answer(mechanisms=(mechanism,)))
    return login


def test_plain() -> None:
    login = after_handshake()
    request: Any = login.next_request()
    assert (request.__api_key__, request.__version__) == (ApiKey.SASL_AUTHENTICATE, 2)
    assert request.auth_bytes == b"\0alice\0s3cret"
    entity = decode_response(
        ApiKey.SASL_AUTHENTICATE,
        2,
        b"\0\0\0\x01" + (60_000).to_bytes(8) + b"\0",  # no error, no text, no bytes, a minute
    )
    login.receive(entity)
    assert login.next_request() is None
    assert login.session_lifetime_ms == 60_000


@pytest.mark.parametrize("text", [None, "", "wörds" * 60])
@pytest.mark.parametrize("auth_bytes", [b"", b"v=" * 200])
@pytest.mark.parametrize(
    ("says_ms", "reads_ms"),
    [
        (0, 0),
        (1, 1),
        (-1, 0),
        (SESSION_MS_MAX, SESSION_MS_MAX),
        (SESSION_MS_MAX + 1, SESSION_MS_MAX),
        (86_400_000_000_000_000, SESSION_MS_MAX),
        (2**63 - 1, SESSION_MS_MAX),
        (-(2**63), 0),
    ],
)
def test_a_session_of_any_length_can_be_read(
    says_ms: int, reads_ms: int, text: str | None, auth_bytes: bytes
) -> None:
    """kio has a timedelta for it, which ends at 8.64e16 ms: the whole login failed."""
    said = text.encode() if text is not None else b""
    lifetime = says_ms.to_bytes(8, signed=True)
    bodies = {
        1: b"\0\0"
        + (len(said) if text is not None else -1).to_bytes(2, signed=True)
        + said
        + len(auth_bytes).to_bytes(4)
        + auth_bytes
        + lifetime,
        2: b"\0\0"
        + (varint(len(said) + 1) if text is not None else b"\0")
        + said
        + varint(len(auth_bytes) + 1)
        + auth_bytes
        + lifetime
        + b"\0",
    }
    for version, body in bodies.items():
        login = after_handshake()
        login.next_request()
        entity = decode_response(ApiKey.SASL_AUTHENTICATE, version, body)
        assert (entity.error_message, entity.auth_bytes) == (text, auth_bytes)
        if not auth_bytes:
            login.receive(entity)
            assert login.session_lifetime_ms == reads_ms
        for end in range(0, len(body) - 9):
            with pytest.raises(ProtocolError):
                decode_response(ApiKey.SASL_AUTHENTICATE, version, body[:end])


def varint(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80, number >> 7])


@pytest.mark.parametrize("version", [1, 2])
def test_a_length_that_never_ends_is_refused_at_once(version: int) -> None:
    with pytest.raises(ProtocolError):
        decode_response(ApiKey.SASL_AUTHENTICATE, version, b"\0\0" + b"\xff" * 1_000_000)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (
            answer(33, mechanisms=("GSSAPI", "OAUTHBEARER")),
            "does not have this mechanism, but GSSAPI, OAUTHBEARER",
        ),
        (answer(33, mechanisms=()), "but none"),
        (answer(34, mechanisms=()), "without SASL"),
        (answer(-1, mechanisms=()), "error -1"),
    ],
)
def test_a_handshake_that_is_refused(response: Any, words: str) -> None:
    login = Authentication("PLAIN", ALICE, VERSIONS)
    login.next_request()
    with pytest.raises(LoginFailed, match=words) as caught:
        login.receive(response)
    assert 'sasl.mechanism PLAIN, user "alice"' in str(caught.value) and "s3cret" not in str(caught.value)


def test_a_refused_password_has_the_brokers_words_without_escapes() -> None:
    login = after_handshake()
    login.next_request()
    with pytest.raises(LoginFailed) as caught:
        login.receive(answer(58, error_message="Invalid\n\x1b[31m password." + "x" * 1_000, auth_bytes=b""))
    text = str(caught.value)
    assert "Invalid" in text and len(text) < 500 and text.isprintable()


def test_a_broker_that_asks_for_ever() -> None:
    class Endless:
        def first(self) -> bytes:
            return b"x"

        def answer(self, challenge: bytes) -> bytes | None:
            return b"x"

    login = after_handshake()
    login._conversation = Endless()
    with pytest.raises(LoginFailed, match=f"{ROUNDS_MAX} times"):
        for _ in range(ROUNDS_MAX + 2):
            assert login.next_request() is not None
            login.receive(answer(auth_bytes=b"more"))


def test_a_broker_without_these_apis() -> None:
    with pytest.raises(LoginFailed, match=r"1\.0 or newer"):
        Authentication("PLAIN", ALICE, {ApiKey.SASL_HANDSHAKE: 1})


@given(st.binary(max_size=64), st.sampled_from([(17, 1), (36, 0), (36, 1), (36, 2)]))
def test_any_bytes_end_in_one_of_two_errors(body: bytes, api: tuple[int, int]) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        login = Authentication(mechanism, ALICE, VERSIONS)
        if api[0] == ApiKey.SASL_AUTHENTICATE:
            login.receive(answer(mechanisms=()))
        try:
            login.receive(decode_response(*api, body))
            assert login.session_lifetime_ms >= 0
        except (ProtocolError, LoginFailed):
            pass
