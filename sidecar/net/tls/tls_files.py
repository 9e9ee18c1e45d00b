"""TlsMaterial: certificates and keys of the ``ssl.*`` settings, read and checked. Each fault is one sentence.

``tls_context`` calls it in a thread, and the loader at the start.

Everything is read into memory first and checked there, so that certificate and key are of the same moment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from sidecar.config.secret_sources import SecretError, read_secret, read_setting_file
from sidecar.config.tls_settings import TLS_SETTINGS
from sidecar.net.tls.certificate import PEM_BLOCK, Certificate, certificates_of

PEM_BYTES_MAX: Final = 8 << 20
"""Limit of a PEM file. A system's CA bundle has about 250 KiB."""

SYSTEM_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",
)
_HASH_NAME: Final = re.compile(r"[0-9a-f]{8}\.\d+")
_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_PATHS: Final = tuple(row.name for row in TLS_SETTINGS if row.is_path)


class TlsFault(ValueError):
    """A setting or file of TLS cannot be used. The text is one sentence that names both, and never a secret."""


class Pem(NamedTuple):
    """PEM text and its source: ``ssl.ca.location = "/etc/ca.pem"``, or the setting alone."""

    source: str
    text: str


class TlsMaterial(NamedTuple):
    """Input for OpenSSL; None for parts that are not configured."""

    ca: Pem | None
    ca_directory: str | None
    chain: Pem | None
    """The client's certificate first, then those that lead to its CA."""
    key: Pem | None
    key_password: str | None
    crl: Pem | None


