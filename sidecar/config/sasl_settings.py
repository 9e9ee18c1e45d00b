"""The rows of ``sasl.*``: librdkafka's names and the Java client's, side by side.

Constants: loader, controller and links read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.config.setting import LONG_MAX, Setting, Value, ValueKind, choice, integer

PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (*PASSWORD_MECHANISMS, OAUTHBEARER)
AWS_MSK_IAM: Final = "AWS_MSK_IAM"
"""Not a name on the wire: OAUTHBEARER with tokens signed by AWS credentials."""


def _text(name: str, doc: str, *, secret: bool = False) -> Setting:
    return Setting(name, ValueKind.TEXT, None, doc, secret=secret)


def _path(name: str, doc: str) -> Setting:
    return Setting(name, ValueKind.TEXT, None, doc, is_path=True)


def _secret(name: str, doc: str) -> tuple[Setting, Setting]:
    """Two rows: a secret, and the file that may hold it."""
    return (
        _text(name, doc, secret=True),
        _path(f"{name}.file", f"File that has {name}; read again at each login."),
    )


SASL_SETTINGS: Final[tuple[Setting, ...]] = (
    _text(
        "sasl.mechanism",
        f"How to log in with SASL_SSL or SASL_PLAINTEXT: {', '.join(MECHANISMS)}, or {AWS_MSK_IAM}.",
    ),
    _text("sasl.mechanisms", "The same by librdkafka's name."),
    _text("sasl.username", "User of PLAIN and SCRAM."),
    *_secret("sasl.password", "Password of PLAIN and SCRAM."),
    _text(
        "sasl.jaas.config",
        "User, password or client as the Java client has them: an entry with PlainLoginModule, ScramLoginModule, "
        "OAuthBearerLoginModule or IAMLoginModule.",
        secret=True,
    ),
    # Tokens
    choice(
        "sasl.oauthbearer.method",
        None,
        ("default", "oidc"),
        "librdkafka's choice; oidc needs the token endpoint. Without it the settings that are set decide.",
        any_case=True,
    ),
    _text(
        "sasl.oauthbearer.token.endpoint.url",
        "Where the controller fetches tokens with the client's credentials (OAuth 2, KIP-768), https://…; "
        "file:///path: a file that has the token.",
    ),
    _text("sasl.oauthbearer.client.id", "Client at the token endpoint."),
    *_secret("sasl.oauthbearer.client.secret", "Its secret."),
    _text("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id by another name."),
    *_secret(
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.client.secret by another name.",
    ),
    _text("sasl.oauthbearer.scope", "Scope to ask the token endpoint for."),
    _text(
        "sasl.oauthbearer.extensions", "Extensions that go with each token, name=value,name=value (KIP-342)."
    ),
    Setting(
        "sasl.oauthbearer.header.urlencode",
        ValueKind.BOOLEAN,
        False,
        "Client and secret are URL-encoded in the Authorization header, as RFC 6749 says and not every endpoint knows.",
    ),
    _path(
        "https.ca.location", "CA certificates of the token endpoint, a PEM file. Unset: those of this system."
    ),
    *_secret("sasl.oauthbearer.token", "A token, instead of an endpoint."),
    _text(
        "sasl.oauthbearer.config",
        "token=TOKEN: the same by librdkafka's name. With a provider: text that it gets.",
        secret=True,
    ),
    _text(
        "sasl.oauthbearer.token.provider",
        "Name of a Python callable that makes tokens, from the entry point group kafka_sidecar.oauth_token.",
    ),
    _text("sasl.oauthbearer.aws.region", f"Region of {AWS_MSK_IAM}. Unset: that in the brokers' names."),
    # When a token is renewed
    Setting(
        "sasl.login.refresh.window.factor",
        ValueKind.NUMBER,
        0.8,
        "A token is renewed after this part of its life.",
        0.5,
        1.0,
    ),
    Setting(
        "sasl.login.refresh.window.jitter",
        ValueKind.NUMBER,
        0.05,
        "At most this part of its life is added by chance, so that not all hosts ask at once.",
        0.0,
        0.25,
    ),
    integer(
        "sasl.login.refresh.min.period.seconds",
        60,
        0,
        900,
        "Shortest time between two renewals, unless it and the buffer together are over the token's life.",
    ),
    integer(
        "sasl.login.refresh.buffer.seconds",
        300,
        0,
        3_600,
        "How long before its end a token is renewed at the latest.",
    ),
    integer("sasl.login.retry.backoff.ms", 100, 0, LONG_MAX, "First wait before asking for a token again."),
    integer(
        "sasl.login.retry.backoff.max.ms",
        10_000,
        0,
        LONG_MAX,
        "Longest wait before asking for a token again.",
    ),
    integer(
        "sasl.login.connect.timeout.ms", 10_000, 1, 600_000, "Bound for connecting to the token endpoint."
    ),
    integer(
        "sasl.login.read.timeout.ms", 10_000, 1, 600_000, "Bound for the whole answer of the token endpoint."
    ),
)


def unused_sasl_settings(values: Mapping[str, Value], set_by_user: Mapping[str, str]) -> list[str]:
    """A warning if ``sasl.*`` is set although the protocol has no login."""
    ours = [row.name for row in SASL_SETTINGS if row.name in set_by_user]
    if not ours:
        return []
    return [
        f"{ours[0]} has no effect with security.protocol = {values['security.protocol']}, which has no login: "
        "set SASL_SSL or SASL_PLAINTEXT."
    ]
