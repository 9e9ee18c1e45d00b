"""Listeners of the embedded Kafka with TLS and SASL: their requirements, and the broker's settings for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from sidecar.tools.testing.private_text import write_private

if TYPE_CHECKING:  # needs cryptography, which the demo does not install
    from sidecar.tools.testing.certificates import Certificate, CertificateAuthority

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
ClientAuth = Literal["none", "requested", "required"]

AUDIENCE: Final = "kafka"
"""Audience (``aud``) of the tokens."""
ISSUER: Final = "https://tokens.example"
"""Issuer (``iss``) of the tokens: Kafka 4.4 starts with none that it cannot compare."""
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_TOKEN_VALIDATOR: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


@dataclass(frozen=True, eq=False)
class Listener:
    """One further listener of every node, beside the usual PLAINTEXT one.

    ``name``: by default the protocol; two listeners of one protocol need different names. ``certificate``: by default
    a valid one for localhost and 127.0.0.1. ``mechanisms``: SASL mechanisms in Kafka's spelling. ``users``: name →
    password. Those of PLAIN never change; those of SCRAM are the first ones, which ``KafkaSecurity`` may change.
    ``reauth_ms``: connections.max.reauth.ms. ``jwks``: public keys of the tokens (``TokenServer.jwks``); without them
    OAUTHBEARER accepts unsigned tokens. ``tls``: versions that the broker accepts, as "TLSv1.2". ``host``: advertised
    name of the broker. ``relayed``: clients connect through a relay that counts and cuts connections.
    """

    protocol: Protocol
    name: str = ""
    client_auth: ClientAuth = "none"
    certificate: Certificate | None = None
    mechanisms: Sequence[str] = ()
    users: Mapping[str, str] | None = None
    reauth_ms: int = 0
    jwks: str | None = None
    tls: Sequence[str] = ("TLSv1.2", "TLSv1.3")
    host: str = "127.0.0.1"
    relayed: bool = False

    def __post_init__(self) -> None:
        unknown = set(self.mechanisms) - _MODULES.keys()
        if unknown or bool(self.mechanisms) != self.protocol.startswith("SASL_"):
            raise ValueError(
                f"{self.protocol} takes mechanisms of {sorted(_MODULES)}, got {self.mechanisms}."
            )

    @property
    def key(self) -> str:
        """Name of the listener in tests and in Kafka's settings."""
        return self.name or self.protocol

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    def properties(self, folder: Path, authority: CertificateAuthority) -> dict[str, str]:
        """Return the broker's settings, after writing their files into ``folder``."""
        prefix = f"listener.name.{self.key.lower()}."
        found: dict[str, str] = {}
        if self.has_tls:
            from sidecar.tools.testing.certificates import LOCAL_HOSTS

            certificate = self.certificate or authority.issue("broker", hosts=LOCAL_HOSTS)
            found |= key_store(prefix, certificate.write(folder / f"{self.key}-0.pem"))
            found |= trust_store(prefix, authority.write(folder / f"{self.key}-0-ca.pem"))
            found[f"{prefix}ssl.client.auth"] = self.client_auth
            found[f"{prefix}ssl.enabled.protocols"] = ",".join(self.tls)
            found[f"{prefix}ssl.protocol"] = max(self.tls)
        if self.mechanisms:
            found[f"{prefix}sasl.enabled.mechanisms"] = ",".join(self.mechanisms)
            found[f"{prefix}connections.max.reauth.ms"] = str(self.reauth_ms)
            for mechanism in self.mechanisms:
                found |= self._mechanism(f"{prefix}{mechanism.lower()}.", mechanism, folder)
        return found

    def _mechanism(self, prefix: str, mechanism: str, folder: Path) -> dict[str, str]:
        words = [_MODULES[mechanism], "required"]
        found: dict[str, str] = {}
        if mechanism == "PLAIN":
            words += [f"user_{name}={_quoted(password)}" for name, password in (self.users or {}).items()]
        elif mechanism == "OAUTHBEARER" and self.jwks is not None:
            keys = write_private(folder / f"{self.key}-jwks.json", self.jwks)
            found[f"{prefix}sasl.server.callback.handler.class"] = _TOKEN_VALIDATOR
            found[f"{prefix}sasl.oauthbearer.jwks.endpoint.url"] = keys.as_uri()
            found[f"{prefix}sasl.oauthbearer.expected.audience"] = AUDIENCE
            found[f"{prefix}sasl.oauthbearer.expected.issuer"] = ISSUER
        elif mechanism == "OAUTHBEARER":
            words.append('unsecuredLoginStringClaim_sub="broker"')
        found[f"{prefix}sasl.jaas.config"] = " ".join(words) + ";"
        return found


def key_store(prefix: str, path: Path) -> dict[str, str]:
    return {f"{prefix}ssl.keystore.type": "PEM", f"{prefix}ssl.keystore.location": str(path)}


def trust_store(prefix: str, path: Path) -> dict[str, str]:
    return {f"{prefix}ssl.truststore.type": "PEM", f"{prefix}ssl.truststore.location": str(path)}


def jvm_options(listeners: Sequence[Listener], folder: Path) -> list[str]:
    """Return the JVM option that allows the files of token keys: Kafka 4 reads no others."""
    urls = [(folder / f"{each.key}-jwks.json").as_uri() for each in listeners if each.jwks is not None]
    return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={','.join(urls)}"] if urls else []


def _quoted(text: str) -> str:
    """A value of a JAAS line. Its reader takes C's escapes, but no \\uXXXX."""
    return json.dumps(text, ensure_ascii=False)
