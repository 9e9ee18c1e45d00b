"""TransactionalMemoryDaemon: a MemoryDaemon whose records are seen once their transaction has committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from client_stub.contract.wire import StagePart, TxnPart
from client_stub.errors import TransactionError
from client_stub.fakes.memory_daemon import FakeRecord, MemoryDaemon
from client_stub.fakes.sealed_stages import sealed_stages
from client_stub.outbox.txn_call import TxnCall

if TYPE_CHECKING:
    from client_stub.outbox.submission import Submission
    from client_stub.outbox.transactional_outbox import TransactionalOutbox


class TransactionalMemoryDaemon(MemoryDaemon):
    """Answers calls of transactions in the thread that makes them. While outcomes are held, a commit has no answer."""

    def __init__(self, outbox: TransactionalOutbox, transactional_id: str) -> None:
        super().__init__(outbox)
        self._transactional_id = transactional_id
        self._included: dict[tuple[str, int], list[int]] = {}
        """(topic, partition) → first offset, last offset and number of the records that the transaction includes."""
        self._transactional_outbox = outbox
        self._calls: list[TxnCall] = []
        self._open: list[FakeRecord] = []
        """Written, of the transaction that is open."""
        self._open_offsets: dict[str, dict[tuple[str, int], int]] = {}

    def work(self) -> None:
        super().work()
        self._calls += [each for each in self._transactional_outbox.take_calls() if each not in self._calls]
        while self._calls and not self._is_blocked():
            self._answer(self._calls.pop(0))
            self._transactional_outbox.calls_ended(None)

    def _is_blocked(self) -> bool:
        """Whether the oldest call has no answer yet, as outcomes are held."""
        return self.is_held and bool(self._calls) and self._calls[0].commits

    def _written(self, submission: Submission, record: FakeRecord) -> None:
        self._open.append(record)

    def _answer(self, call: TxnCall) -> None:
        transaction = call.transaction
        if call.part is TxnPart.OFFSETS:
            group = call.fields[1]
            for topic, partition, offset, _, _ in msgpack.unpackb(call.payload):
                self._open_offsets.setdefault(group, {})[topic, partition] = offset
        elif call.part is TxnPart.INCLUDE:
            self._include(call)
            return
        elif call.part is StagePart.DROPPED:
            _, transactional_id, up_to = call.fields
            call.value = sealed_stages.drop(msgpack.unpackb(call.payload), transactional_id, up_to)
        elif call.part is TxnPart.END:
            if call.commits and transaction is not None and transaction.cause is not None:
                call.end(transaction.error())
                return
            if call.commits:
                call.value = [[*where, *ends] for where, ends in self._included.items()]
                self.committed += self._open
                for group, offsets in self._open_offsets.items():
                    self.committed_offsets.setdefault(group, {}).update(offsets)
            self._open, self._open_offsets, self._included = [], {}, {}
        call.end()

    def _include(self, call: TxnCall) -> None:
        """Write the records of stages as the transaction's own."""
        transaction = call.transaction
        assert transaction is not None
        try:
            records = sealed_stages.take(msgpack.unpackb(call.payload), self._transactional_id)
            for record in records:
                error = self._error_of(record)
                if error is not None:
                    transaction.fail(error)
                    continue
                partition, offset = self._position_of(record)
                ends = self._included.setdefault((record.topic, partition), [offset, offset, 0])
                ends[1:] = [offset, ends[2] + 1]
                self._open.append(record)
        except TransactionError as error:
            transaction.fail(error)
            call.end(error)
            return
        self.records += records
        size = sum(len(record.key or b"") + len(record.value or b"") for record in records)
        call.value = [len(records), size]
        call.end()
