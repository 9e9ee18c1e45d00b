"""Certificates made at test time: an authority, servers, clients, and every kind of invalid one.

::

    ca = CertificateAuthority()
    good = ca.issue("broker", hosts=("localhost", "127.0.0.1"))
    expired = ca.issue("broker", hosts=("localhost",), begins_s=-7200, ends_s=-3600)
    good.write(folder / "broker.pem")

Needs ``cryptography``, which comes with the ``[dev]`` extra. Keys are EC P-256: they are made in a millisecond.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sidecar.tools.testing.private_text import write_private

LOCAL_HOSTS = ("localhost", "127.0.0.1")

_DAY_S = 86_400.0


class Certificate:
    """A certificate with its key and its issuer. Immutable."""

    def __init__(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, issuer: x509.Certificate
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._issuer = issuer

    @property
    def serial_number(self) -> int:
        return self._certificate.serial_number

    @property
    def certificate_pem(self) -> str:
        """The certificate, then its issuer's."""
        return _pem(self._certificate) + _pem(self._issuer)

    @property
    def certificate_der(self) -> bytes:
        """The certificate alone, as a peer is shown it."""
        return self._certificate.public_bytes(serialization.Encoding.DER)

    def key_pem(self, password: str | None = None) -> str:
        """The private key as PKCS#8, encrypted when there is a password."""
        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption()
            if password is None
            else serialization.BestAvailableEncryption(password.encode()),
        ).decode()

    def pkcs12(self, password: str) -> bytes:
        """Certificate, key and issuer as one PKCS#12 file."""
        return pkcs12.serialize_key_and_certificates(
            b"kit",
            self._key,
            self._certificate,
            [self._issuer],
            serialization.BestAvailableEncryption(password.encode()),
        )

    def write(self, path: Path, password: str | None = None) -> Path:
        """Write key and chain as one PEM file of mode 0600 and return its path."""
        return write_private(path, self.key_pem(password) + self.certificate_pem)


class CertificateAuthority:
    """An authority that issues certificates. Thread-safe, as its only state is its key."""

    def __init__(self, name: str = "kafka-sidecar test CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = (
            _builder(subject, subject, self._key, -_DAY_S, 3650 * _DAY_S)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(ca=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate_pem(self) -> str:
        """The authority's own certificate, which clients trust."""
        return _pem(self._certificate)

    def write(self, path: Path) -> Path:
        """Write the authority's certificate and return its path."""
        path.write_text(self.certificate_pem)
        return path

    def pkcs12(self, password: str) -> bytes:
        """The authority's certificate as a PKCS#12 truststore that Java reads too."""
        entry = pkcs12.PKCS12Certificate(self._certificate, b"ca")
        return pkcs12.serialize_java_truststore(
            [entry], serialization.BestAvailableEncryption(password.encode())
        )

    def revocations(self, *revoked: Certificate) -> str:
        """The list of revoked certificates (CRL) in PEM, good for a day."""
        now = datetime.datetime.now(datetime.UTC)
        hour = datetime.timedelta(hours=1)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(now - hour)
            .next_update(now + 23 * hour)
        )
        for each in revoked:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(each.serial_number)
                .revocation_date(now - hour)
                .build()
            )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def issue(
        self,
        common_name: str,
        *,
        hosts: Sequence[str] = (),
        begins_s: float = -3600.0,
        ends_s: float = 30 * _DAY_S,
    ) -> Certificate:
        """A certificate for servers and clients, valid from ``begins_s`` to ``ends_s`` seconds from now.

        ``hosts``: DNS names and IP addresses. For Kafka the principal is ``User:`` and the common name.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(subject, self._certificate.subject, key, begins_s, ends_s)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return Certificate(builder.sign(self._key, hashes.SHA256()), key, self._certificate)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begins_s: float, ends_s: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(seconds=begins_s))
        .not_valid_after(now + datetime.timedelta(seconds=ends_s))
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
