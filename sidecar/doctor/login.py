"""Credentials that the daemon would log in with: its own certificate, password and token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sidecar.doctor.findings import Finding
from sidecar.net.certificate import certificates_of
from sidecar.net.tls_context import tls_fault_of
from sidecar.net.tls_files import read_material

if TYPE_CHECKING:
    from sidecar.net.authentication import Authenticator

EXPIRES_SOON_DAYS: Final = 14


async def login_findings(
    values: Mapping[str, Any], authenticator: Authenticator | None
) -> AsyncIterator[Finding]:
    """Certificates and credentials of this side; a token is fetched as the controller would."""
    if str(values["security.protocol"]).endswith("SSL"):
        yield own_tls_finding(values)


def own_tls_finding(values: Mapping[str, Any]) -> Finding:
    """Whether the files of ``ssl.*`` can be used, and how long our own certificate lives."""
    fault = tls_fault_of(values)
    if fault is not None:
        return Finding("FAIL", fault)
    chain = read_material(values).chain
    if chain is None:
        return Finding("ok", "The files of ssl.* can be used; there is no certificate of our own.")
    mine, *_ = certificates_of(chain.text)
    days = (mine.not_after - datetime.now(UTC)).days
    return Finding(
        "warn" if days < EXPIRES_SOON_DAYS else "ok",
        f"Our own certificate {mine.subject} from {mine.issuer} expires in {days} days.",
    )