def signature_of(values: Mapping[str, Any]) -> tuple[object, ...]:
    """A value that changes whenever one of the files may have changed. Costs one stat per file and reads nothing."""
    found: list[object] = []
    for name in _PATHS:
        path = values[name]
        if path:
            try:
                stat = os.stat(path)  # noqa: PTH116 - a path object for each would cost more than the call
            except OSError as error:
                found.append(error.errno)
            else:
                found.append((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return tuple(found)


def read_material(values: Mapping[str, Any]) -> TlsMaterial:
    """Read all files that the settings name. Raises TlsFault."""
    try:
        ca, ca_directory = _read_ca(values)
        chain, key = _read_own(values)
        crl = _read_pem(values, "ssl.crl.location")
        password = read_secret(values, "ssl.key.password")
    except SecretError as error:
        raise TlsFault(str(error)) from None
    if crl is not None and "X509 CRL" not in crl.text:
        raise TlsFault(f"{crl.source}: there is no CRL in PEM in it (-----BEGIN X509 CRL-----).")
    if key is not None:
        _check_key(key, password)
    return TlsMaterial(ca, ca_directory, chain, key, password, crl)


def dates_fault(material: TlsMaterial, now: datetime) -> str | None:
    """Sentence about certificates outside of their validity: the client's, or all of the CA's. None if they
    are valid.
    """
    if material.chain is not None:
        fault = _certificates(material.chain)[0].fault(now)
        if fault:
            return f"{material.chain.source}: our certificate {fault}."
    if material.ca is not None:
        faults = [each.fault(now) for each in _certificates(material.ca)]
        if all(faults):
            which = "the certificate" if len(faults) == 1 else "each of its certificates, the first of which"
            return f"{material.ca.source}: {which} {faults[0]}."
    return None


def expiries_of(material: TlsMaterial) -> list[tuple[str, float]]:
    """(description, Unix time of expiry) of the client's certificate, and of the CA's certificate that ends last."""
    found = []
    if material.chain is not None:
        ends = _certificates(material.chain)[0].not_after
        found.append((f"Our certificate ({material.chain.source})", ends.timestamp()))
    if material.ca is not None:
        last = max(each.not_after for each in _certificates(material.ca))
        found.append((f"The CA's certificate ({material.ca.source})", last.timestamp()))
    return found


# Which brokers to trust


def _read_ca(values: Mapping[str, Any]) -> tuple[Pem | None, str | None]:
    if not values["enable.ssl.certificate.verification"]:
        return None, None
    path = values["ssl.ca.location"]
    if path and path != "probe":
        if Path(path).is_dir():
            return None, _ca_directory(path)
        return _with_certificates(_read_pem(values, "ssl.ca.location")), None
    for name in ("ssl.ca.pem", "ssl.truststore.certificates"):
        if values[name]:
            return _with_certificates(_inline(values, name)), None
    if values["ssl.truststore.location"]:
        chain, _ = _read_store(values, "truststore")
        return _with_certificates(chain), None
    return _system_ca(), None


def _ca_directory(path: str) -> str:
    source = f'ssl.ca.location = "{path}"'
    try:
        names = os.listdir(path)  # noqa: PTH208 - the names are all that is used
    except OSError as error:
        raise TlsFault(f"{source}: the directory cannot be read ({error.strerror}).") from None
    if not any(map(_HASH_NAME.fullmatch, names)):
        raise TlsFault(
            f"{source}: the directory has no certificate under OpenSSL's hash names: run `openssl rehash {path}`, "
            "or name a file."
        )
    return path


def _system_ca() -> Pem:
    for path in SYSTEM_BUNDLES:
        if Path(path).exists():
            name = "ssl.ca.location"
            return _with_certificates(
                _decoded(f'{name} = "{path}"', read_setting_file(name, path, PEM_BYTES_MAX))
            )
    raise TlsFault(
        "ssl.ca.location is not set and this system has no CA certificates: set it to the CA of the brokers, or "
        "install the package ca-certificates."
    )


# Our own identity


def _read_own(values: Mapping[str, Any]) -> tuple[Pem | None, Pem | None]:
    if values["ssl.keystore.location"]:
        chain, key = _read_store(values, "keystore")
        if key is None:
            raise TlsFault(
                f"{chain.source}: there is no private key in it; name a keystore with certificate and key."
            )
        return _with_certificates(chain), key
    chain_or_none = _either(
        values, "ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.certificate.chain"
    )
    key = _either(values, "ssl.key.location", "ssl.key.pem", "ssl.keystore.key")
    return None if chain_or_none is None else _with_certificates(chain_or_none), key


def _either(values: Mapping[str, Any], path_name: str, *pem_names: str) -> Pem | None:
    if values[path_name]:
        return _read_pem(values, path_name)
    return next((_inline(values, name) for name in pem_names if values[name]), None)


def _check_key(key: Pem, password: str | None) -> None:
    if "PRIVATE KEY-----" not in key.text:
        raise TlsFault(f"{key.source}: there is no private key in PEM in it (-----BEGIN PRIVATE KEY-----).")
    if is_encrypted(key) and password is None:
        raise TlsFault(f"{key.source}: the key is encrypted; set ssl.key.password or ssl.key.password.file.")


def is_encrypted(key: Pem) -> bool:
    """Whether the key needs a password."""
    return "ENCRYPTED" in key.text


# Forms


def _read_store(values: Mapping[str, Any], store: str) -> tuple[Pem, Pem | None]:
    """(certificates, key or None) of a Java truststore or keystore."""
    name = f"ssl.{store}.location"
    path = str(values[name])
    source = f'{name} = "{path}"'
    kind = values[f"ssl.{store}.type"]
    data = read_setting_file(name, path, PEM_BYTES_MAX)
    if kind == "JKS" or data.startswith(_JKS):
        raise TlsFault(
            f"{source}: JKS is Java's own form and is not read here; convert it with `keytool -importkeystore "
            f"-srckeystore {path} -destkeystore {path}.p12 -deststoretype PKCS12`, and name {path}.p12."
        )
    if kind == "PEM" or (kind is None and b"-----BEGIN " in data):
        pem = _decoded(source, data)
        return pem, pem if "PRIVATE KEY-----" in pem.text else None
    return _read_pkcs12(source, data, read_secret(values, f"ssl.{store}.password"), f"ssl.{store}.password")


def _read_pkcs12(
    source: str, data: bytes, password: str | None, password_name: str
) -> tuple[Pem, Pem | None]:
    try:
        from sidecar.net.tls.pkcs12 import pem_of_pkcs12
    except ImportError:
        raise TlsFault(
            f"{source}: PKCS12 needs the package cryptography: pip install 'kafka-sidecar[pkcs12]', or name PEM files."
        ) from None
    try:
        chain, key = pem_of_pkcs12(data, password)
    except ValueError:
        hint = f"{password_name} does not open it" if password is not None else f"it needs {password_name}"
        raise TlsFault(f"{source}: {hint}, or the file is not PKCS12.") from None
    return Pem(source, chain), None if key is None else Pem(source, key)


def _read_pem(values: Mapping[str, Any], name: str) -> Pem | None:
    path = values[name]
    if not path:
        return None
    return _decoded(f'{name} = "{path}"', read_setting_file(name, str(path), PEM_BYTES_MAX))


def _inline(values: Mapping[str, Any], name: str) -> Pem:
    """PEM text of a setting. Environment variables and Java's files have it in one line, with blanks or ``\\n`` for
    line ends.
    """
    text = str(values[name]).replace("\\n", "\n")

    def in_lines(block: re.Match[str]) -> str:
        kind, body = block[1], block[2]
        lines = body if ":" in body else "\n" + "\n".join(body.split()) + "\n"
        return f"\n-----BEGIN {kind}-----{lines}-----END {kind}-----\n"

    return _decoded(name, PEM_BLOCK.sub(in_lines, text).encode())


def _decoded(source: str, data: bytes) -> Pem:
    if data.startswith(_JKS):
        raise TlsFault(
            f"{source}: this is a JKS file; convert it to PKCS12 with keytool, and name it as ssl.*store.location."
        )
    text = data.decode("ascii", "replace")
    if text.count("-----BEGIN ") != len(PEM_BLOCK.findall(text)):
        raise TlsFault(f"{source}: the PEM text is cut off (a BEGIN without its END).")
    return Pem(source, text)


def _with_certificates(pem: Pem | None) -> Pem:
    assert pem is not None
    if not _certificates(pem):
        raise TlsFault(f"{pem.source}: there is no certificate in PEM in it (-----BEGIN CERTIFICATE-----).")
    return pem


def _certificates(pem: Pem) -> list[Certificate]:
    try:
        return certificates_of(pem.text)
    except ValueError:
        raise TlsFault(f"{pem.source}: a certificate in it cannot be read.") from None
