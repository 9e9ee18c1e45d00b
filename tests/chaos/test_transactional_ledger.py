"""Goal: the ledger of a run with transactions sees aborted records, half transactions and lost ones, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from sidecar.tools.chaos.client import RECORD_ID
from sidecar.tools.chaos.client_journal import ClientJournal, Head, delivered_word, failed_word
from sidecar.tools.chaos.transactional_client import TRANSACTION
from sidecar.tools.chaos.transactional_ledger import TransactionalLedger

RUN, CLIENT, SIZE = 99, 4, 3
COMMITTED, ABORTED, UNKNOWN, UNTOLD = "committed", "aborted", "unknown", "untold"
Judged = Callable[..., TransactionalLedger]


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[Judged]:
    """``judged(ends, found, killed=)``: how each transaction of three records ended, and the numbers that were read."""
    journals: list[ClientJournal] = []

    def judge(ends: Sequence[str], found: Sequence[int], *, killed: bool = False) -> TransactionalLedger:
        journal = ClientJournal.create(tmp_path / f"client-{len(journals)}", 100)
        journals.append(journal)
        journal.head[Head.SENT] = SIZE * len(ends)
        journal.head[Head.TRANSACTIONS] = len(ends)
        journal.head[Head.COMMITTED] = ends.count(COMMITTED)
        offsets = {number: found.index(number) for number in found}
        for number in range(SIZE * len(ends)):
            match ends[number // SIZE]:
                case "committed":
                    journal.words[number] = delivered_word(2, offsets.get(number, 77))
                case "aborted":
                    journal.words[number] = failed_word(possibly_persisted=False)
                case "unknown":
                    journal.words[number] = failed_word(possibly_persisted=True)
        ledger = TransactionalLedger(RUN)
        ledger.open_account(CLIENT, journal)
        for offset, number in enumerate(found):
            first = number - number % SIZE
            ledger.read(RECORD_ID.pack(RUN, CLIENT, number) + TRANSACTION.pack(first, SIZE), 2, offset)
        ledger.close({CLIENT} if killed else ())
        return ledger

    yield judge
    for journal in journals:
        journal.close()


@pytest.mark.parametrize(
    ("ends", "found", "killed"),
    [
        pytest.param([COMMITTED, ABORTED, COMMITTED], [0, 1, 2, 6, 7, 8], False, id="aborted ones are gaps"),
        pytest.param([UNKNOWN, COMMITTED], [0, 1, 2, 3, 4, 5], False, id="unknown and there"),
        pytest.param([UNKNOWN, COMMITTED], [3, 4, 5], False, id="unknown and gone"),
        pytest.param([COMMITTED, UNTOLD], [0, 1, 2], True, id="killed before the commit"),
        pytest.param([COMMITTED, UNTOLD], [0, 1, 2, 3, 4, 5], True, id="killed after the commit"),
    ],
)
def test_whole_transactions_are_right(
    judged: Judged, ends: list[str], found: list[int], *, killed: bool
) -> None:
    ledger = judged(ends, found, killed=killed)
    assert not ledger.counts.wrong
    assert not ledger.transactions.wrong
    assert ledger.transactions.begun == len(ends)
    assert ledger.transactions.found == len(found) // SIZE


@pytest.mark.parametrize(
    ("ends", "found", "killed", "wrong"),
    [
        pytest.param([COMMITTED], [], False, {"lost": 3}, id="committed and gone"),
        pytest.param([ABORTED], [0, 1, 2], False, {"failed_yet_there": 3}, id="aborted and there"),
        pytest.param([COMMITTED], [0, 1, 2, 2], False, {"doubled": 1}, id="doubled"),
        pytest.param([COMMITTED, COMMITTED], [3, 4, 5, 0, 1, 2], False, {"reordered": 3}, id="reordered"),
        pytest.param([UNTOLD], [0, 1, 2], False, {"never_told": 3}, id="never told, though it lives"),
    ],
)
def test_wrong_records(
    judged: Judged, ends: list[str], found: list[int], *, killed: bool, wrong: dict[str, int]
) -> None:
    assert judged(ends, found, killed=killed).counts.wrong == wrong


@pytest.mark.parametrize(("end", "killed"), [(UNKNOWN, False), (UNTOLD, True)])
def test_half_transaction_is_wrong_whatever_its_client_was_told(
    judged: Judged, end: str, *, killed: bool
) -> None:
    ledger = judged([end], [0, 2], killed=killed)
    assert ledger.transactions.wrong == {"half": 1}
    assert "2 of 3 records" in " ".join(ledger.examples)
