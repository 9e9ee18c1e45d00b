"""Outboxes: the stubs that have something to receive, and the few control messages queued for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgpack

from sidecar.worker.streams.session import OUTBOX_FRAMES_MAX

if TYPE_CHECKING:
    from sidecar.worker.streams.session import ClientSession


class Outboxes:
    """Collects messages for stubs from all rooms. StubPort writes them at the end of the turn."""

    def __init__(self) -> None:
        self.pack: Callable[[list[Any]], bytes] = msgpack.Packer().pack
        self.pending: set[ClientSession] = set()
        """Stubs with a message, outcomes or positions to be written. After a turn: the stubs whose socket was full."""
        self.later: dict[ClientSession, float] = {}
        """Stubs whose positions may wait for the outcomes that follow, and until when (monotonic ms); soonest first."""
        self.overfull: set[ClientSession] = set()
        """Stubs that do not read their messages: to be detached."""

    def send(self, session: ClientSession, message: list[Any]) -> None:
        """Queue a control message for one stub; it goes out at the end of the turn."""
        if len(session.outbox) >= OUTBOX_FRAMES_MAX:
            self.overfull.add(session)
        else:
            session.outbox.append([self.pack(message)])
        self.pending.add(session)

    def send_after_outcomes(self, session: ClientSession, message: list[Any]) -> None:
        """Queue a message that the stub must not get before the outcomes that it has by now."""
        session.after_outcomes.append([self.pack(message)])
        self.pending.add(session)

    @property
    def next_due_ms(self) -> float:
        """When the first positions in ``later`` are due, monotonic ms. ``later`` must not be empty."""
        return next(iter(self.later.values()))
