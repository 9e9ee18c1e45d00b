"""Credentials: what a mechanism proves. Their ``repr`` never shows a secret, so that no log or traceback can."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

LOGIN_TEXT_CHARACTERS_MAX: Final = 300
"""More of a broker's or an endpoint's own words is not repeated."""


class LoginFailed(Exception):
    """The broker refuses the login, or cannot prove itself. The text is one sentence; it never has the secret."""


class CredentialsMissing(Exception):
    """There is nothing to log in with now; the text is one sentence that says why."""


@dataclass(frozen=True, slots=True)
class PasswordCredentials:
    """Of PLAIN and SCRAM."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OAuthToken:
    """A bearer token. ``expires_at_ms`` is in milliseconds since 1970; None: nobody said when it ends.

    ``principal`` is for people: the user that the token names, as far as it says.
    """

    value: str = field(repr=False)
    expires_at_ms: float | None = None
    principal: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)


Credentials = PasswordCredentials | OAuthToken


def token_fingerprint(value: str) -> bytes:
    """A number that names a token between processes and gives nothing of it away."""
    return hashlib.sha256(value.encode()).digest()[:16]


def user_of(credentials: Credentials) -> str:
    """The user for a sentence."""
    if isinstance(credentials, PasswordCredentials):
        return f'user "{clean(credentials.username)}"'
    return f'principal "{clean(credentials.principal)}"' if credentials.principal else "an opaque token"


def clean(text: str) -> str:
    """Text of a stranger for a log line: without control characters, and not long."""
    shown = "".join(each if each.isprintable() else " " for each in text[:LOGIN_TEXT_CHARACTERS_MAX])
    return shown.strip() + ("…" if len(text) > LOGIN_TEXT_CHARACTERS_MAX else "")


def jwt_claims(token: str) -> Mapping[str, Any]:
    """The claims of a JSON Web Token, unchecked; empty for any other token.

    They are read for expiry and principal only: checking a token is the broker's work.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}
