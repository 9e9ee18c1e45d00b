"""Settings of another client's producer: those that the client has here; all others are the daemon's.

Both twins call it once, in their constructors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from client_stub.contract.wire import CLIENT_NAME_BYTES_MAX
from client_stub.records.arguments import shortened

log = logging.getLogger("client_stub")

RUN_DIR: Final = "sidecar.run_dir"
TOKEN: Final = "sidecar.token"
TRANSACTIONAL_ID: Final = "transactional.id"
TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms"
_SILENT: Final = frozenset(
    {"bootstrap.servers", "metadata.broker.list", "client.id", "acks", "request.required.acks"}
)
"""Settings about which no warning is due: the daemon compares them with its own."""
ASKED_CHARACTERS_MAX: Final = 4_096
_NEARLY: Final = 0.85
"""difflib's ratio of a misspelt name. The nearest name of another Kafka setting is well below."""


def producer_settings(settings: Mapping[str, Any], taken: Iterable[str] = ()) -> dict[str, Any]:
    """Arguments of ``client_stub.Producer``, from names with dots. Logs once which settings have no effect. ``taken``:
    names of settings that the caller itself has used.

    Raises ValueError for a name that is nearly one of those with an effect.
    """
    with_effect = (RUN_DIR, TOKEN, "client.id", TRANSACTIONAL_ID, TRANSACTION_TIMEOUT, *taken)
    for name in settings:
        near = get_close_matches(name, with_effect, 1, _NEARLY)
        if near and name not in with_effect:
            raise ValueError(f"There is no setting {name}: did you mean {near[0]}?")
    used = {RUN_DIR, TOKEN, TRANSACTIONAL_ID, TRANSACTION_TIMEOUT, *_SILENT}
    left = sorted(name for name, value in settings.items() if name not in used and value is not None)
    if left:
        log.warning(
            "These settings belong to the daemon, which all clients share, and have no effect here: %s.",
            ", ".join(left),
        )
    client_id = settings.get("client.id")
    timeout_ms = settings.get(TRANSACTION_TIMEOUT)
    return {
        "transactional_id": settings.get(TRANSACTIONAL_ID),
        **({} if timeout_ms is None else {"transaction_timeout_ms": float(timeout_ms)}),
        "run_dir": settings.get(RUN_DIR),
        "client_name": None if client_id is None else _name_of(str(client_id)),
        "token": settings.get(TOKEN),
    }


def asked_cluster(settings: Mapping[str, Any]) -> dict[str, str]:
    """The servers and acks that the program asks for, as the daemon compares them."""
    asked = {}
    for name, others in (
        ("bootstrap.servers", "metadata.broker.list"),
        ("acks", "request.required.acks"),
    ):
        value = settings.get(name)
        value = settings.get(others) if value is None else value
        if isinstance(value, list | tuple | set):  # as kafka-python takes servers
            value = ",".join(map(str, value))
        if value is not None:
            asked[name] = str(value)[:ASKED_CHARACTERS_MAX]
    return asked


def _name_of(client_id: str) -> str:
    """``client.id`` as a client's name, shortened if needed, as Kafka allows longer ones."""
    name = shortened(client_id)
    if name != client_id:
        log.warning(
            "The client.id has more than %d bytes, so this client is %s here.", CLIENT_NAME_BYTES_MAX, name
        )
    return name
