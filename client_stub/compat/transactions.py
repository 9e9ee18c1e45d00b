"""The calls of transactions under confluent-kafka's names. A program calls them, in any of its threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from client_stub.compat.kafka_error import KafkaException, error_of
from client_stub.engine.consumers import offsets_of, parsed_group
from client_stub.engine.engine import Engine
from client_stub.engine.transactions import Transactions
from client_stub.errors import SidecarError
from client_stub.outbox.txn_call import TxnCall

FOR_EVER_S: Final = 7 * 86_400.0
"""For librdkafka's timeout of -1."""


class ConfluentTransactions:
    """Each raises KafkaException with a KafkaError whose retriable(), fatal() and txn_requires_abort() say what is
    possible. ``timeout`` is in seconds; -1 waits without limit.
    """

    _engine: Engine

    def init_transactions(self, timeout: float = -1) -> None:
        """Get the transactional id, once, before the first transaction."""
        self._transact(Transactions.init, timeout)

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        try:
            self._engine.transactions.begin()
        except SidecarError as error:
            raise KafkaException(error_of(error)) from error

    def send_offsets_to_transaction(
        self, positions: Iterable[Any], group_metadata: Any, timeout: float = -1
    ) -> None:
        """Commit ``consumer.position(...)`` with the transaction, for ``consumer.consumer_group_metadata()``."""
        offsets = offsets_of(positions)
        group = parsed_group(group_metadata)
        self._transact(lambda transactions: transactions.offsets(offsets, group), timeout)

    def commit_transaction(self, timeout: float = -1) -> None:
        """Send all, wait for all, and commit."""
        self._transact(Transactions.commit, timeout)

    def abort_transaction(self, timeout: float = -1) -> None:
        """End the transaction so that nobody with read_committed sees it."""
        self._transact(Transactions.abort, timeout)

    def _transact(self, begin: Callable[[Transactions], TxnCall | None], timeout: float) -> None:
        try:
            transactions = self._engine.transactions
            seconds = FOR_EVER_S if timeout is None or timeout < 0 else timeout
            transactions.run(lambda: begin(transactions), seconds)
        except SidecarError as error:
            raise KafkaException(error_of(error)) from error
