"""ClientIdentity: how a stub identifies itself to the controller and to a worker.

The engine makes one for each session; the io thread reads it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from client_stub.contract.wire import CLIENT_ID_BYTES, PROTOCOL_VERSION, Kind

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class ClientIdentity:
    """The identity of one session: its client id, and the secret by which a worker recognises it. Io thread only.

    ``asked``: the bootstrap.servers and acks for which the program asks; the daemon refuses others.
    ``transactional_id`` decides which worker the controller names.
    """

    __slots__ = (
        "_asked",
        "_client_id",
        "_fork_generation",
        "_hello_flags",
        "_name",
        "_pid",
        "_token",
        "_transactional_id",
        "secret",
    )

    def __init__(
        self,
        *,
        name: str,
        pid: int,
        fork_generation: int,
        token: str | None,
        hello_flags: int = 0,
        asked: Mapping[str, str] = NOTHING,
        transactional_id: str | None = None,
    ) -> None:
        self._name = name
        self._pid = pid
        self._fork_generation = fork_generation
        self._token = token
        self._hello_flags = hello_flags
        self._asked = dict(asked)
        self._transactional_id = transactional_id
        self.renew()

    def renew(self) -> None:
        """Become another client, with a client id that no worker knows."""
        client_id = os.urandom(CLIENT_ID_BYTES - 4) + self._fork_generation.to_bytes(4, "big")
        assert len(client_id) == CLIENT_ID_BYTES
        self._client_id = client_id
        self.secret: bytes | None = None
        """Received in the first WELCOME for this client id."""

    def hello(self) -> list[Any]:
        """The HELLO message for the control endpoint."""
        return [
            Kind.HELLO,
            PROTOCOL_VERSION,
            self._client_id,
            self._name,
            self._pid,
            self._token,
            self._hello_flags,
            *([self._asked] if self._asked or self._transactional_id else ()),
            *([self._transactional_id] if self._transactional_id else ()),
        ]

    def attach(self, worker_epoch: int, ticket: bytes) -> list[Any]:
        """The ATTACH message for the worker that the controller named."""
        return [
            Kind.ATTACH,
            PROTOCOL_VERSION,
            self._client_id,
            self._name,
            self._pid,
            worker_epoch,
            ticket,
            self.secret,
        ]
