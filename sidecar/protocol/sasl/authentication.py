"""Authentication: SaslHandshake, then SaslAuthenticate until the mechanism is complete. Sans-IO.

The same exchange opens a connection and later renews its session (KIP-368). Source: Kafka's SaslClientAuthenticator,
KIP-43, KIP-152.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sidecar.protocol.messages import ApiKey, ProtocolError, RequestMessage, milliseconds, request_module
from sidecar.protocol.sasl.credentials import Credentials, LoginFailed, clean, user_of
from sidecar.protocol.sasl.mechanisms import Conversation, OAuthBearer, conversation

UNSUPPORTED_SASL_MECHANISM: Final = 33
ILLEGAL_SASL_STATE: Final = 34
ROUNDS_MAX: Final = 8
"""Limit of challenges in one login; SCRAM needs two."""


class Authentication:
    """One login. Call ``next_request`` and ``receive`` in turn, until ``next_request`` returns None."""

    def __init__(self, mechanism: str, credentials: Credentials, versions: Mapping[int, int]) -> None:
        """``versions``: negotiated versions by API key. Raises LoginFailed for a broker without these APIs."""
        self.session_lifetime_ms = 0
        """For how many ms the broker accepts requests under this login; 0: as long as the connection lives."""
        self._mechanism = mechanism
        self._user = user_of(credentials)
        self._versions = versions
        self._conversation: Conversation = conversation(mechanism, credentials)
        self._token: bytes | None = None
        self._has_mechanism = False
        self._rounds = 0
        if ApiKey.SASL_HANDSHAKE not in versions or ApiKey.SASL_AUTHENTICATE not in versions:
            raise self._refused("it speaks no SaslAuthenticate: Apache Kafka 1.0 or newer is needed")

    @property
    def has_presented(self) -> bool:
        """Whether the broker has seen the credentials, so that a refusal refers to them."""
        return self._rounds > 0

    def next_request(self) -> RequestMessage | None:
        """The next request to send; None if the login is complete."""
        message: RequestMessage
        if not self._has_mechanism:
            module = request_module(ApiKey.SASL_HANDSHAKE, self._versions[ApiKey.SASL_HANDSHAKE])
            message = module.SaslHandshakeRequest(mechanism=self._mechanism)
            return message
        if self._token is None:
            return None
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            raise self._refused(f"it asked {ROUNDS_MAX} times for more")
        module = request_module(ApiKey.SASL_AUTHENTICATE, self._versions[ApiKey.SASL_AUTHENTICATE])
        message = module.SaslAuthenticateRequest(auth_bytes=self._token)
        return message

    def receive(self, response: Any) -> None:
        """Take the response to the last request. Raises LoginFailed with the whole sentence."""
        code = int(response.error_code)
        if not self._has_mechanism:
            self._take_handshake(code, response)
            return
        if code:
            text = clean(response.error_message or "") or f"error {code}"
            refusal = self._conversation.refusal if isinstance(self._conversation, OAuthBearer) else ""
            raise self._refused(f"{text} ({refusal})" if refusal else text)
        try:
            self._token = self._conversation.answer(response.auth_bytes)
        except LoginFailed as error:
            raise self._refused(str(error)) from None
        lifetime = getattr(response, "session_lifetime", None)  # from v1 on
        self.session_lifetime_ms = max(0, milliseconds(lifetime)) if lifetime is not None else 0

    def _take_handshake(self, code: int, response: Any) -> None:
        if code == UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(clean(str(each)) for each in response.mechanisms[:10]) or "none"
            raise self._refused(f"it does not have this mechanism, but {offered}")
        if code == ILLEGAL_SASL_STATE:
            raise self._refused("this listener takes no login: is it one without SASL?")
        if code:
            raise self._refused(f"it answered SaslHandshake with error {code}")
        self._has_mechanism = True
        self._token = self._conversation.first()

    def _refused(self, why: str) -> LoginFailed:
        return LoginFailed(
            f"the login is refused (sasl.mechanism {self._mechanism}, {self._user}): {why.rstrip('. ')}"
        )

    def unreadable(self, error: ProtocolError) -> LoginFailed:
        """The error for an answer that cannot be read."""
        return self._refused(f"its answer cannot be read ({error})")
