"""StagingMemoryDaemon: the daemon in memory of a client that fills stages."""

from __future__ import annotations

from client_stub.contract.wire import StagePart
from client_stub.errors import TransactionError
from client_stub.fakes.memory_daemon import MemoryDaemon
from client_stub.fakes.sealed_stages import SealedStage, sealed_stages
from client_stub.fakes.transactional_memory_daemon import TransactionalMemoryDaemon
from client_stub.outbox.open_stage import OpenStage
from client_stub.outbox.txn_call import TxnCall


class StagingMemoryDaemon(TransactionalMemoryDaemon):
    """Keeps what is sealed in ``sealed_stages``. Its controls are those of the producer that opens the stages."""

    parent: MemoryDaemon

    def follow(self, parent: MemoryDaemon) -> None:
        """Take the controls from ``parent``."""
        self.parent = parent
        parent.followers.append(self)

    def work(self) -> None:
        self.fail_with, self.is_held = self.parent.fail_with, self.parent.is_held
        super().work()

    def _is_blocked(self) -> bool:
        return self.is_held and bool(self._calls) and self._calls[0].part is StagePart.SEAL

    def _answer(self, call: TxnCall) -> None:
        stage = call.transaction
        if not isinstance(stage, OpenStage):  # DROPPED
            super()._answer(call)
            return
        if call.part is StagePart.SEAL and stage.cause is not None:
            call.end(stage.error())
            return
        for other in [each for each in self._calls if each.is_replaced_by_drop]:
            self._calls.remove(other)
            other.end(TransactionError("The stage was dropped.", abortable=True))
        records, self._open = self._open, []
        if call.part is StagePart.SEAL:
            token = sealed_stages.seal(SealedStage(stage.transactional_id, stage.given_number, records))
            self.parent.staged_tokens.append(token)
            call.value = token
        call.end()
