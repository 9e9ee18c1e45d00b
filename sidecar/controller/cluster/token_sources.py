"""Sources of tokens other than an endpoint: a setting, a file, a Python callable, AWS credentials. Blocking.

``TokenKeeper`` calls them in a thread of the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Final

from sidecar.config.sasl_rules import AWS_PROVIDER, PROVIDER_GROUP
from sidecar.config.secret_sources import SecretError, read_secret
from sidecar.controller.cluster.token_endpoint import TokenError, checked_token, described_token, fetch_token
from sidecar.protocol.sasl.credentials import OAuthToken

FetchToken = Callable[[], OAuthToken]
"""Blocks until it has a token. Raises TokenError."""

_FIELDS_MAX: Final = 4


def token_source(values: Mapping[str, Any]) -> FetchToken:
    """The only source that the resolved settings name."""
    if values["sasl.oauthbearer.token.endpoint.url"]:
        return partial(fetch_token, values)
    provider = values["sasl.oauthbearer.token.provider"]
    if provider == AWS_PROVIDER:
        from sidecar.controller.cluster.aws_token import aws_token

        return partial(aws_token, str(values["sasl.oauthbearer.aws.region"]))
    if provider:
        return partial(_by_callable, str(provider), values)
    return partial(_as_set, values)


def _as_set(values: Mapping[str, Any]) -> OAuthToken:
    """The token of the settings. A file is read again at each renewal."""
    try:
        value = read_secret(values, "sasl.oauthbearer.token") or ""
    except SecretError as error:
        raise TokenError(str(error)) from None
    path = values["sasl.oauthbearer.token.file"]
    what = f'The token in sasl.oauthbearer.token.file = "{path}"' if path else "sasl.oauthbearer.token"
    return checked_token(described_token(value.strip(), None, values), what)


def _by_callable(name: str, values: Mapping[str, Any]) -> OAuthToken:
    """The token of ``callable(config)``, which returns (token, expiry in seconds since 1970[, principal[,
    extensions]]) as confluent's oauth_cb does.

    It runs in a thread of its own; any exception counts as a failed try.
    """
    what = f"The token provider {name}"
    found = next(iter(entry_points(group=PROVIDER_GROUP, name=name)), None)
    if found is None:
        raise TokenError(f"{what} is not installed (entry point group {PROVIDER_GROUP}).")
    try:
        result = found.load()(str(values["sasl.oauthbearer.config"] or ""))
    except Exception as error:
        # Its text may contain its configuration.
        raise TokenError(f"{what} raised {type(error).__name__}.") from None
    match result:
        case (str(value), int() | float() as ends_s, *more) if len(result) <= _FIELDS_MAX:
            token = described_token(value, ends_s * 1000.0, values)
            principal = more[0] if more and isinstance(more[0], str) else token.principal
            extensions = dict(token.extensions)
            if len(more) > 1 and isinstance(more[1], Mapping):
                extensions |= {str(key): str(each) for key, each in more[1].items()}
            token = OAuthToken(value, ends_s * 1000.0, principal, extensions)
            return checked_token(token, f"{what} gave a token that")
    raise TokenError(f"{what} must return (token, expiry in seconds since 1970), and gave something else.")
