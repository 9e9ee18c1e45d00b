"""The ledger of a run with transactions, as a reader of committed records sees them: each is there whole, or nothing
of it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from sidecar.tools.chaos.client import RECORD_ID
from sidecar.tools.chaos.client_journal import ClientJournal, Head
from sidecar.tools.chaos.ledger import Account, ChaosLedger, Counts
from sidecar.tools.chaos.transactional_client import TRANSACTION, VALUE_BYTES_MIN


@dataclass
class TransactionCounts:
    """Numbers of transactions."""

    begun: int = 0
    committed: int = 0
    """Told so to their clients."""
    aborted_by_fault: int = 0
    """Ended by an error; sent again by a program that wants it."""
    found: int = 0
    """With records in the topic."""
    half: int = 0
    """With some of their records in the topic, and not with others."""
    producers_lost: int = 0
    """Fatal errors of clients that were not killed."""

    @property
    def wrong(self) -> dict[str, int]:
        """The counts that must be zero and are not."""
        return {name: value for name in ("half", "producers_lost") if (value := getattr(self, name))}


class TransactionalAccount(Account):
    """One client's records. A transaction of which it never heard the end may be there or not."""

    def __init__(self, number: int, journal: ClientJournal) -> None:
        super().__init__(number, journal)
        self._sizes: dict[int, int] = {}
        """Records of each transaction that was found, by its first number."""

    def note_transaction(self, first: int, size: int) -> None:
        self._sizes[first] = size

    def _must_be_there(self, number: int) -> bool:
        return False

    def add_to(self, counts: TransactionCounts) -> None:
        """Count its transactions, after everything was read."""
        counts.begun += self._head[Head.TRANSACTIONS]
        counts.committed += self._head[Head.COMMITTED]
        counts.aborted_by_fault += self._head[Head.ABORTED_BY_FAULT]
        counts.producers_lost += self._head[Head.PRODUCERS_LOST]
        counts.found += len(self._sizes)
        for first, size in self._sizes.items():
            found = sum(1 for word in self._found[first : first + size] if word)
            if found < size:
                counts.half += 1
                self._show(first, f"and its transaction are there by {found} of {size} records")


class TransactionalLedger(ChaosLedger):
    """The ledger of all clients of one run. Pass it every committed message of the topic, then call :meth:`close`."""

    def __init__(self, run: int) -> None:
        super().__init__(run)
        self.transactions = TransactionCounts()
        self._transactional: dict[int, TransactionalAccount] = {}
        """The same accounts."""

    def open_account(self, number: int, journal: ClientJournal) -> None:
        self.accounts[number] = self._transactional[number] = TransactionalAccount(number, journal)

    def read(self, value: bytes | None, partition: int, offset: int) -> None:
        super().read(value, partition, offset)
        if value is None or len(value) < VALUE_BYTES_MIN:
            return
        run, client, _ = RECORD_ID.unpack_from(value)
        account = self._transactional.get(client)
        if run == self.run and account is not None:
            account.note_transaction(*TRANSACTION.unpack_from(value, RECORD_ID.size))

    def close(self, killed: Container[int]) -> Counts:
        for account in self._transactional.values():
            account.add_to(self.transactions)
        return super().close(killed)
