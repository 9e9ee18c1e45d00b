"""Certificate: the few fields of an X.509 certificate that error texts show. Sans-IO.

OpenSSL verifies certificates. This module only reads names and dates for error texts (RFC 5280): the ``ssl`` module
does not offer them for a refused certificate.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from sidecar.common.wording import masked

PEM_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)

_UTC_TIME, _VERSION, _EXTENSIONS = 0x17, 0xA0, 0xA3
_DNS_NAME, _IP_ADDRESS = 0x82, 0x87
_COMMON_NAME, _ORGANIZATION, _ALTERNATIVE_NAMES = b"\x55\x04\x03", b"\x55\x04\x0a", b"\x55\x1d\x11"


class Certificate(NamedTuple):
    """Fields of a certificate. Times are in UTC. ``names``: its host names and addresses."""

    subject: str
    issuer: str
    not_before: datetime
    not_after: datetime
    names: tuple[str, ...]

    def fault(self, now: datetime) -> str:
        """Phrase for a certificate outside of its validity; "" if it is valid now."""
        if now > self.not_after:
            return f"has expired on {shown_time(self.not_after)}"
        if now < self.not_before:
            return f"is not valid before {shown_time(self.not_before)}"
        return ""


def shown_time(at: datetime) -> str:
    """The time as in 2026-11-22 18:05 UTC."""
    return f"{at:%Y-%m-%d %H:%M} UTC"


def read_certificate(der: bytes) -> Certificate:
    """Read one certificate in DER. Raises ValueError for anything else."""
    try:
        (_, body), *_ = _items(der)
        (_, signed), *_ = _items(body)
        fields = [each for each in _items(signed) if each[0] != _VERSION]
        # [version] serial, algorithm, issuer, validity, subject, key, ... [extensions]
        (_, issuer), (_, validity), (_, subject) = fields[2:5]
        first, last = (_time(tag, value) for tag, value in _items(validity))
        extensions = next((value for tag, value in fields if tag == _EXTENSIONS), b"")
        return Certificate(_name(subject), _name(issuer), first, last, tuple(_alternative_names(extensions)))
    except (IndexError, ValueError, StopIteration) as error:
        raise ValueError(f"no certificate ({error})") from error


def certificates_of(pem: str) -> list[Certificate]:
    """Certificates of a PEM text, in order. Raises ValueError for a block that cannot be read."""
    return [
        read_certificate(base64.b64decode(body, validate=False))
        for kind, body in PEM_BLOCK.findall(pem)
        if kind.endswith("CERTIFICATE")
    ]


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (tag, content) of each adjacent DER element."""
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + length > len(data):
            raise ValueError("cut off")
        yield tag, data[at : at + length]
        at += length


def _time(tag: int, value: bytes) -> datetime:
    text = value.decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year, from 1950 on
        text = ("20" if text < "50" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _name(data: bytes) -> str:
    parts: dict[bytes, str] = {}
    for _, part in _items(data):
        for _, pair in _items(part):
            (_, kind), (_, value), *_ = _items(pair)
            parts[kind] = value.decode("utf-8", "replace")
    return masked(parts.get(_COMMON_NAME) or parts.get(_ORGANIZATION) or "without a name")


def _alternative_names(data: bytes) -> Iterator[str]:
    for _, extensions in _items(data):
        for _, extension in _items(extensions):
            (_, kind), *rest = _items(extension)
            if kind != _ALTERNATIVE_NAMES:
                continue
            for _, names in _items(rest[-1][1]):
                for tag, value in _items(names):
                    if tag == _DNS_NAME:
                        yield value.decode("ascii", "replace")
                    elif tag == _IP_ADDRESS:
                        yield str(ipaddress.ip_address(value))
