"""WaitReasons: why records wait, as the end of a sentence. Any thread; only ``ask`` waits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

ASKS_FROM_S: Final = 1.0
"""The daemon is not asked for callers with a shorter timeout, which only poll."""


def topics_text(topics: Collection[str]) -> str:
    """A phrase with the first topic's name, and the number of the others."""
    others = len(topics) - 1
    and_others = f" and {others} other{'s' if others > 1 else ''}" if others > 0 else ""
    return f"topic {next(iter(topics))}{and_others}"


class WaitReasons:
    """What keeps the daemon from taking or delivering records. The io thread writes it."""

    def __init__(self) -> None:
        self.last_word = ""
        """The reason why the io thread is not attached, for error texts; empty while it is."""
        self.is_turned_away = False
        """Whether that reason is a refusal by the daemon, which took this producer before and may take it again."""
        self.hold_reasons: dict[str, str] = {}
        """Topic → the reason why the daemon takes none of its records now."""
        self.why_no_topic: Callable[[str, int], str] = lambda topic, partition: ""
        """Asks the daemon why no record can go to a topic and partition; empty when records can."""

    def may_ask(self, timeout: float | None) -> bool:
        """Whether the daemon is there to be asked, and the caller's timeout was long enough to ask it."""
        return not self.last_word and timeout is not None and timeout >= ASKS_FROM_S

    def why_not_taken(self, topic: str, *, for_capacity: bool = False) -> str:
        """Why the daemon takes no records now; empty if this process does not know. ``for_capacity`` includes other
        topics that are held, as their records fill the buffer for all.
        """
        if self.last_word:
            return f": the daemon {self._where_it_is()}"
        holds = self.hold_reasons.copy()
        if topic in holds:
            return f": the daemon holds topic {topic} ({holds[topic].rstrip('.')})"
        if holds and for_capacity:
            other, reason = next(iter(holds.items()))
            return f": the daemon holds topic {other} ({reason.rstrip('.')})"
        return ""

    def why_no_outcome(
        self, topic: str, *, is_accepted: bool, why_slow: str, said: str, of_many: bool = False
    ) -> str:
        """Why records of ``topic`` have no outcome. ``said`` is the daemon's answer about the topic, if it was asked,
        and ``why_slow`` the reason in a warning. ``of_many`` words the text for several records.
        """
        it, waits = ("them", "they wait") if of_many else ("it", "it waits")
        if not is_accepted:
            return self.why_not_taken(topic) or f": the daemon has not accepted {it}"
        if said:
            return f": {said}"
        if self.last_word:
            return f": the daemon has accepted {it}, and {self._where_it_is()}"
        if why_slow:
            return f": {why_slow}"
        return (
            f": the daemon has accepted {it}, and Kafka has not acknowledged {it} "
            f"(`kafka-sidecar explain {topic}` says what {waits} for)"
        )

    def _where_it_is(self) -> str:
        """The end of "the daemon ...": it is away, or does not admit this producer."""
        verb = "refuses this producer" if self.is_turned_away else "is away"
        return f"{verb} ({self.last_word.rstrip('.')})"
