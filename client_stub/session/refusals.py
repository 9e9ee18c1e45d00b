"""Refusals: what each code of REFUSED means to a stub: how long it lasts, and the outcome of records that fail.

The session and topic look-ups call it, in the io thread or in that of a look-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from client_stub.contract.wire import LocalCode, Persistence
from client_stub.errors import DaemonRefused, DeliveryFailed, error_for


class Lasts(Enum):
    """Until when the daemon gives the same answer."""

    A_MOMENT = "it starts, ends, is full, or changes its rules: ask again soon"
    THE_DAEMON = (
        "until its configuration or version changes. A wrong one may live for seconds, so a producer asks again; "
        "records of one that it never took fail meanwhile, and those of others wait"
    )
    THE_PROGRAM = "until this program sends something else"


class RefusalRow(NamedTuple):
    lasts: Lasts
    outcome: LocalCode | None = None
    """The code of records that fail of it; None: none does."""


_CLIENT: Final = LocalCode.NOT_ADMITTED
_TOPIC: Final = LocalCode.TOPIC_REFUSED

REFUSALS: Final[Mapping[str, RefusalRow]] = MappingProxyType(
    {
        # Answers to HELLO and ATTACH, and to an attached client.
        "NOT_ADMITTED": RefusalRow(Lasts.THE_DAEMON, _CLIENT),
        "OTHER_CLUSTER": RefusalRow(Lasts.THE_DAEMON, _CLIENT),
        "WEAKER_ACKS": RefusalRow(Lasts.THE_DAEMON, _CLIENT),
        "NOT_PERMITTED": RefusalRow(Lasts.THE_DAEMON, _CLIENT),  # the system's, or that of CURVE's handshake
        "UNSUPPORTED_VERSION": RefusalRow(Lasts.THE_DAEMON, _CLIENT),
        "MALFORMED_FRAME": RefusalRow(Lasts.THE_PROGRAM, _CLIENT),
        "NOT_ALLOWED": RefusalRow(Lasts.A_MOMENT),  # HELLO decides
        "STALE_EPOCH": RefusalRow(Lasts.A_MOMENT),
        "NOT_READY": RefusalRow(Lasts.A_MOMENT),
        "DRAINING": RefusalRow(Lasts.A_MOMENT),
        "TOO_MANY_CLIENTS": RefusalRow(Lasts.A_MOMENT),
        "NO_MEMORY": RefusalRow(Lasts.A_MOMENT),
        # Answers for one stream.
        "TOPIC_TABLE_FULL": RefusalRow(Lasts.A_MOMENT, _TOPIC),
        "TOO_MANY_STREAMS": RefusalRow(Lasts.A_MOMENT, _TOPIC),
        "INVALID_TOPIC": RefusalRow(Lasts.THE_PROGRAM, LocalCode.INVALID_TOPIC),
        # Answers to a question about topics.
        "FAILED": RefusalRow(Lasts.A_MOMENT),
        "KAFKA_UNREACHABLE": RefusalRow(Lasts.A_MOMENT),
        "METADATA_TIMEOUT": RefusalRow(Lasts.A_MOMENT, LocalCode.METADATA_TIMEOUT),
        "NOT_COMPACTED": RefusalRow(Lasts.THE_DAEMON, _CLIENT),
        "TOO_MANY_TOPICS": RefusalRow(Lasts.A_MOMENT),
        "TOPIC_AUTHORIZATION_FAILED": RefusalRow(Lasts.THE_DAEMON, LocalCode.TOPIC_UNAUTHORIZED),
        "SASL_AUTHENTICATION_FAILED": RefusalRow(Lasts.THE_DAEMON, LocalCode.UNAUTHENTICATED),
        "INVALID_TOPIC_EXCEPTION": RefusalRow(Lasts.THE_PROGRAM, LocalCode.INVALID_TOPIC),
    }
)


def lasts(name: str) -> Lasts:
    """How long a client's refusal lasts. A code of a later daemon may pass."""
    row = REFUSALS.get(name)
    return Lasts.A_MOMENT if row is None else row.lasts


def refusal_error(
    name: str, text: str, *, unknown: LocalCode = LocalCode.NOT_ADMITTED, maybe: bool = False
) -> DeliveryFailed:
    """The error of a refused call or record. ``unknown`` is the outcome of a later daemon's code. ``maybe``: the record
    may be in the log.
    """
    row = REFUSALS.get(name)
    outcome = unknown if row is None else row.outcome
    if outcome is None:
        return DaemonRefused(text, name=name, retriable=True)
    error = error_for(outcome, text, Persistence.POSSIBLY_PERSISTED if maybe else Persistence.NOT_PERSISTED)
    if outcome in (_CLIENT, _TOPIC):
        error.name = name
    return error
