"""TransactionCalls: the calls of transactions of a Producer, as in Kafka's Java producer 4.x."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from client_stub.engine.consumers import consumer_of
from client_stub.engine.engine import Engine
from client_stub.engine.transactions import Transactions
from client_stub.errors import SidecarError
from client_stub.outbox.inclusion import Inclusion
from client_stub.records.arguments import check_up_to
from client_stub.records.offsets import GroupMetadata, Offsets


class TransactionCalls:
    """Thread-safe; one call at a time: another thread's gets TransactionStateError. Each call that waits raises
    TransactionTimeout after ``timeout`` seconds (None: max_block_ms); the same call again waits for the same answer.

    All raise TransactionError, whose ``abortable``, ``fatal`` and ``retriable`` say what is possible then, and
    TransactionStateError in a wrong state, in a forked child, and for a producer without a transactional id.
    """

    _engine: Engine

    @property
    def _transactions(self) -> Transactions:
        return self._engine.transactions

    def init_transactions(self, timeout: float | None = None) -> None:
        """Get the transactional id: fence its earlier producer and abort what that one has left open. Once, before the
        first transaction (Kafka's initTransactions).
        """
        self._transactions.run(self._transactions.init, timeout)

    def begin_transaction(self) -> None:
        """Begin a transaction: records sent from here on belong to it. Waits for nothing."""
        self._transactions.begin()

    def send_offsets_to_transaction(
        self, offsets: Offsets, group: GroupMetadata | str, timeout: float | None = None
    ) -> None:
        """Commit a consumer's offsets with the transaction, as ``{("orders", 0): 17}``: the next ones to read. The
        consumer must not commit by itself.
        """
        self._transactions.run(lambda: self._transactions.offsets(offsets, group), timeout)

    def include(self, tokens: Iterable[bytes], timeout: float | None = None) -> Inclusion:
        """Make the records of sealed stages this transaction's, by their tokens, all in one call. They are sent from
        here on, and belong to it as its own do.

        Fails before anything is sent if a token is unknown, used, dropped, of another daemon or of another
        transactional id; the transaction must then be aborted.
        """
        transactions = self._transactions
        inclusion = transactions.run(lambda: transactions.include(tokens), timeout)
        return Inclusion(0, 0) if inclusion is None else inclusion

    def drop_stages(
        self, tokens: Iterable[bytes] = (), *, up_to: int | None = None, timeout: float | None = None
    ) -> int:
        """Forget sealed stages of this transactional id: those of the ``tokens``, and with ``up_to`` all, open ones
        too, whose number is not greater. Returns how many it has dropped.
        """
        check_up_to(up_to)
        transactions, transactional_id = self._transactions, self._engine.transactional_id
        return int(
            transactions.run(lambda: transactions.drop_stages(transactional_id, tokens, up_to), timeout)
        )

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Send all, wait for all, and commit. Fails with an ``abortable`` error when any record of the transaction has
        failed, whether or not anybody looked at it. Its consumers see it whole, or nothing of it.
        """
        self._transactions.run(self._transactions.commit, timeout)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """End the transaction so that no consumer with read_committed sees anything of it. Records that were not sent
        yet fail with TransactionAborted.
        """
        self._transactions.run(self._transactions.abort, timeout)

    @contextmanager
    def transaction(self, consumer: object = None) -> Iterator[None]:
        """A transaction around a ``with`` block: commits at its end, aborts on an exception. Calls init_transactions()
        unless that was done.

        With a ``consumer`` (of confluent-kafka or kafka-python, which must not commit by itself) its positions at the
        end of the block are committed with the transaction; after an abort it is back at its committed offsets, to read
        again what was read.
        """
        transactions = self._transactions
        reader = None if consumer is None else consumer_of(consumer)
        if transactions.is_uninitialized:
            self.init_transactions()
        self.begin_transaction()
        try:
            yield
            if reader is not None:
                self.send_offsets_to_transaction(reader.positions(), reader.group())
            self.commit_transaction()
        except BaseException as error:
            if transactions.is_open:
                try:
                    self.abort_transaction()
                except SidecarError as failed:
                    error.add_note(f"The transaction could not be aborted: {failed}")
            elif not transactions.is_lost:
                raise  # a commit that has no result yet
            if reader is not None:
                reader.seek_back()
            raise
