"""The ledger of a chaos run: compares the outcome of every record with the topic.

It is made for tens of millions of records: where :class:`sidecar.tools.testing.ledger.Ledger` keeps objects, the
clients' journals have two mapped words per record, its outcome and its place. The rules are the same, with one more
for a killed client. Its outcomes are certain, and of its other records a *prefix* is in the topic, without gaps. The
daemon accepts a stream's records in order and loses none that it accepted.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from sidecar.tools.chaos.client import RECORD_ID
from sidecar.tools.chaos.client_journal import (
    DELIVERED,
    FAILED,
    POSSIBLY,
    ClientJournal,
    Head,
    delivered_word,
    word_kind,
    word_place,
)

SHOWN_MAX = 5
_CHUNK = 4_096


@dataclass
class Counts:
    """Numbers of records. Those of the first group must all be zero."""

    lost: int = 0
    """Acknowledged and not in the topic, or a gap in the records of a killed client."""
    doubled: int = 0
    reordered: int = 0
    wrong_offset: int = 0
    """Acknowledged at a place that has another record."""
    failed_yet_there: int = 0
    """Failed as certainly not in the log, but in the topic."""
    never_sent: int = 0
    never_told: int = 0
    """Records without an outcome, of clients that were not killed."""
    told_twice: int = 0

    sent: int = 0
    found: int = 0
    """Records in the topic, each counted once."""
    told_delivered: int = 0
    offset_unknown: int = 0
    """Acknowledged without an offset, as the broker did not know it."""
    told_failed: int = 0
    possibly_persisted: int = 0
    untold_found: int = 0
    """Delivered for a client that was killed before it got the outcome."""
    untold_gone: int = 0
    """Sent by a killed client and never accepted by the daemon."""

    @property
    def wrong(self) -> dict[str, int]:
        """The counts of the first group that are not zero."""
        names = (
            "lost",
            "doubled",
            "reordered",
            "wrong_offset",
            "failed_yet_there",
            "never_sent",
            "never_told",
            "told_twice",
        )
        return {name: getattr(self, name) for name in names if getattr(self, name)}


class Account:
    """One client's records: outcomes from its journal, places from the reader, which may read while the client runs."""

    def __init__(self, number: int, journal: ClientJournal) -> None:
        self.number = number
        self._head = journal.head
        self._words = journal.words
        self._found = journal.found
        self._last: dict[int, int] = {}
        self._last_found = -1
        self.examples: list[str] = []
        self._counts = Counts()

    def read(self, number: int, partition: int, offset: int) -> None:
        """Note that the reader found record ``number`` next in ``partition``; called in the order of offsets."""
        if number >= self._head[Head.SENT]:
            self._counts.never_sent += 1
            self._show(number, f"is at {partition}/{offset} and was never sent")
            return
        if self._found[number]:
            self._counts.doubled += 1
            self._show(number, f"is once more at {partition}/{offset}")
            return
        self._found[number] = delivered_word(partition, offset)
        self._last_found = max(self._last_found, number)
        if number < self._last.get(partition, -1):
            self._counts.reordered += 1
            self._show(number, f"is at {partition}/{offset}, behind {self._last[partition]}")
        else:
            self._last[partition] = number

    def close(self, *, killed: bool) -> Counts:
        """Compare the outcomes with the topic, after the client has ended or was ``killed``, and all was read."""
        counts, words, found = self._counts, self._words, self._found
        counts.sent, counts.told_twice = self._head[Head.SENT], self._head[Head.DECIDED_TWICE]
        for start in range(0, counts.sent, _CHUNK):
            end = min(start + _CHUNK, counts.sent)
            outcomes = words[start:end].tobytes()
            # The common case: everything was delivered, and is where it was acknowledged.
            if outcomes == found[start:end].tobytes() and not words[start:end].tolist().count(0):
                counts.found += end - start
                counts.told_delivered += end - start
                continue
            for number in range(start, end):
                self._book(number, killed=killed)
        return counts

    def _book(self, number: int, *, killed: bool) -> None:
        counts, word, place = self._counts, self._words[number], self._found[number]
        kind = word_kind(word)
        if place:
            counts.found += 1
        if kind == DELIVERED:
            counts.told_delivered += 1
            acked = word_place(word)
            if acked[1] < 0:
                counts.offset_unknown += 1
            if not place:
                counts.lost += 1
                self._show(number, f"was acked at {acked} and is not there")
            elif word != place and (acked[1] >= 0 or acked[0] != word_place(place)[0]):
                counts.wrong_offset += 1
                self._show(
                    number,
                    f"was acked at {acked[0]}/{acked[1]} and is at {'/'.join(map(str, word_place(place)))}",
                )
        elif kind in (FAILED, POSSIBLY):
            counts.told_failed += 1
            if kind == POSSIBLY:
                counts.possibly_persisted += 1
            elif place:
                counts.failed_yet_there += 1
                self._show(number, "failed for certain and is there")
        elif not killed:
            counts.never_told += 1
            self._show(number, "never got an outcome")
        elif place:
            counts.untold_found += 1
        elif self._must_be_there(number):
            counts.lost += 1
            self._show(number, f"is not there, but later ones up to {self._last_found} are")
        else:
            counts.untold_gone += 1

    def _must_be_there(self, number: int) -> bool:
        """Whether a record of a killed client that never got an outcome was taken all the same: a later one was."""
        return number < self._last_found

    def _show(self, number: int, text: str) -> None:
        if len(self.examples) < SHOWN_MAX:
            self.examples.append(f"record {number} of client {self.number} {text}")


@dataclass
class ChaosLedger:
    """The ledger of all clients of one run. Pass it every message of the topic, then call :meth:`close`."""

    run: int
    accounts: dict[int, Account] = field(default_factory=dict)
    foreign: int = 0
    """Messages of other runs in the topic."""
    counts: Counts = field(default_factory=Counts)
    examples: list[str] = field(default_factory=list)

    def open_account(self, number: int, journal: ClientJournal) -> None:
        """Open the account of client ``number``."""
        self.accounts[number] = Account(number, journal)

    def read(self, value: bytes | None, partition: int, offset: int) -> None:
        if value is None or len(value) < RECORD_ID.size:
            self.foreign += 1
            return
        run, client, number = RECORD_ID.unpack_from(value)
        if run != self.run:
            self.foreign += 1
            return
        account = self.accounts.get(client)
        if account is None:
            self.counts.never_sent += 1
            return
        account.read(number, partition, offset)

    def close(self, killed: Container[int]) -> Counts:
        """Sum up. ``killed``: the numbers of the killed clients. ``examples`` then names the first wrong records."""
        for account in self.accounts.values():
            found = account.close(killed=account.number in killed)
            for name in Counts.__dataclass_fields__:
                setattr(self.counts, name, getattr(self.counts, name) + getattr(found, name))
            self.examples += account.examples[: SHOWN_MAX - len(self.examples)]
        return self.counts
