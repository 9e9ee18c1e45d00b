"""Goal: a client that does not read its outcomes is cut in the end, sooner while descriptors are scarce, never at once.

Method: the port's own rule on sessions whose rings are full since a given time; nothing else of the worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest

from sidecar.common.clock import MonotonicClock
from sidecar.worker.streams.outboxes import Outboxes
from sidecar.worker.stubs.stub_port import UNACKED_MS_MAX, StubPort
from tests.worker.manual_worker import no_limits

TIMEOUT_MS = 30_000.0


class Unwritten:
    def __init__(self, outcomes: int) -> None:
        self.outcomes = outcomes


class FullSession:
    """As a ClientSession whose ring has been full since a time (None: it has room)."""

    def __init__(self, name: str, full_since_ms: float | None, unwritten: int) -> None:
        self.name = name
        self.ring_full_since_ms = full_since_ms
        # In as many completions as the others have, or fewer.
        self.unwritten = [Unwritten(unwritten)]
        self.unacked: list[Any] = []
        self.outbox: list[Any] = []


class Table:
    def __init__(self, sessions: list[FullSession]) -> None:
        self.sessions = sessions
        self.gone: list[str] = []

    def __iter__(self) -> Iterator[FullSession]:
        return iter([each for each in self.sessions if each.name not in self.gone])

    def absent(self) -> list[FullSession]:
        return []

    def detach(self, session: FullSession, _now_ms: float, *, for_good: bool) -> None:
        assert for_good
        self.gone.append(session.name)


class Quiet:
    """Rooms that are told of a session's end and do nothing here."""

    def forget(self, _session: FullSession) -> None: ...
    def abandon(self, _session: FullSession) -> None: ...

    @property
    def holds(self) -> Quiet:
        return self

    @property
    def openings(self) -> Quiet:
        return self


class Counts:
    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def inc(self, name: str) -> None:
        self.found[name] += 1


@pytest.mark.parametrize(
    ("full_for_ms", "scarce", "cut"),
    [
        ({"a": 0.0}, True, []),
        ({"a": UNACKED_MS_MAX - 1}, True, []),
        ({"a": UNACKED_MS_MAX}, True, ["a"]),
        ({"a": UNACKED_MS_MAX}, False, []),
        ({"a": TIMEOUT_MS}, False, ["a"]),
        (
            {"a": UNACKED_MS_MAX, "bbb": UNACKED_MS_MAX, "cc": UNACKED_MS_MAX},
            True,
            ["bbb"],
        ),  # who holds up most
        ({"a": TIMEOUT_MS, "bbb": UNACKED_MS_MAX}, True, ["a"]),
        ({"a": None}, True, []),
    ],
)
def test_who_is_cut(full_for_ms: dict[str, float | None], scarce: bool, cut: list[str]) -> None:
    now_ms = 100_000.0
    table = Table(
        [
            FullSession(name, None if waited is None else now_ms - waited, len(name))
            for name, waited in full_for_ms.items()
        ]
    )
    counts = Counts()
    port = StubPort(
        clock=MonotonicClock(),
        worker_epoch=1,
        limits={},
        credit_window_bytes=1,
        client_ack_timeout_ms=TIMEOUT_MS,
        sessions=cast(Any, table),
        client_limits=no_limits(),
        processes=cast(Any, None),
        intake=cast(Any, Quiet()),
        acker=cast(Any, Quiet()),
        counters=cast(Any, counts),
        topics=cast(Any, Quiet()),
        outboxes=Outboxes(),
    )
    port.cut_unread(now_ms, descriptors_are_scarce=scarce)
    assert table.gone == cut
    assert counts.found["clients_cut_total"] == len(cut)
