"""Tokens of an OAuth 2 token endpoint, fetched with the client's credentials (RFC 6749, section 4.4; KIP-768).
Blocks.

``TokenKeeper`` calls it in a thread of the controller, as it blocks.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from sidecar.config.sasl_rules import extensions_of
from sidecar.config.secret_sources import SecretError, read_secret
from sidecar.protocol.sasl.credentials import OAuthToken, clean, jwt_claims
from sidecar.protocol.sasl.mechanisms import token_fault

TOKEN_ANSWER_BYTES_MAX: Final = 256 << 10
_CHUNK_BYTES: Final = 16 << 10


class TokenError(Exception):
    """There is no token. The text is one sentence without a secret."""


def fetch_token(values: Mapping[str, Any]) -> OAuthToken:
    """Ask the endpoint once. ``values``: resolved settings by name. Raises TokenError."""
    url = str(values["sasl.oauthbearer.token.endpoint.url"])
    endpoint = f"The token endpoint {url.partition('?')[0]}"
    try:
        secret = read_secret(values, "sasl.oauthbearer.client.secret") or ""
        status, content_type, body = _post(url, values, secret)
    except SecretError as error:
        raise TokenError(str(error)) from None
    except TimeoutError:
        raise TokenError(
            f"{endpoint} did not answer in time (sasl.login.connect.timeout.ms, sasl.login.read.timeout.ms)."
        ) from None
    except ssl.SSLCertVerificationError as error:
        raise TokenError(
            f"{endpoint} shows a certificate that is not trusted ({error.verify_message}): see https.ca.location."
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TokenError(
            f"{endpoint} does not answer: {clean(str(error)) or type(error).__name__}."
        ) from None
    return _token_of(endpoint, status, content_type, body, values)


def _post(url: str, values: Mapping[str, Any], secret: str) -> tuple[int, str, bytes]:
    parts = urlsplit(url)
    assert parts.hostname is not None, "checked with the configuration"
    connect_s = float(values["sasl.login.connect.timeout.ms"]) / 1000
    read_s = float(values["sasl.login.read.timeout.ms"]) / 1000
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=values["https.ca.location"])
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=connect_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=connect_s)
    client = str(values["sasl.oauthbearer.client.id"])
    if values["sasl.oauthbearer.header.urlencode"]:
        client, secret = quote(client, safe=""), quote(secret, safe="")
    form = {"grant_type": "client_credentials"}
    if values["sasl.oauthbearer.scope"]:
        form["scope"] = str(values["sasl.oauthbearer.scope"])
    headers = {
        "Authorization": "Basic " + base64.b64encode(f"{client}:{secret}".encode()).decode(),
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.connect()
        deadline_s = time.monotonic() + read_s
        connection.sock.settimeout(read_s)
        connection.request("POST", path, urlencode(form), headers)
        response = connection.getresponse()
        body = bytearray()
        while len(body) <= TOKEN_ANSWER_BYTES_MAX:
            # Read in pieces: a server that sends one byte per second must not block this thread for ever.
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            if connection.sock is not None:
                connection.sock.settimeout(left_s)
            chunk = response.read1(_CHUNK_BYTES)
            if not chunk:
                break
            body += chunk
        return response.status, response.headers.get_content_type(), bytes(body)
    finally:
        connection.close()


def _token_of(
    endpoint: str, status: int, content_type: str, body: bytes, values: Mapping[str, Any]
) -> OAuthToken:
    if len(body) > TOKEN_ANSWER_BYTES_MAX:
        raise TokenError(
            f"{endpoint} answers with over {TOKEN_ANSWER_BYTES_MAX >> 10} KiB, which is not a token."
        )
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if status != http.HTTPStatus.OK:
        words = (
            [answer.get(name) for name in ("error", "error_description")] if isinstance(answer, dict) else []
        )
        reason = ", ".join(clean(each) for each in words if isinstance(each, str))
        raise TokenError(f"{endpoint} refuses with HTTP status {status}{f' ({reason})' if reason else ''}.")
    if not isinstance(answer, dict):
        raise TokenError(f"{endpoint} answers with {clean(content_type)}, and not with a token in JSON.")
    value = answer.get("access_token")
    if not isinstance(value, str) or not value:
        raise TokenError(f"{endpoint} answers without an access_token.")
    lifetime_s = answer.get("expires_in")
    now_ms = time.time() * 1000
    expires_at_ms = None
    if isinstance(lifetime_s, (int, float)) and not isinstance(lifetime_s, bool):
        expires_at_ms = now_ms + lifetime_s * 1000.0
    token = described_token(value, expires_at_ms, values)
    if token.expires_at_ms is None:
        raise TokenError(f"{endpoint} does not say when its token ends (expires_in, or the claim exp).")
    return checked_token(token, f"{endpoint} gave a token that")


def described_token(value: str, expires_at_ms: float | None, values: Mapping[str, Any]) -> OAuthToken:
    """The token with its own claims: its expiry, which takes precedence over ``expires_at_ms``, and its principal."""
    claims = jwt_claims(value)
    ends_s, subject = claims.get("exp"), claims.get("sub")
    if isinstance(ends_s, (int, float)) and not isinstance(ends_s, bool):
        expires_at_ms = ends_s * 1000.0
    principal = subject if isinstance(subject, str) else str(values["sasl.oauthbearer.client.id"] or "")
    return OAuthToken(value, expires_at_ms, principal, extensions_of(values))


def checked_token(token: OAuthToken, what: str) -> OAuthToken:
    """The token, if it can be used. ``what`` begins the text of the TokenError."""
    fault = token_fault(token)
    if not fault and token.expires_at_ms is not None and not token.expires_at_ms > time.time() * 1000:
        fault = "has expired already; look at the clocks of both"
    if fault:
        raise TokenError(f"{what} {fault}.")
    return token
