"""Checks the credentials that the daemon would use: its certificate, password and token.

`kafka-sidecar doctor` calls it, on a loop of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sidecar.config.sasl_settings import OAUTHBEARER
from sidecar.doctor.findings import Finding
from sidecar.net.tls.certificate import certificates_of
from sidecar.net.tls.tls_context import tls_fault_of
from sidecar.net.tls.tls_files import read_material

if TYPE_CHECKING:
    from sidecar.net.kafka.authentication import Authenticator

EXPIRES_SOON_DAYS: Final = 14


async def login_findings(
    values: Mapping[str, Any], authenticator: Authenticator | None
) -> AsyncIterator[Finding]:
    """Findings about certificates and credentials of this side. A token is fetched as the controller would."""
    if str(values["security.protocol"]).endswith("SSL"):
        yield own_tls_finding(values)
    if authenticator is not None and authenticator.mechanism == OAUTHBEARER:
        yield await _token_finding(values, authenticator)


async def _token_finding(values: Mapping[str, Any], authenticator: Authenticator) -> Finding:
    """Fetch a token as the controller does. The following logins use it."""
    from sidecar.controller.cluster.token_endpoint import TokenError
    from sidecar.controller.cluster.token_keeper import message_of
    from sidecar.controller.cluster.token_sources import token_source

    try:
        token = await asyncio.to_thread(token_source(values))
    except TokenError as error:
        return Finding("FAIL", str(error))
    authenticator.put_token(message_of(token))
    if token.expires_at_ms is None:
        return Finding("ok", "There is a token, and it does not say when it ends.")
    left_s = token.expires_at_ms / 1000 - time.time()
    return Finding(
        "ok", f"There is a token of {token.principal or 'an unnamed principal'} for {left_s:,.0f} s."
    )


def own_tls_finding(values: Mapping[str, Any]) -> Finding:
    """Whether the files of ``ssl.*`` can be used, and how long the daemon's certificate is valid."""
    fault = tls_fault_of(values)
    if fault is not None:
        return Finding("FAIL", fault)
    chain = read_material(values).chain
    if chain is None:
        return Finding("ok", "The files of ssl.* can be used; there is no client certificate.")
    mine, *_ = certificates_of(chain.text)
    days = (mine.not_after - datetime.now(UTC)).days
    return Finding(
        "warn" if days < EXPIRES_SOON_DAYS else "ok",
        f"Our own certificate {mine.subject} from {mine.issuer} expires in {days} days.",
    )
