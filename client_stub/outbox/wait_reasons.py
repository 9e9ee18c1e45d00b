"""WaitReasons: why records wait, as the end of a sentence. Any thread; only ``ask`` waits."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from client_stub.outbox.outbox import Outbox
    from client_stub.outbox.submission import Submission

ASKS_FROM_S: Final = 1.0
"""The daemon is not asked for callers with a shorter timeout, which only poll."""


def topics_text(topics: Collection[str]) -> str:
    """A phrase with the first topic's name, and the number of the others."""
    others = len(topics) - 1
    behind = f" and {others} other{'s' if others > 1 else ''}" if others > 0 else ""
    return f"topic {next(iter(topics))}{behind}"


def may_ask(submission: Submission | None, timeout: float | None) -> bool:
    """Whether the daemon may know why ``submission`` has no outcome, and the caller's timeout was long enough
    to ask.
    """
    return (
        submission is not None
        and submission.is_accepted
        and not submission.outbox.last_word
        and timeout is not None
        and timeout >= ASKS_FROM_S
    )


def ask(submission: Submission | None, timeout: float | None) -> str:
    """The daemon's answer about the topic of ``submission``, if it has one. The question may take some 100 ms."""
    if submission is None or not may_ask(submission, timeout):
        return ""
    said: str = submission.outbox.why_no_topic(submission.topic, submission.partition_max)
    return said


def where_it_is(outbox: Outbox) -> str:
    """What keeps the daemon from taking records, behind "the daemon ": it is away, or does not admit this producer."""
    verb = "refuses this producer" if outbox.is_turned_away else "is away"
    return f"{verb} ({outbox.last_word.rstrip('.')})"


def why_no_outcome(submission: Submission, said: str = "", *, of_many: bool = False) -> str:
    """Why ``submission`` has no outcome. ``said`` is the daemon's answer about the topic, if it was asked. ``of_many``
    words the text for several records.
    """
    outbox = submission.outbox
    it, waits = ("them", "they wait") if of_many else ("it", "it waits")
    if not submission.is_accepted:
        return why_not_taken(outbox, submission.topic) or f": the daemon has not accepted {it}"
    if said:
        return f": {said}"
    if outbox.last_word:
        return f": the daemon has accepted {it}, and {where_it_is(outbox)}"
    if submission.why_slow:
        return f": {submission.why_slow}"
    return (
        f": the daemon has accepted {it}, and Kafka has not acknowledged {it} "
        f"(`kafka-sidecar explain {submission.topic}` says what {waits} for)"
    )


def why_not_taken(outbox: Outbox, topic: str, *, for_room: bool = False) -> str:
    """Why the daemon takes no records now; empty if this process does not know. ``for_room`` includes other topics
    that are held, as their records fill the buffer for all.
    """
    if outbox.last_word:
        return f": the daemon {where_it_is(outbox)}"
    holds = outbox.hold_reasons.copy()
    if topic in holds:
        return f": the daemon holds topic {topic} ({holds[topic].rstrip('.')})"
    if holds and for_room:
        other, reason = next(iter(holds.items()))
        return f": the daemon holds topic {other} ({reason.rstrip('.')})"
    return ""
