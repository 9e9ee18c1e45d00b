"""Effects of a session: instructions to the io thread about its sockets."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias


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
