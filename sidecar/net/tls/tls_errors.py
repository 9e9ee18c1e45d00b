"""Phrases for OpenSSL's errors: the cause, and the setting that fixes it.

``link_security`` calls it for a handshake that failed, on the loop of the link.
"""

from __future__ import annotations

import ssl
from datetime import datetime
from typing import Final

from sidecar.net.tls.certificate import Certificate

_NAMES_SHOWN: Final = 5

# OpenSSL's X509_V_ERR_*.
_NO_CRL, _NOT_YET_VALID, _EXPIRED, _CRL_EXPIRED, _REVOKED = 3, 9, 10, 12, 23
_UNKNOWN_CA: Final = frozenset({2, 18, 19, 20, 21})
_WRONG_HOST: Final = frozenset({62, 64})

_HINT_CERTIFICATE: Final = "set ssl.certificate.location and ssl.key.location"
_REASONS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": f"it requires a client certificate; {_HINT_CERTIFICATE}",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the CA of our certificate (ssl.certificate.location)",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate (ssl.certificate.location) has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "our certificate (ssl.certificate.location) is revoked",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it speaks none of our TLS versions (ssl.enabled.protocols)",
    "UNSUPPORTED_PROTOCOL": "it speaks none of our TLS versions (ssl.enabled.protocols)",
    "WRONG_SSL_VERSION": "it speaks none of our TLS versions (ssl.enabled.protocols)",
    "NO_PROTOCOLS_AVAILABLE": "OpenSSL of this host has none of the TLS versions in ssl.enabled.protocols",
    "WRONG_VERSION_NUMBER": "it does not answer in TLS; is this a plaintext port (security.protocol)?",
    "HTTP_REQUEST": "it does not answer in TLS; is this a plaintext port (security.protocol)?",
    "TLSV1_UNRECOGNIZED_NAME": "it does not serve this host name (SNI)",
    "TLSV1_ALERT_INSUFFICIENT_SECURITY": "it wants stronger ciphers (ssl.cipher.suites)",
}
_AMBIGUOUS: Final = {
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "no cipher in common (ssl.cipher.suites)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "",
    "TLSV1_ALERT_INTERNAL_ERROR": "",
    "TLSV1_ALERT_ACCESS_DENIED": "",
}
"""Alerts that brokers send for a missing or unwanted client certificate, and for their other meaning."""

PLAINTEXT_PORT: Final = (
    "it closed the connection when TLS began; is this a plaintext port (security.protocol)?"
)


def tls_phrase(error: ssl.SSLError, *, has_certificate: bool) -> str:
    """Phrase for the cause, to follow "TLS with BROKER failed: ", without a full stop."""
    reason = error.reason or ""
    if reason in _REASONS:
        return _REASONS[reason]
    if reason in _AMBIGUOUS:
        perhaps = (
            "it does not take our certificate (ssl.certificate.location)"
            if has_certificate
            else f"it may require a client certificate; {_HINT_CERTIFICATE}"
        )
        other = _AMBIGUOUS[reason]
        return f"{perhaps}, or there is {other}" if other else perhaps
    return f"OpenSSL says {reason.lower().replace('_', ' ') or error}"


def closed_phrase(*, has_certificate: bool) -> str:
    """Phrase for a broker that closes right after the handshake, when TLS 1.3 checks the client's certificate."""
    if has_certificate:
        return (
            "it closed the connection after the handshake; it may not take our certificate "
            "(ssl.certificate.location)"
        )
    return f"it closed the connection after the handshake; it may require a client certificate: {_HINT_CERTIFICATE}"


def verification_phrase(
    error: ssl.SSLCertVerificationError, host: str, peer: Certificate | None, now: datetime
) -> str:
    """Phrase for a failed verification. ``peer``: the broker's certificate, if it could be fetched."""
    code = error.verify_code
    whose = "its certificate" if peer is None else f'its certificate "{peer.subject}"'
    if code in _WRONG_HOST:
        names = peer.names if peer is not None else ()
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
        only = f", only for {shown}" if shown else ""
        return (
            f"{whose} is not for the name {host}{only}; fix the broker's advertised.listeners or its certificate, "
            "or set ssl.endpoint.identification.algorithm to none"
        )
    if code in (_EXPIRED, _NOT_YET_VALID):
        fault = peer.fault(now) if peer is not None else ""
        if fault:
            return f"{whose} {fault}"
        word = "has expired" if code == _EXPIRED else "is not valid yet"
        return f"a certificate of its chain {word}"
    if code in _UNKNOWN_CA:
        by = f', issued by "{peer.issuer}",' if peer is not None else ""
        return (
            f"{whose}{by} leads to no CA that is trusted here; set ssl.ca.location to the CA of the brokers"
        )
    if code == _REVOKED:
        return f"{whose} is revoked (ssl.crl.location)"
    if code in (_NO_CRL, _CRL_EXPIRED):
        word = "none for its CA" if code == _NO_CRL else "an outdated one"
        return f"{whose} cannot be checked for revocation: ssl.crl.location has {word}"
    return f"{whose} is refused: {error.verify_message}"
