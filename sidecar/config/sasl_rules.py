"""Rules between the ``sasl.*`` settings. Other spellings and sasl.jaas.config are converted to the names in use.

``conclude`` calls it while the configuration is loaded.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Final
from urllib.parse import unquote, urlsplit

from sidecar.config.jaas import JaasEntry, JaasError, read_jaas
from sidecar.config.sasl_settings import AWS_MSK_IAM, MECHANISMS, OAUTHBEARER, PASSWORD_MECHANISMS
from sidecar.config.setting import Value

AWS_PROVIDER: Final = "aws_msk_iam"
PROVIDER_GROUP: Final = "kafka_sidecar.oauth_token"
_SPELLINGS: Final = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret.file": "sasl.oauthbearer.client.secret.file",
}
"""Other spelling → the name in use."""
_MODULES: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]]] = {
    "PlainLoginModule": (
        ("PLAIN",),
        {"username": "sasl.username", "password": "sasl.password"},
    ),
    "ScramLoginModule": (
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        {"username": "sasl.username", "password": "sasl.password"},
    ),
    "OAuthBearerLoginModule": (
        (OAUTHBEARER,),
        {
            "clientId": "sasl.oauthbearer.client.id",
            "clientSecret": "sasl.oauthbearer.client.secret",
            "scope": "sasl.oauthbearer.scope",
        },
    ),
    "IAMLoginModule": ((AWS_MSK_IAM,), {}),
}
"""Login module → (its mechanisms, {option: the setting that it sets})."""
_TOKEN_SOURCES: Final = (
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.token",
    "sasl.oauthbearer.token.file",
    "sasl.oauthbearer.token.provider",
)
_AWS_HOST: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")


def conclude_sasl(values: dict[str, Value], faults: list[str], warnings: list[str]) -> None:
    """Check ``sasl.*`` for a security.protocol with SASL, and fill in values from other spellings.

    Error and warning sentences are appended to ``faults`` and ``warnings``.
    """
    own: list[str] = []
    for spelling, name in _SPELLINGS.items():
        _put(values, name, values[spelling], spelling, own)
    _read_jaas(values, own)
    mechanism = _mechanism(values, own)
    if not own and mechanism in PASSWORD_MECHANISMS:
        _check_password(values, mechanism, own)
        if mechanism == "PLAIN" and values["security.protocol"] == "SASL_PLAINTEXT":
            warnings.append(
                "sasl.mechanism = PLAIN with security.protocol = SASL_PLAINTEXT sends the password in clear text: "
                "take SASL_SSL, or SCRAM."
            )
    elif not own and mechanism == OAUTHBEARER:
        _check_token_source(values, own)
        if values["security.protocol"] == "SASL_PLAINTEXT":
            warnings.append(
                "sasl.mechanism = OAUTHBEARER with security.protocol = SASL_PLAINTEXT sends the token in clear text: "
                "take SASL_SSL."
            )
    first, most = values["sasl.login.retry.backoff.ms"], values["sasl.login.retry.backoff.max.ms"]
    assert isinstance(first, int) and isinstance(most, int)
    values["sasl.login.retry.backoff.ms"] = min(first, most)
    faults += own


def _put(values: dict[str, Value], name: str, value: Value, spelling: str, faults: list[str]) -> None:
    if value is None:
        return
    if values[name] is not None and values[name] != value:
        faults.append(f"{spelling} and {name} say different things: keep one of them.")
    values[name] = value


def _mechanism(values: dict[str, Value], faults: list[str]) -> str:
    named = str(values["sasl.mechanism"] or "").strip().upper()
    if not named:
        faults.append(
            f"security.protocol = {values['security.protocol']} needs sasl.mechanism: one of {', '.join(MECHANISMS)}, "
            f"or {AWS_MSK_IAM}."
        )
    elif named == "GSSAPI":
        faults.append(
            "sasl.mechanism = GSSAPI (Kerberos) is not taken by this version: ask for a user with SCRAM-SHA-512, or "
            "for OAUTHBEARER."
        )
    elif named == AWS_MSK_IAM:
        named = OAUTHBEARER
        _put(
            values, "sasl.oauthbearer.token.provider", AWS_PROVIDER, f"sasl.mechanism = {AWS_MSK_IAM}", faults
        )
    elif named not in MECHANISMS:
        faults.append(f'sasl.mechanism = "{values["sasl.mechanism"]}" is not one of {", ".join(MECHANISMS)}.')
    values["sasl.mechanism"] = named or None
    return named


def _read_jaas(values: dict[str, Value], faults: list[str]) -> None:
    text = values["sasl.jaas.config"]
    if text is None:
        return
    try:
        entry = read_jaas(str(text))
    except JaasError as error:
        faults.append(f"sasl.jaas.config cannot be read: {error}.")
        return
    known = _MODULES.get(entry.module)
    if known is None:
        faults.append(
            f"sasl.jaas.config names the login module {entry.module!a:.60}, and this version takes "
            f"{', '.join(_MODULES)}."
        )
        return
    mechanisms, options = known
    named = str(values["sasl.mechanism"] or "").upper()
    if not named and len(mechanisms) == 1:
        values["sasl.mechanism"] = mechanisms[0]
    elif named not in mechanisms:
        faults.append(
            f"sasl.jaas.config has a {entry.module}, so sasl.mechanism must be {' or '.join(mechanisms)}"
            f"{f', and it is {named!a:.40}' if named else ''}."
        )
        return
    _take_options(values, entry, options, faults)


def _take_options(
    values: dict[str, Value], entry: JaasEntry, options: Mapping[str, str], faults: list[str]
) -> None:
    extensions: list[str] = []
    for option, value in entry.options.items():
        if option in options:
            _put(values, options[option], value, f"{option} of sasl.jaas.config", faults)
        elif option.startswith("extension_") and entry.module == "OAuthBearerLoginModule":
            extensions.append(f"{option.removeprefix('extension_')}={value}")
        elif option.startswith("unsecuredLogin"):
            faults.append(
                "sasl.jaas.config asks for an unsecured token (unsecuredLogin…), which anybody could make: set "
                "sasl.oauthbearer.token.endpoint.url."
            )
            return
        elif option not in {"serviceName", "refreshKrb5Config", "awsDebugCreds"}:
            faults.append(
                f"sasl.jaas.config has the option {option!a:.40}, which this version does not take: leave it out."
            )
    if extensions:
        _put(values, "sasl.oauthbearer.extensions", ",".join(extensions), "sasl.jaas.config", faults)


def _check_password(values: Mapping[str, Value], mechanism: str, faults: list[str]) -> None:
    if not values["sasl.username"]:
        faults.append(f"sasl.mechanism = {mechanism} needs sasl.username (or sasl.jaas.config).")
    if values["sasl.password"] is None and not values["sasl.password.file"]:
        faults.append(
            f"sasl.mechanism = {mechanism} needs sasl.password.file or sasl.password (or sasl.jaas.config)."
        )
    for name in ("sasl.username", "sasl.password"):
        if "\0" in str(values[name] or ""):
            faults.append(f"{name} has a NUL, which SASL cannot carry.")


def _check_token_source(values: dict[str, Value], faults: list[str]) -> None:
    config = str(values["sasl.oauthbearer.config"] or "").strip()
    if config.startswith("token=") and values["sasl.oauthbearer.token.provider"] is None:
        _put(
            values, "sasl.oauthbearer.token", config.removeprefix("token="), "sasl.oauthbearer.config", faults
        )
    named = [name for name in _TOKEN_SOURCES if values[name]]
    if len(named) != 1:
        what = f"{' and '.join(named)} are both set" if named else "none is set"
        faults.append(f"sasl.mechanism = OAUTHBEARER needs one of {', '.join(_TOKEN_SOURCES)}; {what}.")
        return
    if values["sasl.oauthbearer.method"] == "oidc" and named != [_TOKEN_SOURCES[0]]:
        faults.append("sasl.oauthbearer.method = oidc needs sasl.oauthbearer.token.endpoint.url.")
    try:
        extensions_of(values)
    except ValueError as error:
        faults.append(str(error))
    if named == [_TOKEN_SOURCES[0]]:
        _check_endpoint(values, faults)
    provider = values["sasl.oauthbearer.token.provider"]
    if provider == AWS_PROVIDER:
        _conclude_region(values, faults)
        if find_spec("aws_msk_iam_sasl_signer") is None:
            faults.append(f"sasl.mechanism = {AWS_MSK_IAM} needs `pip install 'kafka-sidecar[msk]'`.")
    elif provider and not entry_points(group=PROVIDER_GROUP, name=str(provider)):
        faults.append(
            f'sasl.oauthbearer.token.provider = "{provider}" is not an entry point of the group '
            f"{PROVIDER_GROUP}: install "
            "the package that has it next to the daemon."
        )


def _check_endpoint(values: dict[str, Value], faults: list[str]) -> None:
    url = str(values["sasl.oauthbearer.token.endpoint.url"])
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        parts, host = urlsplit(""), ""
    if parts.scheme == "file" and parts.path:
        values["sasl.oauthbearer.token.file"] = unquote(parts.path)
        values["sasl.oauthbearer.token.endpoint.url"] = None
        return
    if parts.scheme not in {"https", "http"} or not host or parts.username or parts.password:
        faults.append("sasl.oauthbearer.token.endpoint.url must be https://host/path, without a user in it.")
        return
    if parts.scheme == "http" and not _is_loopback(host):
        faults.append(
            f"sasl.oauthbearer.token.endpoint.url = http://{host}… would send the client's secret in clear text: "
            "take https://."
        )
    if not values["sasl.oauthbearer.client.id"]:
        faults.append("sasl.oauthbearer.token.endpoint.url needs sasl.oauthbearer.client.id.")
    if values["sasl.oauthbearer.client.secret"] is None and not values["sasl.oauthbearer.client.secret.file"]:
        faults.append(
            "sasl.oauthbearer.token.endpoint.url needs sasl.oauthbearer.client.secret.file or "
            "sasl.oauthbearer.client.secret."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _conclude_region(values: dict[str, Value], faults: list[str]) -> None:
    if values["sasl.oauthbearer.aws.region"]:
        return
    servers = values["bootstrap.servers"]
    found = (
        next((_AWS_HOST.search(str(each)) for each in servers), None) if isinstance(servers, list) else None
    )
    if found is None:
        faults.append(
            f"sasl.mechanism = {AWS_MSK_IAM} needs sasl.oauthbearer.aws.region, since bootstrap.servers names none."
        )
    else:
        values["sasl.oauthbearer.aws.region"] = found[1]


def extensions_of(values: Mapping[str, Value]) -> dict[str, str]:
    """sasl.oauthbearer.extensions as a mapping. Raises ValueError with a sentence."""
    found: dict[str, str] = {}
    for pair in str(values["sasl.oauthbearer.extensions"] or "").split(","):
        name, equals, value = pair.strip().partition("=")
        if not pair.strip():
            continue
        if (
            not equals
            or not value
            or not name.isascii()
            or not name.isalpha()
            or name == "auth"
            or name in found
        ):
            raise ValueError(
                "sasl.oauthbearer.extensions must be name=value,name=value; names are different, of letters only, and "
                "not auth."
            )
        found[name] = value
    return found
