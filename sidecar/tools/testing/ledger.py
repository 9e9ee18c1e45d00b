"""The check at the end of every kind of test: accepted = delivered + failed, no duplicates, order kept.

A test gives each record an id of (producer, number): producers number their records from 0 in the order of their
send() calls. The test enters the records that producers sent, their outcomes, and the records that a reader of the
topic found. :meth:`Ledger.problems` lists every disagreement.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

SHOWN_MAX = 5


class RecordId(NamedTuple):
    producer: str
    number: int

    def encode(self) -> bytes:
        """Return the record value for this id; more bytes may follow after the ``|``."""
        return f"{self.producer}/{self.number}|".encode()

    @classmethod
    def decode(cls, value: bytes) -> RecordId:
        """Return the id in a record value; raises ValueError when there is none."""
        producer, _, number = value.split(b"|", 1)[0].decode().rpartition("/")
        return cls(producer, int(number))


class Ledger:
    """Compares records sent, outcomes and records read. Not thread-safe; fill it from the producers' reports."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}
        self._delivered: Counter[RecordId] = Counter()
        self._failed: Counter[RecordId] = Counter()
        self._possibly: set[RecordId] = set()
        self._read: Counter[RecordId] = Counter()
        self._order: dict[tuple[str, int], list[int]] = defaultdict(list)

    def sent(self, producer: str, count: int) -> None:
        """Note that ``producer`` sent ``count`` more records, with the next numbers."""
        self._sent[producer] = self._sent.get(producer, 0) + count

    def delivered(self, record: RecordId) -> None:
        self._delivered[record] += 1

    def delivered_up_to(self, producer: str, count: int) -> None:
        """Note that each of the first ``count`` records of ``producer`` was delivered once."""
        self._delivered.update(RecordId(producer, number) for number in range(count))

    def failed(self, record: RecordId, *, possibly_persisted: bool = False) -> None:
        self._failed[record] += 1
        if possibly_persisted:
            self._possibly.add(record)

    def read(self, record: RecordId, partition: int) -> None:
        """Note that the reader found ``record`` next in ``partition``. Call it in the order of offsets."""
        self._read[record] += 1
        self._order[record.producer, partition].append(record.number)

    def read_all(self, records: Iterable[tuple[RecordId, int]]) -> None:
        for record, partition in records:
            self.read(record, partition)

    def problems(self, *, idempotent: bool = True) -> list[str]:
        """Return every disagreement as one sentence; an empty list means that all counts agree.

        Without ``idempotent`` (acks 0/1) a record may be in the topic more than once and order is not kept.
        """
        problems: list[str] = []
        everything = {RecordId(name, number) for name, count in self._sent.items() for number in range(count)}
        decided = self._delivered + self._failed

        def report(text: str, records: Iterable[RecordId]) -> None:
            found = sorted(records)
            if found:
                shown = ", ".join(f"{record.producer}/{record.number}" for record in found[:SHOWN_MAX])
                more = f" and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
                problems.append(f"{len(found)} records {text}: {shown}{more}")

        report("never got an outcome", everything - decided.keys())
        report("got an outcome but were never sent", decided.keys() - everything)
        report("got more than one outcome", (record for record, count in decided.items() if count > 1))
        report("were acked and are not in the topic", self._delivered.keys() - self._read.keys())
        report("are in the topic and were never sent", self._read.keys() - everything)
        report(
            "failed, certainly not persisted, and are in the topic",
            (record for record in self._failed if record in self._read and record not in self._possibly),
        )
        if idempotent:
            report("are in the topic more than once", (r for r, count in self._read.items() if count > 1))
            for (producer, partition), numbers in sorted(self._order.items()):
                swapped = next((i for i in range(1, len(numbers)) if numbers[i] < numbers[i - 1]), None)
                if swapped is not None:
                    problems.append(
                        f"order of {producer} in partition {partition} broken: record {numbers[swapped]} "
                        f"came after {numbers[swapped - 1]}"
                    )
        return problems

    def check(self, *, idempotent: bool = True) -> None:
        """Raise AssertionError with every problem."""
        problems = self.problems(idempotent=idempotent)
        assert not problems, "the ledger does not balance:\n" + "\n".join(problems)
