"""Completion: a decided fate, as a session keeps it until its client has the outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from sidecar.deadletter.letters import Undelivered
    from sidecar.kernel import Entry
    from sidecar.shm.client_table import ClientRow

NameOf: TypeAlias = Callable[["Entry"], bytes]
"""The name of the submission that an entry is (sidecar/shm/submission_name.py)."""


class Completion(Protocol):
    """Outcomes for one client that are complete together. Writing them can be resumed."""

    row: int
    generation: int

    @property
    def outcomes(self) -> int:
        """How many; records of one entry that failed before sending may share them."""

    @property
    def is_failure(self) -> bool: ...

    @property
    def topic(self) -> str:
        """Of its first record."""

    @property
    def record_count(self) -> int: ...

    def write(self, row: ClientRow) -> bool:
        """Write the outcomes to the outcome ring; False when it is full. What was written is not written again."""

    def undelivered(self, row: ClientRow | None, name_of: NameOf) -> list[Undelivered]:
        """The records as dead letters; ``row`` None: it belongs to somebody else by now, or to nobody."""

    def finish(self, *, dead: bool = False) -> None:
        """The client has its outcomes, or its records are ``dead`` letters: the words may become done."""
