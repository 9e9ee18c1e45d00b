"""Goal: a client that does not read its outcomes is cut in the end, sooner while descriptors are scarce, never at once.

Method: the watch's own rule on sessions whose rings are full since a given time; nothing else of the worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest

from sidecar.common.clock import MonotonicClock
from sidecar.worker.stubs.client_watch import UNACKED_MS_MAX, ClientWatch
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
        # In as many groups as the others have, or fewer.
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

    def end(self, session: FullSession, _now_ms: float, *, for_good: bool) -> None:
        """As StubPort.end."""
        assert for_good
        self.gone.append(session.name)


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
def test_the_client_that_holds_up_most_is_cut(
    full_for_ms: dict[str, float | None], scarce: bool, cut: list[str]
) -> None:
    now_ms = 100_000.0
    table = Table(
        [
            FullSession(name, None if waited is None else now_ms - waited, len(name))
            for name, waited in full_for_ms.items()
        ]
    )
    counts = Counts()
    watch = ClientWatch(
        clock=MonotonicClock(),
        client_ack_timeout_ms=TIMEOUT_MS,
        sessions=cast(Any, table),
        limits=no_limits(),
        processes=cast(Any, None),
        acker=cast(Any, None),
        counters=cast(Any, counts),
        port=cast(Any, table),
    )
    watch.cut_unread(now_ms, descriptors_are_scarce=scarce)
    assert table.gone == cut
    assert counts.found["clients_cut_total"] == len(cut)
