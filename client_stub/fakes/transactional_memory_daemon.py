"""TransactionalMemoryDaemon: a MemoryDaemon whose records are seen once their transaction has committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from client_stub.contract.wire import TxnPart
from client_stub.fakes.memory_daemon import FakeRecord, MemoryDaemon
from client_stub.outbox.txn_call import TxnCall

if TYPE_CHECKING:
    from client_stub.outbox.submission import Submission
    from client_stub.outbox.transactional_outbox import TransactionalOutbox


class TransactionalMemoryDaemon(MemoryDaemon):
    """Answers calls of transactions in the thread that makes them. While outcomes are held, a commit has no answer."""

    def __init__(self, outbox: TransactionalOutbox) -> None:
        super().__init__(outbox)
        self._transactional_outbox = outbox
        self._calls: list[TxnCall] = []
        self._open: list[FakeRecord] = []
        """Written, of the transaction that is open."""
        self._open_offsets: dict[str, dict[tuple[str, int], int]] = {}

    def work(self) -> None:
        super().work()
        self._calls += [each for each in self._transactional_outbox.take_calls() if each not in self._calls]
        while self._calls and not (self.is_held and self._calls[0].commits):
            self._answer(self._calls.pop(0))
            self._transactional_outbox.calls_ended(None)

    def _written(self, submission: Submission, record: FakeRecord) -> None:
        self._open.append(record)

    def _answer(self, call: TxnCall) -> None:
        transaction = call.transaction
        if call.part is TxnPart.OFFSETS:
            group = call.fields[1]
            for topic, partition, offset, _, _ in msgpack.unpackb(call.payload):
                self._open_offsets.setdefault(group, {})[topic, partition] = offset
        elif call.part is TxnPart.END:
            if call.commits and transaction is not None and transaction.cause is not None:
                call.end(transaction.error())
                return
            if call.commits:
                self.committed += self._open
                for group, offsets in self._open_offsets.items():
                    self.committed_offsets.setdefault(group, {}).update(offsets)
            self._open, self._open_offsets = [], {}
        call.end()
