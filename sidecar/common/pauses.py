"""Pauses: which topics or clients an operator has paused, and since when. Sans-IO.

``drain`` stops the acceptance of records, ``pause`` the sending of topics; ``resume`` ends both. Workers get the
pauses with their settings, so they also apply to workers that start later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from client_stub.contract.wire import TOPIC_BYTES_MAX
from sidecar.common.errors import Refused

PAUSED_TOPICS_MAX: Final = 200
DRAINED_TEXT: Final = (
    "the daemon takes no records (kafka-sidecar drain); kafka-sidecar resume lets clients continue"
)
"""Reason given to held streams during a drain."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Immutable. Times are ms since 1970."""

    topics: Mapping[str, int] = field(default_factory=dict)
    """Topics whose records are accepted and not sent, with the time of the pause."""
    drained_since_ms: int | None = None
    """Time since which no records are accepted; None while they are."""

    def __bool__(self) -> bool:
        return bool(self.topics) or self.drained_since_ms is not None

    def pause(self, names: Iterable[str], now_ms: int) -> Pauses:
        """Pause these topics. Raises Refused for an invalid topic name, or if there are too many."""
        names = list(names)
        for name in names:
            if not name or len(name.encode()) > TOPIC_BYTES_MAX:
                raise Refused(
                    "INVALID_TOPIC_EXCEPTION", f"A topic's name has 1 to {TOPIC_BYTES_MAX} bytes: {name!r}."
                )
        topics = {**dict.fromkeys(names, now_ms), **self.topics}
        if len(topics) > PAUSED_TOPICS_MAX:
            raise Refused(
                "TOO_MANY_TOPICS", f"At most {PAUSED_TOPICS_MAX} topics can be paused: resume some first."
            )
        return replace(self, topics=topics)

    def drain(self, now_ms: int) -> Pauses:
        return self if self.drained_since_ms is not None else replace(self, drained_since_ms=now_ms)

    def resume(self, names: Iterable[str]) -> Pauses:
        """Resume these topics, or everything if there are none. Raises Refused for a topic that is not paused."""
        names = set(names)
        if not names:
            return Pauses()
        if unknown := sorted(names - self.topics.keys()):
            raise Refused("NOT_PAUSED", f"Topic {unknown[0]} is not paused.")
        return replace(self, topics={name: at for name, at in self.topics.items() if name not in names})

    def to_settings(self) -> dict[str, object]:
        """Values for workers, beside their settings."""
        return {"paused.topics": list(self.topics), "paused.intake": self.drained_since_ms is not None}

    def to_mapping(self) -> dict[str, Any]:
        return {"topics": dict(self.topics), "drained_since_ms": self.drained_since_ms}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any] | None) -> Pauses:
        """Read the pauses that an earlier daemon wrote. Unreadable ones are dropped."""
        topics, since_ms = (values or {}).get("topics"), (values or {}).get("drained_since_ms")
        return cls(
            {name: at for name, at in topics.items() if isinstance(at, int)}
            if isinstance(topics, dict)
            else {},
            since_ms if isinstance(since_ms, int) else None,
        )
