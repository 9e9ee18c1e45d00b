"""Rows of ``security.protocol`` and ``ssl.*``: librdkafka's names and the Java client's, side by side.

Constants: loader and links read them.

Names, and the rules between them. The files themselves are read elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.config.setting import Setting, Value, ValueKind, choice

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")


def _path(name: str, doc: str) -> Setting:
    return Setting(name, ValueKind.TEXT, None, doc, is_path=True)


def _secret(name: str, doc: str) -> tuple[Setting, Setting]:
    """Two rows: a secret, and the file that may hold it."""
    return (
        Setting(name, ValueKind.TEXT, None, doc, secret=True),
        _path(f"{name}.file", f"File that has {name}; read at each connection."),
    )


def _pem(name: str, doc: str, *, secret: bool = False) -> Setting:
    return Setting(name, ValueKind.TEXT, None, doc, secret=secret)


TLS_SETTINGS: Final[tuple[Setting, ...]] = (
    # Which brokers to trust
    _path(
        "ssl.ca.location",
        "CA certificates that brokers' certificates must lead to: a PEM file, or a directory with OpenSSL's hash "
        "names. "
        'Unset or "probe": those of this system.',
    ),
    _pem("ssl.ca.pem", "The same, as PEM text instead of a file."),
    _path("ssl.truststore.location", "The same by the Java client's name: a file of PEM or PKCS12."),
    choice(
        "ssl.truststore.type",
        None,
        STORE_TYPES,
        "Form of ssl.truststore.location; unset: concluded from its first bytes. JKS is refused.",
        any_case=True,
    ),
    *_secret("ssl.truststore.password", "Password of a truststore in PKCS12."),
    _pem("ssl.truststore.certificates", "CA certificates as PEM text, by the Java client's name."),
    _path("ssl.crl.location", "File of revoked certificates (CRL in PEM); unset: revocation is not checked."),
    choice(
        "ssl.endpoint.identification.algorithm",
        "https",
        ("https", "none", ""),
        'Whether a broker\'s certificate must have the host name that was connected to. "" or none: no.',
        any_case=True,
    ),
    Setting(
        "enable.ssl.certificate.verification",
        ValueKind.BOOLEAN,
        True,
        "Whether brokers' certificates are checked at all. false: anybody on the way can read and change records.",
    ),
    # Our identity, for brokers that want a certificate
    _path("ssl.certificate.location", "Our certificate in PEM, followed by the chain to its CA."),
    _pem("ssl.certificate.pem", "The same, as PEM text instead of a file."),
    _path("ssl.key.location", "The private key of our certificate, in PEM."),
    _pem("ssl.key.pem", "The same, as PEM text instead of a file.", secret=True),
    *_secret("ssl.key.password", "Password of the private key, where it is encrypted."),
    _path(
        "ssl.keystore.location",
        "Certificate and key in one file, PEM or PKCS12 (which needs `pip install 'kafka-sidecar[pkcs12]'`).",
    ),
    choice(
        "ssl.keystore.type",
        None,
        STORE_TYPES,
        "Form of ssl.keystore.location; unset: concluded from its first bytes. JKS is refused.",
        any_case=True,
    ),
    *_secret("ssl.keystore.password", "Password of a keystore in PKCS12."),
    _pem(
        "ssl.keystore.certificate.chain",
        "Our certificate and its chain as PEM text, by the Java client's name.",
    ),
    _pem("ssl.keystore.key", "Our private key as PEM text, by the Java client's name.", secret=True),
    # How to talk
    Setting(
        "ssl.enabled.protocols",
        ValueKind.LIST,
        None,
        "Versions of TLS that may be used, of TLSv1.2 and TLSv1.3; unset: both.",
    ),
    choice(
        "ssl.protocol",
        "TLSv1.3",
        ("TLS", *TLS_VERSIONS),
        "Highest version of TLS; TLSv1.2 leaves TLSv1.3 out.",
    ),
    Setting(
        "ssl.cipher.suites",
        ValueKind.TEXT,
        None,
        "Cipher suites of TLS 1.2, by OpenSSL's names with colons between. Those of TLS 1.3 are OpenSSL's own.",
    ),
)


def has_tls(values: Mapping[str, Value]) -> bool:
    """Whether ``security.protocol`` is one with TLS."""
    return str(values["security.protocol"]).endswith("SSL")


_EITHER: Final = {
    "the CA": (
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
    ),
    "our certificate": (
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.keystore.location",
        "ssl.keystore.certificate.chain",
    ),
    "our key": ("ssl.key.location", "ssl.key.pem", "ssl.keystore.location", "ssl.keystore.key"),
}
"""Settings that configure the same thing in different ways."""


def tls_faults(values: Mapping[str, Value]) -> list[str]:
    """One sentence for each conflict among these settings. Files are not read."""
    faults: list[str] = []
    for what, names in _EITHER.items():
        named = [name for name in names if values[name] is not None]
        if len(named) > 1:
            faults.append(f"{' and '.join(named)} both name {what}: keep one of them.")
    has_certificate = any(values[name] is not None for name in _EITHER["our certificate"])
    has_key = any(values[name] is not None for name in _EITHER["our key"])
    if has_certificate != has_key:
        has, lacks = ("certificate", "key") if has_certificate else ("key", "certificate")
        faults.append(
            f"Brokers are shown a certificate with its key, and there is only a {has}: set ssl.{lacks}.location "
            "as well, or ssl.keystore.location with both."
        )
    enabled = values["ssl.enabled.protocols"]
    enabled = list(TLS_VERSIONS) if enabled is None else enabled
    assert isinstance(enabled, list)
    unknown = [str(each) for each in enabled if each not in TLS_VERSIONS]
    if unknown or not enabled:
        named_text = f'"{unknown[0]}"' if unknown else "nothing"
        faults.append(f"ssl.enabled.protocols has {named_text}: must be of {', '.join(TLS_VERSIONS)}.")
    elif values["ssl.protocol"] == "TLSv1.2" and "TLSv1.2" not in enabled:
        faults.append("ssl.protocol = TLSv1.2 and ssl.enabled.protocols = TLSv1.3 leave no version.")
    return faults


def tls_warnings(values: Mapping[str, Value], set_by_user: Mapping[str, str]) -> list[str]:
    """Warnings for users who expect protection that these settings do not give."""
    if has_tls(values):
        if values["enable.ssl.certificate.verification"]:
            return []
        return [
            "enable.ssl.certificate.verification = false: anybody on the way to the brokers can read and "
            "change records."
        ]
    ours = [row.name for row in TLS_SETTINGS if row.name in set_by_user]
    if not ours:
        return []
    return [
        f"{ours[0]} has no effect with security.protocol = {values['security.protocol']}, which has no TLS: "
        "set SSL or SASL_SSL."
    ]
