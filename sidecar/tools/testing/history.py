"""History: a log of records sent, their outcomes and the values read, in the order of events, with its check.

It follows Jepsen's queue workload for Redpanda and Kafka. Every record's value is unique. A ledger compares both ends
once all is over; a history can also be checked while records and readers are under way. It knows offsets, so it
notices when readers disagree about an offset, or when a record is not at the offset of its outcome.

::

    history = History()
    history.sent("caller-1", key, value)                       # before send()
    history.delivered(value, partition, offset)                # or failed(value, possibly_persisted=...)
    history.read("reader-1", partition, offset, value)
    history.check()                                            # any time
    history.check(is_over=True)                                # every record has its outcome, readers are at the ends
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

SHOWN_MAX: Final = 5
UNKNOWN_OFFSET: Final = -1


class Place(NamedTuple):
    partition: int
    offset: int


class _Sent(NamedTuple):
    caller: str
    key: bytes
    number: int
    """Position of this send among the caller's sends to this key."""


class History:
    """Collects events and checks them. Thread-safe.

    Values are any unique bytes. Records of one ``key`` keep their order; usually it is the record's key.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[bytes, _Sent] = {}
        self._numbers: dict[tuple[str, bytes], int] = defaultdict(int)
        self._delivered: dict[bytes, Place] = {}
        self._failed: dict[bytes, bool] = {}
        """Value → possibly persisted."""
        self._decided_again: list[bytes] = []
        self._sent_again: list[bytes] = []
        self._seen_at: dict[bytes, set[Place]] = defaultdict(set)
        self._seen_there: dict[Place, set[bytes]] = defaultdict(set)
        self._highest: dict[int, int] = {}
        self._unseen: set[bytes] = set()
        self._events: list[tuple[float, str, Any]] = []

    # --- events ----------------------------------------------------------------------------------------------

    def sent(self, caller: str, key: bytes, value: bytes) -> None:
        """Note that ``caller`` is about to send. Calls for one caller must not overlap."""
        with self._lock:
            if value in self._sent:
                self._sent_again.append(value)
            self._numbers[caller, key] += 1
            self._sent[value] = _Sent(caller, key, self._numbers[caller, key])

    def delivered(self, value: bytes, partition: int, offset: int) -> None:
        """Note a delivery; ``offset`` is -1 when the outcome names none."""
        with self._lock:
            self._note_outcome(value)
            self._delivered[value] = Place(partition, offset)
            if value not in self._seen_at:
                self._unseen.add(value)

    def failed(self, value: bytes, *, possibly_persisted: bool) -> None:
        """Note a failure."""
        with self._lock:
            self._note_outcome(value)
            self._failed[value] = possibly_persisted

    def read(self, reader: str, partition: int, offset: int, value: bytes) -> None:
        """Note that ``reader`` found this value at this place."""
        place = Place(partition, offset)
        with self._lock:
            self._seen_at[value].add(place)
            self._seen_there[place].add(value)
            self._highest[partition] = max(offset, self._highest.get(partition, -1))
            self._unseen.discard(value)
            if len(self._seen_there[place]) > 1:
                self._events.append(
                    (time.time(), "differs", [reader, *place, value.decode(errors="replace")])
                )

    def happened(self, what: str) -> None:
        """Note a fault or a repair, so that it appears in the dump."""
        with self._lock:
            self._events.append((time.time(), "nemesis", what))

    def _note_outcome(self, value: bytes) -> None:
        if value in self._delivered or value in self._failed:
            self._decided_again.append(value)

    # --- state -----------------------------------------------------------------------------------------------

    @property
    def counts(self) -> dict[str, int]:
        """Number of values that were sent, delivered, failed, possibly persisted (of those failed), and read."""
        with self._lock:
            return {
                "sent": len(self._sent),
                "delivered": len(self._delivered),
                "failed": len(self._failed),
                "possibly persisted": sum(self._failed.values()),
                "read": len(self._seen_at),
            }

    @property
    def unseen(self) -> int:
        """Number of delivered values that no reader has seen yet. It falls to 0 once faults are over."""
        with self._lock:
            return len(self._unseen)

    @property
    def untold(self) -> int:
        """Number of values without an outcome yet."""
        with self._lock:
            return len(self._sent) - len(self._delivered) - len(self._failed)

    def highest_read(self, partition: int) -> int:
        """Return the highest offset that any reader has seen, -1 for none."""
        with self._lock:
            return self._highest.get(partition, -1)

    # --- check -----------------------------------------------------------------------------------------------

    def problems(self, *, is_over: bool = False) -> list[str]:
        """Return every violation as one sentence.

        ``is_over``: no caller or reader is still under way, so that outcomes and values that are missing now never
        come.
        """
        with self._lock:
            found: list[str] = []

            def report(text: str, values: Iterable[bytes]) -> None:
                named = sorted(values)
                if named:
                    shown = ", ".join(each.decode(errors="replace") for each in named[:SHOWN_MAX])
                    more = f" and {len(named) - SHOWN_MAX} more" if len(named) > SHOWN_MAX else ""
                    found.append(f"{len(named)} values {text}: {shown}{more}")

            report("were sent twice by the test itself", self._sent_again)
            report("got more than one outcome", self._decided_again)
            report(
                "have an outcome and were never sent",
                (self._delivered.keys() | self._failed) - self._sent.keys(),
            )
            report("were read and never sent", self._seen_at.keys() - self._sent.keys())
            report("were read at more than one place", (v for v, at in self._seen_at.items() if len(at) > 1))
            report("failed for certain and were read", self._failed_and_read())
            report("lie elsewhere than their outcomes say", self._misplaced())
            report("were acked, others behind them were read, and they were not", self._lost())
            if is_over:
                report(
                    "never got an outcome", self._sent.keys() - self._delivered.keys() - self._failed.keys()
                )
                report("were acked and were never read", self._unseen)
            for place, values in sorted(self._seen_there.items()):
                if len(values) > 1:
                    shown = ", ".join(sorted(each.decode(errors="replace") for each in values))
                    found.append(f"offset {place.offset} of partition {place.partition} had {shown}")
            return found + self._inversions()

    def check(self, *, is_over: bool = False) -> None:
        """Raise AssertionError with every violation."""
        problems = self.problems(is_over=is_over)
        assert not problems, "the history is not consistent:\n" + "\n".join(problems)

    def dump(self, path: Path) -> None:
        """Write all events as JSON lines, to examine a run that failed."""
        with self._lock, path.open("w") as out:
            for value, sent in self._sent.items():
                row = {
                    "value": value.decode(errors="replace"),
                    "caller": sent.caller,
                    "key": sent.key.decode(errors="replace"),
                    "number": sent.number,
                    "delivered": self._delivered.get(value),
                    "failed": self._failed.get(value),
                    "read": sorted(self._seen_at.get(value, ())),
                }
                out.write(json.dumps(row) + "\n")
            for at_s, kind, what in self._events:
                out.write(json.dumps({"at_s": at_s, kind: what}) + "\n")

    def _failed_and_read(self) -> list[bytes]:
        return [value for value, possibly in self._failed.items() if not possibly and value in self._seen_at]

    def _misplaced(self) -> list[bytes]:
        return [
            value
            for value, place in self._delivered.items()
            if place.offset != UNKNOWN_OFFSET and value in self._seen_at and place not in self._seen_at[value]
        ]

    def _lost(self) -> list[bytes]:
        return [
            value
            for value in self._unseen
            if self._delivered[value].offset <= self._highest.get(self._delivered[value].partition, -1)
            and self._delivered[value].offset != UNKNOWN_OFFSET
        ]

    def _inversions(self) -> list[str]:
        """Describe places where a caller's later record precedes its earlier one of the same key and partition."""
        last: dict[tuple[str, bytes, int], tuple[int, bytes]] = {}
        found = []
        for place, values in sorted(self._seen_there.items()):
            value = min(values)
            sent = self._sent.get(value)
            if sent is None or len(values) > 1:
                continue
            lane = sent.caller, sent.key, place.partition
            before = last.get(lane)
            if before is not None and sent.number < before[0]:
                found.append(
                    f"order of {sent.caller} for key {sent.key!r} broken at offset {place.offset} of "
                    f"partition {place.partition}: {value!r} came after {before[1]!r}"
                )
            last[lane] = sent.number, value
        return found[:SHOWN_MAX]
