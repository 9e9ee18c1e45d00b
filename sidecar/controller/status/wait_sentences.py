"""WaitSentences: for what a record waits, and what an operator can do about it, in words. Sans-IO."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.common.condition import BrokerState, WaitCause, WaitRow
from sidecar.common.wording import masked
from sidecar.controller.status.advice import wait_advice
from sidecar.controller.status.broker_book import BrokerBook
from sidecar.telemetry.page import OLDEST_HELD, duration


class WaitSentences:
    """Belongs to the controller's loop."""

    def __init__(self, brokers: BrokerBook) -> None:
        """``brokers`` knows their states, which are part of the reasons."""
        self._brokers = brokers

    def words(self, row: WaitRow, now_ms: float, named: Iterable[int] = ()) -> str:
        """A phrase about a waiting record. ``named``: brokers whose state was given before it."""
        where = f"{row.topic}-{row.partition}" if row.partition >= 0 else f"topic {row.topic}"
        lasts = duration((now_ms - row.accepted_ms) / 1e3)
        is_named = row.cause == WaitCause.BROKER and row.broker in named
        reason = _why(row.error) if is_named else f", {self.reason(row)}"
        return f"{OLDEST_HELD} {lasts}, {masked(where)}{reason}"

    def advice(self, row: WaitRow) -> str:
        """A sentence on what to do about it."""
        if row.cause == WaitCause.BROKER:
            blamed = self._brokers.blamed(row.broker)
            if blamed is not None:
                return f"Look at broker {blamed}."
            if self._brokers.state_of(row.broker) == BrokerState.UP:
                return "If that lasts, look at the network to it."
        return wait_advice(row.cause, row.error)

    def reason(self, row: WaitRow) -> str:
        """For what it waits, as a phrase."""
        broker = f"broker {row.broker}"
        state = self._brokers.state_of(row.broker)
        at_broker = f"{broker} {state or 'not known'}"
        if state == BrokerState.UP:  # for another worker
            at_broker = f"a worker is connecting to {broker}"
        return {
            WaitCause.BROKER: f"{at_broker}{_why(row.error)}",
            WaitCause.NO_LEADER: "no leader",
            WaitCause.REFUSED: f"{broker} refuses: {row.error}",
            WaitCause.THROTTLED: f"{broker} throttles",
            WaitCause.METADATA: self._brokers.why_no_metadata(),
            WaitCause.PRODUCER_ID: f"there is no producer id yet{_why(row.error)}",
            WaitCause.LOST: f"to be sent again{_why(row.error)}",
            WaitCause.ADOPTED: f"to be sent again to {broker} after the death of the worker that had sent it",
            WaitCause.UNKNOWN_TOPIC: "not in the cluster's metadata",
            WaitCause.OUT_OF_RANGE: "it names a partition that the topic does not have",
            WaitCause.UNANSWERED: f"{broker} has not answered yet",
            WaitCause.LINGER: "linger.ms is not over",
            WaitCause.PAUSED: "paused by an operator",
            WaitCause.QUEUED: f"queued for {broker}",
        }[WaitCause(row.cause)]


def _why(error: str) -> str:
    return f": {masked(error).rstrip('.')}" if error else ""
