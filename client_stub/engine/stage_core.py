"""StageCore: what Stage and AsyncStage share: the client that fills the stage, and who is using it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from client_stub.records.habits import no_pickle

if TYPE_CHECKING:
    from client_stub.engine.engine import Engine
    from client_stub.engine.stage_life import StageLife
    from client_stub.engine.staging_clients import StagingClients
    from client_stub.records.serializers import Serializers

EXIT_DROP_S: Final = 5.0
"""How long the end of a ``with`` block waits for the drop. The daemon drops the stage also once its client leaves."""


class StageCore:
    """A base of both. Thread-safe."""

    def __init__(
        self,
        clients: StagingClients[Engine],
        engine: Engine,
        life: StageLife,
        serializers: Serializers | None,
    ) -> None:
        self._clients = clients
        self._engine = engine
        self._life = life
        self._serializers = serializers
        self._inside: list[None] = []
        """An entry for each call that queues records. Its changes are atomic."""
        self._is_given_back: dict[str, object] = {}

    @property
    def transactional_id(self) -> str:
        return self._life.stage.transactional_id

    @property
    def number(self) -> int:
        return self._life.stage.given_number

    @property
    def owner(self) -> str:
        return self._life.stage.owner

    def _enter(self) -> None:
        """Begin a call that queues records; ``_inside.pop()`` ends it. Before the check: who finds nobody inside after
        the state has changed knows that no record of this stage comes any more.
        """
        self._inside.append(None)
        try:
            self._life.check_open()
        except BaseException:
            self._inside.pop()
            raise

    def _give_back(self) -> None:
        """Let the client be used again, once. Not while another thread may still queue a record: it would join the next
        stage; the garbage collector then ends the client.
        """
        mine = object()
        if self._life.is_at_rest and not self._inside and self._is_given_back.setdefault("by", mine) is mine:
            self._clients.give_back(self._engine)

    def _drops_at_exit(self, error: BaseException | None) -> bool:
        """Whether the end of a ``with`` block drops the stage."""
        return self._life.needs_drop and (error is not None or self._life.token is None)

    def __reduce__(self) -> NoReturn:
        raise no_pickle(type(self).__name__)

    def __repr__(self) -> str:
        life = self._life
        return f"<{type(self).__name__} {self.number} of {self.transactional_id}: {life.state}>"
