"""Effects of an attachment: instructions to the io thread about its sockets, and to the session about its streams."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple, TypeAlias

from client_stub.errors import DeliveryFailed

ErrorOf: TypeAlias = Callable[[bool], DeliveryFailed]
"""Makes the error of a record that fails; the argument says whether its submission was sent to a worker."""


class OpenControl(NamedTuple):
    """Connect to the control endpoint with a fresh socket and send ``frames``."""

    frames: list[Any]


class OpenWorker(NamedTuple):
    """Connect to a worker's endpoint with a fresh socket and a fresh routing id, and send ``frames``."""

    endpoint: str
    frames: list[Any]


class CloseSockets(NamedTuple):
    """Close both sockets and drop their unsent data."""


Effect: TypeAlias = OpenControl | OpenWorker | CloseSockets


class ResumeStreams(NamedTuple):
    """Continue at the worker that has sent WELCOME: stream → (its position there, whether it is held)."""

    credit_bytes: int
    positions: dict[int, tuple[int, bool]]


class RestartStreams(NamedTuple):
    """The daemon no longer knows this client: fail all that it may have received, and all that has waited since before
    ``older_than_ms``.
    """

    error_of: ErrorOf
    older_than_ms: float = -inf


class FailStreams(NamedTuple):
    """Fail everything undecided."""

    error_of: ErrorOf


StreamEffect: TypeAlias = ResumeStreams | RestartStreams | FailStreams
