"""ClientOutcomes: a decided outcome that a session keeps until its client has the outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from sidecar.deadletter.letters import Undelivered
    from sidecar.kernel import Entry
    from sidecar.shm.client_table import ClientRow

NameOf: TypeAlias = Callable[["Entry"], bytes]
"""Gives the name of an entry's submission (sidecar/shm/submission_name.py)."""


class ClientOutcomes(Protocol):
    """Outcomes for one client that are released together. Writing them can be resumed."""

    row: int
    generation: int

    @property
    def outcomes(self) -> int:
        """Number of outcomes. Records of one entry that failed before sending may share one."""

    @property
    def is_failure(self) -> bool: ...

    @property
    def may_be_letter(self) -> bool:
        """Whether its records become dead letters if their client is gone: those of a transaction end with it."""

    @property
    def topic(self) -> str:
        """Topic of the first record."""

    @property
    def record_count(self) -> int: ...

    def write(self, row: ClientRow) -> bool:
        """Write outcomes to the outcome ring. False if it is full; a further call continues after the last one
        written.
        """

    def undelivered(self, row: ClientRow | None, name_of: NameOf) -> list[Undelivered]:
        """The records as dead letters. ``row`` is None if the client no longer has a row."""

    def release(self, *, dead: bool = False) -> None:
        """Mark the records' words as done: the client has the outcomes, or the records are ``dead`` letters."""
