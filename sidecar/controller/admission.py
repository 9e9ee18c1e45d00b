"""Admission of clients: the checks of HELLO and the client's token. Sans-IO."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Any

from client_stub.wire import CLIENT_ID_BYTES, PROTOCOL_VERSION, RELATIVE_ENDPOINTS
from sidecar.common.errors import Refused

NAME_BYTES_MAX = 64


def takes_relative(fields: Sequence[Any]) -> bool:
    """Whether the stub of this HELLO finds a worker's socket by its name in the run dir; earlier ones do not say so."""
    flags = fields[5] if len(fields) > 5 else 0
    return isinstance(flags, int) and bool(flags & RELATIVE_ENDPOINTS)


def check_hello(fields: Sequence[Any], clients: Mapping[str, Mapping[str, Any]]) -> tuple[bytes, str]:
    """(client id, name) of a HELLO's fields after its kind; raises Refused."""
    if not fields or fields[0] != PROTOCOL_VERSION:
        theirs = fields[0] if fields else "none"
        raise Refused(
            "UNSUPPORTED_VERSION",
            f"The stub speaks protocol {theirs}, this daemon {PROTOCOL_VERSION}; install matching versions.",
        )
    if len(fields) < 5:
        raise Refused("MALFORMED_FRAME", f"HELLO has {len(fields)} fields of 5.")
    _, client_id, name, pid, token = fields[:5]
    if not isinstance(client_id, bytes) or len(client_id) != CLIENT_ID_BYTES:
        raise Refused("MALFORMED_FRAME", f"HELLO carries no client id of {CLIENT_ID_BYTES} bytes.")
    if not isinstance(name, str) or len(name.encode()) > NAME_BYTES_MAX or not isinstance(pid, int):
        raise Refused(
            "MALFORMED_FRAME", f"HELLO carries no client name of at most {NAME_BYTES_MAX} bytes, or no pid."
        )
    rule = clients.get(name)
    wanted = rule.get("token") if rule else None
    if wanted and not (isinstance(token, str) and hmac.compare_digest(token.encode(), str(wanted).encode())):
        raise Refused(
            "NOT_ADMITTED",
            f'Client "{name}" needs the token that [clients.{name}] of the daemon\'s configuration names.',
        )
    return client_id, name
