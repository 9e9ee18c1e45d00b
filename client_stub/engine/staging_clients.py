"""StagingClients: the clients through which one producer fills stages.

A client fills one stage at a time, and is used again after it: stages that are open at once have a client each. So the
records of a stage need no mark of their own in the outbox, and a stage that waits for room holds up no other.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from client_stub.engine.stage_life import StageLife
from client_stub.outbox.transactional_outbox import TransactionalOutbox
from client_stub.records.arguments import check_stage, check_transactional_id

if TYPE_CHECKING:
    from client_stub.io.io_thread import IoThread
    from client_stub.outbox.outbox import Outbox


IDLE_MAX: Final = 8
"""Clients of one producer that are kept for the next stages, of whichever transactional ids."""


class StagingClient(Protocol):
    """The engine of a client that fills stages."""

    outbox: Outbox
    max_block_ms: float

    @property
    def transactional_id(self) -> str: ...

    def start(self) -> None: ...

    def begin_close(self) -> IoThread | None: ...

    def end_close(self) -> None: ...


_Client = TypeVar("_Client", bound=StagingClient)


class StagingClients(Generic[_Client]):
    """Those of one producer. Thread-safe; a forked child has those that no stage of the parent uses."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._idle: list[_Client] = []
        """Those without a stage, the one used last at the end. Each change is one atomic step."""
        self._used: weakref.WeakKeyDictionary[_Client, None] = weakref.WeakKeyDictionary()
        """Those with an open stage, which owns them. Its keyrefs() is one atomic copy."""
        self._leaving: list[IoThread] = []

    def open(
        self, make: Callable[[str], _Client], transactional_id: str, number: int, owner: str
    ) -> tuple[_Client, StageLife]:
        """A client, which ``make`` makes where none is free, and its open stage. Raises TypeError and ValueError for
        wrong arguments.
        """
        check_transactional_id(transactional_id)
        check_stage(number, owner)
        client = self._take_idle(transactional_id) or make(transactional_id)
        outbox = client.outbox
        assert isinstance(outbox, TransactionalOutbox)
        self._used[client] = None
        life = StageLife(
            outbox, client.start, client.max_block_ms, next(self._numbers), transactional_id, number, owner
        )
        return client, life

    def _take_idle(self, transactional_id: str) -> _Client | None:
        """The idle client of this id that was used last, if there is one."""
        for client in reversed(self._idle.copy()):
            if client.transactional_id == transactional_id and self._takes(client):
                return client
        return None

    def _takes(self, client: _Client) -> bool:
        """Whether this thread gets an idle client. False if another one was first."""
        try:
            self._idle.remove(client)
        except ValueError:
            return False
        return True

    def give_back(self, client: _Client) -> None:
        """Take back the client of a stage that is sealed or dropped. Only some are kept for the next stages."""
        self._used.pop(client, None)
        if client.outbox.closed:
            return
        self._idle.append(client)
        for longest_idle in self._idle[:-IDLE_MAX]:
            if self._takes(longest_idle):
                self._end(longest_idle, cancels=False)

    def begin_close(self) -> None:
        """End the clients; stages that are open are dropped."""
        idle = self._idle.copy()
        used = [client for ref in self._used.keyrefs() if (client := ref()) is not None]
        for client in (*idle, *used):
            self._end(client, cancels=client in used)

    def _end(self, client: _Client, *, cancels: bool) -> None:
        io = client.begin_close()
        if io is not None:
            io.request_close(cancel=cancels)
            self._leaving = [each for each in self._leaving if not each.has_ended]
            self._leaving.append(io)
        client.end_close()

    def join(self, timeout: float) -> None:
        """Wait for the threads of the clients that ``begin_close`` has ended."""
        for io in self._leaving:
            io.join(timeout)
