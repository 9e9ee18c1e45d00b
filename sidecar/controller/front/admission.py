"""Admission of clients: the checks of HELLO and the client's token. Sans-IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from client_stub.contract.wire import (
    CLIENT_ID_BYTES,
    CLIENT_NAME_BYTES_MAX,
    PROTOCOL_VERSION,
    RELATIVE_ENDPOINTS,
    TRANSACTIONAL_ID_BYTES_MAX,
)
from sidecar.common.errors import Refused
from sidecar.config.client_rules import Caller, ClientRules
from sidecar.config.rules import tcp_address
from sidecar.config.settings import SidecarConfig


def takes_relative(fields: Sequence[Any]) -> bool:
    """Whether the stub of this HELLO can find a worker's socket by its name in the run directory; earlier stubs
    cannot.
    """
    flags = fields[5] if len(fields) > 5 else 0
    return isinstance(flags, int) and bool(flags & RELATIVE_ENDPOINTS)


def assigned_endpoint(
    fields: Sequence[Any], caller: Caller, endpoint: str, config: SidecarConfig, index: int
) -> str:
    """The address of a worker's socket for the stub of this HELLO, made from ``endpoint`` (ipc://) or from
    ``daemon.listen``.

    A stub may see the run directory under another path than the daemon, for example as a volume in its container. Over
    TCP it has its own name for this host, and needs only a port.
    """
    address = tcp_address(config.text("daemon.listen"), 1 + index) if caller.key else None
    if address is not None:
        return f"tcp://:{address[1]}"
    return endpoint.rpartition("/")[2] if takes_relative(fields) else endpoint


def transactional_id_of(fields: Sequence[Any]) -> str | None:
    """The transactional id that the client will initialize, if it names one. Raises Refused."""
    found = fields[7] if len(fields) > 7 else None
    if found is None:
        return None
    if not isinstance(found, str) or not 0 < len(found.encode()) <= TRANSACTIONAL_ID_BYTES_MAX:
        raise Refused(
            "MALFORMED_FRAME",
            f"HELLO carries no transactional id of 1 to {TRANSACTIONAL_ID_BYTES_MAX} bytes.",
        )
    return found


def check_hello(fields: Sequence[Any], rules: ClientRules, caller: Caller) -> tuple[bytes, str, bytes]:
    """(client id, name, digest of the token) of a HELLO's fields after its kind. Raises Refused."""
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
    if not isinstance(name, str) or len(name.encode()) > CLIENT_NAME_BYTES_MAX or not isinstance(pid, int):
        raise Refused(
            "MALFORMED_FRAME",
            f"HELLO carries no client name of at most {CLIENT_NAME_BYTES_MAX} bytes, or no pid.",
        )
    why = rules.refusal(name, caller)
    if why is not None:
        raise Refused("NOT_ADMITTED", why)
    return client_id, name, rules.check_token(name, token, caller)
