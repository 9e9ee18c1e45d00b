"""Goal: OAUTHBEARER as RFC 7628 and KIP-342 have it, and renewal in time (KIP-255) by plain numbers."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.protocol.messages import ApiKey
from sidecar.protocol.sasl.authentication import Authentication
from sidecar.protocol.sasl.credentials import LoginFailed, OAuthToken, jwt_claims
from sidecar.protocol.sasl.mechanisms import OAuthBearer, token_fault
from sidecar.protocol.sasl.token_refresh import TokenRefreshConfig, refresh_at_ms
from tests.configs import config_with

RFC_TOKEN = "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="
CLAIMS = "eyJzdWIiOiJhbGljZSIsImV4cCI6MTcwMDAwMDAwMH0"  # {"sub":"alice","exp":1700000000}


def answer(code: int = 0, **fields: Any) -> Any:
    return SimpleNamespace(error_code=code, **fields)


def test_the_message_of_rfc_7628() -> None:
    """Section 4.1 has the same pairs; its authzid, host and port are no part of Kafka's."""
    first = OAuthBearer(OAuthToken(RFC_TOKEN)).first()
    assert first == b"n,,\x01auth=Bearer " + RFC_TOKEN.encode() + b"\x01\x01"
    extended = OAuthBearer(OAuthToken("t", extensions={"logicalCluster": "lkc-1", "traceId": "a b"}))
    assert extended.first() == b"n,,\x01auth=Bearer t\x01logicalCluster=lkc-1\x01traceId=a b\x01\x01"


def test_a_refused_token_has_both_reasons_in_its_sentence() -> None:
    token = OAuthToken("secret-token", principal="alice")
    versions = {ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 2}
    login = Authentication("OAUTHBEARER", token, versions)
    login.next_request()
    login.receive(answer(mechanisms=("OAUTHBEARER",)))
    login.next_request()
    login.receive(answer(auth_bytes=b'{"status":"invalid_token","scope":"\\u001b[31m"}'))
    request: Any = login.next_request()
    assert request.auth_bytes == b"\x01", "RFC 7628, 3.2.3"
    with pytest.raises(LoginFailed) as caught:
        login.receive(answer(58, error_message="invalid credentials", auth_bytes=b""))
    text = str(caught.value)
    for words in ('principal "alice"', "invalid credentials", "status invalid_token"):
        assert words in text
    assert "secret-token" not in text and text.isprintable()


@pytest.mark.parametrize("challenge", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b"x" * 100_000])
def test_a_refusal_of_any_form_is_a_short_sentence(challenge: bytes) -> None:
    conversation = OAuthBearer(OAuthToken("t"))
    conversation.first()
    assert conversation.answer(challenge) == (b"\x01" if challenge else None)
    if challenge:
        with pytest.raises(LoginFailed) as caught:
            conversation.answer(b"")
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (OAuthToken(RFC_TOKEN), ""),
        (OAuthToken(""), "is empty"),
        (OAuthToken("a b"), "RFC 6750"),
        (OAuthToken("a\x01auth=Bearer b"), "RFC 6750"),
        (OAuthToken("t", extensions={"auth": "x"}), '"auth"'),
        (OAuthToken("t", extensions={"a1": "x"}), "letters only"),
        (OAuthToken("t", extensions={"a": "x\x01"}), "cannot be sent"),
        (OAuthToken("t", extensions={"a": ""}), "is empty or"),
    ],
)
def test_an_unsendable_token_is_found_before_it_is_sent(token: OAuthToken, words: str) -> None:
    assert (words in token_fault(token)) if words else not token_fault(token)


def test_claims_are_read_and_never_trusted() -> None:
    assert jwt_claims(f"h.{CLAIMS}.s") == {"sub": "alice", "exp": 1_700_000_000}
    assert jwt_claims(f"h.{CLAIMS}") == {}
    assert jwt_claims("a.W10.c") == {}, "an array"


@given(st.text(max_size=60))
def test_any_text_has_claims_or_none(text: str) -> None:
    assert isinstance(jwt_claims(f"a.{text}.b"), dict)


def test_a_secret_is_in_no_repr() -> None:
    assert "hidden" not in repr(OAuthToken("hidden"))


HOUR_MS = 3_600_000.0


@pytest.mark.parametrize(
    ("life_ms", "chance", "expected_ms"),
    [
        (HOUR_MS, 0.0, 0.80 * HOUR_MS),
        (HOUR_MS, 1.0, 0.85 * HOUR_MS),
        (400_000, 0.0, 100_000),  # the buffer of 300 s before its end
        (361_000, 0.0, 61_000),
        (360_000, 0.0, 60_000),  # the period of 60 s
        (359_000, 0.0, 0.8 * 359_000),  # too short for both: neither counts
        (8_000, 0.0, 6_400),
        (1_250, 0.0, 1_000),
        (20, 0.0, 1_000),  # of milliseconds, or ended already by our clock
        (0, 0.0, 1_000),
        (-5_000, 1.0, 1_000),
    ],
)
def test_a_token_is_renewed_ahead_of_its_end(life_ms: float, chance: float, expected_ms: float) -> None:
    config = config_with(TokenRefreshConfig)
    due_ms = refresh_at_ms(config, 1e12, 1e12 + life_ms, lambda: chance)
    assert due_ms - 1e12 == pytest.approx(expected_ms, abs=0.01)


def test_a_token_without_an_end_is_not_renewed() -> None:
    assert refresh_at_ms(config_with(TokenRefreshConfig), 0.0, None, lambda: 0.0) == inf
