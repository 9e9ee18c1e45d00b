"""Credentials of the mechanisms. Their ``repr`` never shows a secret, so no log or traceback does.

Sans-IO: made by the controller's token keeper or from settings, used by the logins of a process.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

LOGIN_TEXT_CHARACTERS_MAX: Final = 300
"""Limit of characters of a foreign text that is quoted."""


class LoginFailed(Exception):
    """The broker refuses the login, or fails to prove itself. The text is one sentence and never has the secret."""


class CredentialsMissing(Exception):
    """There are no credentials now. The text is one sentence that says why."""


@dataclass(frozen=True, slots=True)
class PasswordCredentials:
    """Credentials of PLAIN and SCRAM."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OAuthToken:
    """A bearer token. ``expires_at_ms`` is in milliseconds since 1970; None: its end is not known.

    ``principal`` is only shown: the user that the token names, if it does.
    """

    value: str = field(repr=False)
    expires_at_ms: float | None = None
    principal: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)


Credentials = PasswordCredentials | OAuthToken


def token_fingerprint(value: str) -> bytes:
    """A digest that identifies a token between processes without revealing it."""
    return hashlib.sha256(value.encode()).digest()[:16]


def user_of(credentials: Credentials) -> str:
    """Description of the user for an error text."""
    if isinstance(credentials, PasswordCredentials):
        return f'user "{clean(credentials.username)}"'
    return f'principal "{clean(credentials.principal)}"' if credentials.principal else "an opaque token"


def clean(text: str) -> str:
    """Foreign text made safe for a log line: without control characters, and not long."""
    shown = "".join(each if each.isprintable() else " " for each in text[:LOGIN_TEXT_CHARACTERS_MAX])
    return shown.strip() + ("…" if len(text) > LOGIN_TEXT_CHARACTERS_MAX else "")


def jwt_claims(token: str) -> Mapping[str, Any]:
    """The claims of a JSON Web Token, not verified; empty for any other token.

    They are used for expiry and principal only: the broker verifies the token.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}
