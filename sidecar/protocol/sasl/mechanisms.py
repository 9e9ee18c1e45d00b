"""Mechanisms: conversations of challenges and answers. PLAIN (RFC 4616) and OAUTHBEARER (RFC 7628) are here.

Sans-IO: a login makes one for each exchange, on the loop of its link.

A conversation starts with ``first()``. Each challenge is passed to ``answer``, which returns the next message, or None
when the broker's last message was accepted.
"""

from __future__ import annotations

import json
import re
from typing import Final, Protocol

from sidecar.config.sasl_settings import OAUTHBEARER
from sidecar.protocol.sasl.credentials import (
    Credentials,
    LoginFailed,
    OAuthToken,
    PasswordCredentials,
    clean,
)

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"

_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_TOKEN: Final = re.compile(r"[-._~+/A-Za-z0-9]+=*")
"""A token's characters (RFC 6750, b64token)."""


class Conversation(Protocol):
    """One login by one mechanism; used once."""

    def first(self) -> bytes:
        """The client's first message."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """The answer to the broker's ``challenge``; None if the login is complete.

        Raises LoginFailed for a challenge that is not acceptable.
        """
        ...


def conversation(mechanism: str, credentials: Credentials) -> Conversation:
    """A new conversation of one of the four mechanisms."""
    if mechanism in {SCRAM_SHA_256, SCRAM_SHA_512}:
        # Imported here, so that scramp and its dependencies are loaded only if a login uses them.
        from sidecar.protocol.sasl.scram import Scram

        assert isinstance(credentials, PasswordCredentials)
        return Scram(mechanism, credentials)
    if mechanism == OAUTHBEARER:
        assert isinstance(credentials, OAuthToken)
        return OAuthBearer(credentials)
    assert mechanism == PLAIN and isinstance(credentials, PasswordCredentials)
    return Plain(credentials)


class Plain:
    """Sends the password itself, so the connection should use TLS. NUL separates the fields, so user and password have
    none.
    """

    def __init__(self, credentials: PasswordCredentials) -> None:
        self._credentials = credentials

    def first(self) -> bytes:
        return b"\0" + self._credentials.username.encode() + b"\0" + self._credentials.password.encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise LoginFailed("the broker asks for more than PLAIN has")
        return None


class OAuthBearer:
    """A bearer token with its extensions (KIP-342)."""

    def __init__(self, token: OAuthToken) -> None:
        self._token = token
        self._refusal = ""

    def first(self) -> bytes:
        #   n,, \x01 auth=Bearer TOKEN \x01 name=value \x01 … \x01
        pairs = [f"auth=Bearer {self._token.value}"]
        pairs += [f"{name}={value}" for name, value in self._token.extensions.items()]
        return ("n,,\x01" + "".join(pair + "\x01" for pair in pairs) + "\x01").encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if not challenge:
            if self._refusal:
                raise LoginFailed(self._refusal)
            return None
        if self._refusal:
            raise LoginFailed(self._refusal)
        # RFC 7628, 3.2.3: the refusal is a challenge; a single \x01 asks for the end of the login.
        self._refusal = f"the broker refuses the token: {_refusal(challenge)}"
        return b"\x01"

    @property
    def refusal(self) -> str:
        """The broker's reason to refuse the token; "" if it gave none."""
        return self._refusal


def _refusal(challenge: bytes) -> str:
    text = challenge.decode("utf-8", "replace")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return clean(text)
    if not isinstance(found, dict):
        return clean(text)
    return clean(", ".join(f"{name} {value}" for name, value in found.items()))


def token_fault(token: OAuthToken) -> str:
    """Why this token cannot be sent, as the end of a sentence; "" if it can."""
    if not _TOKEN.fullmatch(token.value):
        return "has characters that no bearer token has (RFC 6750)" if token.value else "is empty"
    for name, value in token.extensions.items():
        if name == "auth" or not _EXTENSION_NAME.fullmatch(name):
            return f'has the extension "{clean(name)}", and a name is letters only and not "auth"'
        if not _EXTENSION_VALUE.fullmatch(value):
            return f'has the extension "{clean(name)}" whose value is empty or has characters that cannot be sent'
    return ""
