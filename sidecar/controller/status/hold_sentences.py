"""HoldSentences: why clients are held, and what an operator can do about it, in words. Sans-IO."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from sidecar.common.condition import HoldCause, HoldRow
from sidecar.common.wording import counted, masked
from sidecar.controller.status.note import Note, Runbook
from sidecar.telemetry.page import duration

Hold = dict[str, Any]
"""A row of ``holds`` in status."""
Shares = Callable[[], list[dict[str, Any]]]
"""Rows of the topics, or of the clients, with the most of the pool, as in status."""

WAITS_NAMED: Final = 3
"""How many clients that wait for the same reason, and how many reasons, a notice names."""
_WORDS: Final = {
    HoldCause.POOL: "the buffer pool is full",
    HoldCause.SHARE: "it holds its share of the buffer pool",
    HoldCause.RING: "it does not read its outcomes",
    HoldCause.UNKNOWN_TOPIC: "its topic is not known and such topics hold their share of the buffer pool",
    HoldCause.RATE: "it is at its rate",
    HoldCause.EXPRESS: "it is about to pass another client's backlog",
    HoldCause.PAUSED: "an operator has drained the daemon",
    HoldCause.DISK: "the disk of the pool takes nothing",
    HoldCause.ERROR: "the daemon fails to accept its records",
}
_WORDS_OF_MANY: Final = {
    HoldCause.RING: "they do not read their outcomes",
    HoldCause.UNKNOWN_TOPIC: "their topics are not known and such topics hold their share of the buffer pool",
    HoldCause.EXPRESS: "they are about to pass another client's backlog",
    HoldCause.ERROR: "the daemon fails to accept their records",
}
"""The texts that differ for several clients."""
_OF_THE_POOL: Final = frozenset({HoldCause.POOL, HoldCause.SHARE})
_ADVICE: Final = {
    HoldCause.POOL: "Deliver faster, send less, or raise buffer.memory.",
    HoldCause.SHARE: "Look at what keeps the topic from being delivered, send less, or raise buffer.memory.",
    HoldCause.RING: "Look at that client: its process is stopped, or a callback blocks its io thread.",
    HoldCause.UNKNOWN_TOPIC: "Create the topic, or correct its name.",
    HoldCause.RATE: "Send less, or raise the rate of the client or topic and run `kafka-sidecar reload`.",
    HoldCause.EXPRESS: "Nothing to do: it continues when that backlog is sent.",
    HoldCause.PAUSED: "`kafka-sidecar resume` lets clients continue.",
    HoldCause.DISK: "Make room on it, or repair it.",
    HoldCause.ERROR: "The log has the error.",
}
_RUNBOOKS: Final = {
    HoldCause.POOL: Runbook.POOL_FULL,
    HoldCause.SHARE: Runbook.CLIENTS_HELD,
    HoldCause.RING: Runbook.CLIENTS_HELD,
    HoldCause.UNKNOWN_TOPIC: Runbook.RECORDS_WAIT,
    HoldCause.RATE: Runbook.NONE,
    HoldCause.EXPRESS: Runbook.NONE,
    HoldCause.PAUSED: Runbook.CLIENTS_HELD,
    HoldCause.DISK: Runbook.DISK_REFUSES,
    HoldCause.ERROR: Runbook.BUG,
}


class HoldSentences:
    """Belongs to the controller's loop."""

    def __init__(
        self, page_count: int, topics: Shares, clients: Shares, paused: Callable[[], Collection[str]]
    ) -> None:
        """``paused``: the topics that an operator has paused."""
        self._page_count = page_count
        self._topics = topics
        self._clients = clients
        self._paused = paused

    def notes(self, holds: list[Hold], pages_used: int) -> list[Note]:
        """Notes about held clients, one for each reason; those of ``holds`` that wait longest come first."""
        by_reason: dict[tuple[HoldCause, str], list[Hold]] = {}
        for hold in holds:
            by_reason.setdefault((HoldCause(hold["reason"]), hold["text"]), []).append(hold)
        notes = []
        for (cause, text), held in [*by_reason.items()][:WAITS_NAMED]:
            words = []
            if cause in _OF_THE_POOL:
                words.append(f"pool {100 * pages_used // self._page_count} %")
            if cause is HoldCause.SHARE or (
                cause is HoldCause.POOL and (HoldCause.SHARE, "") not in by_reason
            ):
                words += [
                    f"topic {each['topic']} at its share" for each in self._topics() if each["share_full"]
                ]
                words += [
                    f"client {each['client']} at its share" for each in self._clients() if each["share_full"]
                ]
            # The topics and clients at their share are already listed.
            why = "" if cause is HoldCause.SHARE else self.why(held[0])
            words.append(who_waits(held, why, text or _WORDS_OF_MANY.get(cause, why)))
            notes.append(Note(f"{', '.join(words)}. {self.advice(held[0])}", _RUNBOOKS[cause]))
        if len(by_reason) > WAITS_NAMED:
            more = {each["client"] for held in [*by_reason.values()][WAITS_NAMED:] for each in held}
            waits = counted(len(more), "more client waits", "more clients wait")
            notes.append(Note(f"{waits} for other reasons.", Runbook.CLIENTS_HELD))
        return notes

    def advice(self, hold: Hold) -> str:
        """A sentence on what to do about it."""
        cause = HoldCause(hold["reason"])
        if cause in _OF_THE_POOL and hold["topic"] in self._paused():
            return f"Topic {hold['topic']} is paused: `kafka-sidecar resume` lets it continue."
        return _ADVICE[cause]

    def why(self, hold: Hold) -> str:
        """Why that client is held, as a phrase."""
        if hold["text"]:
            return str(hold["text"])
        cause = HoldCause(hold["reason"])
        if cause is HoldCause.SHARE and any(
            each["share_full"] and each["topic"] == hold["topic"] for each in self._topics()
        ):
            return f"topic {hold['topic']} holds its share of the buffer pool"
        return _WORDS[cause]

    @staticmethod
    def drained(holds: list[Hold]) -> str:
        """A sentence about all clients, which a drain by the operator holds."""
        who = sentence(who_waits(holds, _WORDS[HoldCause.PAUSED]))
        return f"{who}. {_ADVICE[HoldCause.PAUSED]}"


def hold_row(row: HoldRow, since_ms: float, now_ms: float) -> Hold:
    """The row in status."""
    return {
        "client": masked(row.client),
        "reason": row.cause,
        "topic": masked(row.topic),
        "since_seconds": round((now_ms - since_ms) / 1e3, 1),
        "streams": row.streams,
        "text": masked(row.text),
    }


def who_waits(holds: list[Hold], why: str, why_many: str = "") -> str:
    """A phrase such as ``client web waits for 6 s: it is at its rate``. ``holds`` have the same reason and begin with
    the longest.
    """
    names = [*dict.fromkeys(hold["client"] for hold in holds)]
    lasts = f"for {duration(holds[0]['since_seconds'])}"
    if holds[0].get("is_broken"):
        lasts = f"again and again {lasts}"
    if len(names) == 1:
        return f"client {names[0]} waits {lasts}" + (why and f": {why}")
    more = len(names) - WAITS_NAMED
    *first, last = [*names[:WAITS_NAMED], f"{more} more"] if more > 0 else names
    why = why_many or why
    return f"clients {', '.join(first)} and {last} wait {lasts}" + (why and f": {why}")


def sentence(words: str) -> str:
    """The phrase as the begin of a sentence."""
    return words[:1].upper() + words[1:]
