"""Goal: the ledger of a chaos run sees every kind of wrong, for living and for killed clients, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sidecar.tools.chaos.client import RECORD_ID
from sidecar.tools.chaos.client_journal import ClientJournal, Head, delivered_word, failed_word
from sidecar.tools.chaos.ledger import Account, ChaosLedger, Counts

RUN = 99
Judged = Callable[..., ChaosLedger]


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[Judged]:
    """``judged(sent, told, found, killed=)``: told = number → offset, or the word; found = numbers in their order."""
    journals: list[ClientJournal] = []

    def judge(
        sent: int, told: dict[int, Any], found: Sequence[int], *, killed: bool = False, partition: int = 2
    ) -> ChaosLedger:
        journal = ClientJournal.create(tmp_path / f"client-{len(journals)}", max(100, sent))
        journals.append(journal)
        journal.head[Head.SENT] = sent
        for number, what in told.items():
            journal.words[number] = what if what >= 1 << 60 else delivered_word(2, what)
        ledger = ChaosLedger(RUN, {4: Account(4, journal)})
        for offset, number in enumerate(found):
            ledger.read(RECORD_ID.pack(RUN, 4, number) + b"...", partition, offset)
        ledger.close({4} if killed else ())
        return ledger

    yield judge
    for journal in journals:
        journal.close()


def test_all_well(judged: Judged) -> None:
    counts = judged(3, {0: 0, 1: 1, 2: 2}, [0, 1, 2]).counts
    assert counts == Counts(sent=3, found=3, told_delivered=3)
    assert not counts.wrong


@pytest.mark.parametrize(
    ("sent", "told", "found", "wrong"),
    [
        pytest.param(2, {0: 0, 1: 1}, [0], {"lost": 1}, id="lost"),
        pytest.param(2, {0: 0, 1: 1}, [0, 1, 1], {"doubled": 1}, id="doubled"),
        pytest.param(2, {0: 1, 1: 0}, [1, 0], {"reordered": 1}, id="reordered"),
        pytest.param(2, {0: 0, 1: 7}, [0, 1], {"wrong_offset": 1}, id="wrong offset"),
        pytest.param(2, {0: 0}, [0, 1], {"never_told": 1}, id="never told"),
        pytest.param(1, {0: 0}, [0, 1], {"never_sent": 1}, id="never sent"),
        pytest.param(
            1, {0: failed_word(possibly_persisted=False)}, [0], {"failed_yet_there": 1}, id="failed, there"
        ),
    ],
)
def test_each_wrong_is_seen(
    judged: Judged, sent: int, told: dict[int, int], found: list[int], wrong: dict[str, int]
) -> None:
    ledger = judged(sent, told, found)
    assert ledger.counts.wrong == wrong
    assert len(ledger.examples) == 1
    assert "client 4" in ledger.examples[0]


def test_a_wrong_partition_is_a_wrong_offset(judged: Judged) -> None:
    assert judged(1, {0: 0}, [0], partition=3).counts.wrong == {"wrong_offset": 1}


def test_a_callback_that_came_twice(judged: Judged, tmp_path: Path) -> None:
    journal = ClientJournal.create(tmp_path / "twice", 10)
    journal.head[Head.DECIDED_TWICE] = 1
    assert Account(1, journal).close(killed=False).wrong == {"told_twice": 1}
    journal.close()


def test_uncertain_outcomes_are_not_judged_wrong(judged: Judged) -> None:
    """Possibly persisted may be there or not; an offset may be unknown."""
    told = {0: failed_word(possibly_persisted=True), 1: failed_word(possibly_persisted=True), 2: -1}
    told[2] = delivered_word(2, -1)
    counts = judged(3, told, [1, 2]).counts
    assert not counts.wrong
    assert (counts.told_failed, counts.possibly_persisted, counts.offset_unknown) == (2, 2, 1)


def test_a_killed_clients_records_are_a_prefix(judged: Judged) -> None:
    counts = judged(6, {0: 0}, [0, 1, 2], killed=True).counts
    assert not counts.wrong
    assert (counts.untold_found, counts.untold_gone) == (2, 3)
    assert judged(6, {0: 0}, [0, 1, 3], killed=True).counts.wrong == {"lost": 1}
    assert judged(6, {5: 5}, [0, 1], killed=True).counts.wrong == {"lost": 1}


def test_many_that_are_well_and_one_that_is_not(judged: Judged) -> None:
    """Whole parts of a client's records are compared at once; a wrong one in a later part is seen."""
    sent = 3 * 4_096 + 5
    places = {number: number for number in range(sent)}
    assert judged(sent, places, range(sent)).counts == Counts(sent=sent, found=sent, told_delivered=sent)
    assert judged(sent, places | {9_000: 1}, range(sent)).counts.wrong == {"wrong_offset": 1}
    assert judged(sent, places, range(sent - 1)).counts.wrong == {"lost": 1}
    counts = judged(sent, {}, range(sent - 7), killed=True).counts
    assert (counts.wrong, counts.untold_found, counts.untold_gone) == ({}, sent - 7, 7)


def test_strangers_in_the_topic(judged: Judged) -> None:
    ledger = judged(0, {}, [])
    for value in (None, b"short", RECORD_ID.pack(RUN + 1, 4, 0)):
        ledger.read(value, 0, 0)
    assert ledger.foreign == 3
    assert not ledger.counts.wrong


def test_a_journal_outlives_its_writer(tmp_path: Path) -> None:
    """Stored records are in the file at once, for everybody who opens it."""
    journal = ClientJournal.create(tmp_path / "journal", 10)
    other = ClientJournal.open(tmp_path / "journal")
    other.words[9] = delivered_word(5, (1 << 43) + 1)
    other.raised("ValueError: é")
    assert journal.words[9] == delivered_word(5, (1 << 43) + 1)
    assert journal.raised_text == "ValueError: é"
    other.close()
    journal.close()
