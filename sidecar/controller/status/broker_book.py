"""BrokerBook: the state of each broker, merged from the reports of the workers. Sans-IO.

Reports differ: one worker may have requests at a broker that hangs, while another has not used it for an hour. A
report with requests or records for the broker counts more than one without.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.common.condition import TROUBLE_MS, BrokerRow, BrokerState, WaitCause
from sidecar.common.model import Node
from sidecar.common.wording import counted, masked
from sidecar.controller.status.advice import CURE, wait_advice
from sidecar.telemetry.page import duration

log = logging.getLogger(__name__)

LINE_INTERVAL_MS: Final = 5_000.0
"""A broker that comes and goes gets at most one log line in this time."""
VOUCHED_MS: Final = 12_000.0
"""For this time after a broker was lost, a metadata answer that still names it does not prove that it lives: Kafka
takes up to 9 s (``broker.session.timeout.ms``) to notice a death.
"""
IN_SYNC_MS: Final = 40_000.0
"""For so long after its death a replica may count as in sync: ``replica.lag.time.max.ms``, and 10 s to notice it."""
DEPARTED_MS: Final = 600_000.0
"""A broker that metadata no longer names is still shown for this time."""
BAD: Final = frozenset({BrokerState.DOWN, BrokerState.SILENT})
_WELL: Final = frozenset({BrokerState.UP, BrokerState.KNOWN})


@dataclass(slots=True)
class _Broker:
    node: Node
    shown: BrokerState = BrokerState.KNOWN
    since_ms: float = 0.0
    last_error: str = ""
    logged: BrokerState = BrokerState.UP
    """The state that the log has reported last. It begins as up; KNOWN is logged only after a bad state."""
    bad_since_ms: float = 0.0
    next_line_ms: float = 0.0
    departed_ms: float | None = None
    is_cluster_error: bool = False
    """Whether it cannot be reached because no broker can."""
    rows: list[BrokerRow] = field(default_factory=list)

    @property
    def held_records(self) -> int:
        return sum(row.held_records for row in self.rows)

    @property
    def waiting(self) -> str:
        if not self.held_records:
            return "no record waits for it"
        return counted(self.held_records, "record waits for it", "records wait for it")

    @property
    def in_flight(self) -> int:
        return sum(row.in_flight for row in self.rows)

    @property
    def is_as_logged(self) -> bool:
        """Whether the log is up to date. A broker that is known and was never bad is not logged."""
        return self.shown is self.logged or (
            self.shown is BrokerState.KNOWN and self.logged is BrokerState.UP
        )

    @property
    def name(self) -> str:
        return f"Broker {self.node.id} ({self.node.host}:{self.node.port})"


class BrokerBook:
    """Belongs to the controller's loop. All times are monotonic."""

    def __init__(self) -> None:
        self._brokers: dict[int, _Broker] = {}
        self._reports: dict[int, Sequence[BrokerRow]] = {}
        """Worker index → its last report."""
        self.wants_metadata = False
        """Whether a broker was lost that no worker uses: only metadata can then show that it is back."""

    def report(self, worker: int, rows: Sequence[BrokerRow]) -> None:
        self._reports[worker] = rows

    def tick(self, nodes: Mapping[int, Node], answered_ms: float, cluster_error: str, now_ms: float) -> None:
        """Merge the reports and log changes.

        ``nodes`` are those of the last metadata answer, which came at ``answered_ms``; ``cluster_error`` says why
        there is no newer one.
        """
        self._follow(nodes, now_ms)
        self.wants_metadata = False
        for broker_id, broker in self._brokers.items():
            broker.rows = [row for rows in self._reports.values() for row in rows if row.id == broker_id]
            state, since_ms, error = self._judge(broker, answered_ms, cluster_error, now_ms)
            broker.last_error = masked(error)
            if state is not broker.shown:
                if state in BAD and broker.shown not in BAD and broker.logged not in BAD:
                    broker.bad_since_ms = since_ms
                broker.shown, broker.since_ms = state, since_ms
            broker.is_cluster_error = error != "" and error == cluster_error
        for broker in self._brokers.values():
            blamed = self.blamed(broker.node.id)
            if blamed is not None:
                broker.last_error += f" It may wait for broker {blamed}, which is down."
            # Then the line about the cluster reports it for all brokers.
            is_said = broker.is_cluster_error
            if not broker.is_as_logged and broker.shown is not BrokerState.CONNECTING and not is_said:
                self._write(broker, now_ms)

    def _follow(self, nodes: Mapping[int, Node], now_ms: float) -> None:
        for broker_id, node in nodes.items():
            known = self._brokers.get(broker_id)
            if known is None:
                self._brokers[broker_id] = _Broker(node, since_ms=now_ms)
            else:
                known.node, known.departed_ms = node, None
        for broker_id, broker in list(self._brokers.items()):
            if broker_id in nodes:
                continue
            if broker.departed_ms is None:
                broker.departed_ms = now_ms
            if now_ms - broker.departed_ms > DEPARTED_MS:
                del self._brokers[broker_id]

    def _judge(
        self, broker: _Broker, answered_ms: float, cluster_error: str, now_ms: float
    ) -> tuple[BrokerState, float, str]:
        by_state: dict[str, list[BrokerRow]] = {}
        for row in broker.rows:
            by_state.setdefault(row.state, []).append(row)
        error = next((row.last_error for row in broker.rows if row.last_error), "")
        silent, down = by_state.get(BrokerState.SILENT), by_state.get(BrokerState.DOWN, [])
        if silent:
            sent = counted(sum(row.in_flight for row in silent), "request was sent", "requests were sent")
            text = f"It has answered nothing since {sent}."
            return BrokerState.SILENT, min(row.since_ms for row in silent), text
        needed = [row for row in down if row.held_records]
        if needed:
            return BrokerState.DOWN, min(row.since_ms for row in needed), error
        if by_state.get(BrokerState.UP):
            return BrokerState.UP, now_ms, ""
        if broker.departed_ms is not None:
            return BrokerState.DOWN, broker.departed_ms, error or "The cluster's metadata no longer names it."
        if by_state.get(BrokerState.CONNECTING):
            if broker.shown in BAD:
                return broker.shown, broker.since_ms, error or broker.last_error
            return BrokerState.CONNECTING, now_ms, error
        if down:
            since_ms = min(row.since_ms for row in down)
            if cluster_error or answered_ms < since_ms + VOUCHED_MS:
                self.wants_metadata = True
                return BrokerState.DOWN, since_ms, error
        elif cluster_error:
            return BrokerState.DOWN, now_ms, cluster_error
        return BrokerState.KNOWN, now_ms, error

    def _write(self, broker: _Broker, now_ms: float) -> None:
        if now_ms < broker.next_line_ms:
            return
        broker.next_line_ms = now_ms + LINE_INTERVAL_MS
        broker.logged = broker.shown
        waiting = broker.waiting
        if broker.shown is BrokerState.SILENT:
            blamed = self.blamed(broker.node.id)
            log.warning(
                "%s is silent: it has answered nothing for %s with %s sent, and %s. %s",
                broker.name,
                duration((now_ms - broker.since_ms) / 1e3),
                counted(broker.in_flight, "request"),
                waiting,
                "Look at its process, its disk and its log."
                if blamed is None
                else f"It may wait for broker {blamed}, which is down.",
            )
        elif broker.shown is BrokerState.DOWN:
            log.warning(
                "%s is down: %s; %s. %s or another broker leads its partitions.",
                broker.name,
                broker.last_error.rstrip(".") or "its connection was lost",
                waiting,
                "What waits is delivered when it can be connected to"
                if CURE in broker.last_error
                else "Look at that broker, or at the network to it: what waits is delivered when it is back",
            )
        elif broker.shown is BrokerState.KNOWN:
            log.warning(
                "%s may be back after %s: Kafka names it, and no record waits for it. Nothing here has connected "
                "to it since.",
                broker.name,
                duration((now_ms - broker.bad_since_ms) / 1e3),
            )
        else:
            lasted = duration((now_ms - broker.bad_since_ms) / 1e3)
            log.warning("%s is up again after %s.", broker.name, lasted)

    def state_of(self, broker_id: int) -> str:
        """The broker's state as text; empty for an unknown broker."""
        broker = self._brokers.get(broker_id)
        return "" if broker is None else str(broker.shown)

    def blamed(self, broker_id: int) -> int | None:
        """The broker that is down and for which this silent one may wait: with acks = all it answers when all replicas
        in sync have the record, and a dead replica counts as in sync for a while. None if nobody can be blamed.
        """
        silent = self._brokers.get(broker_id)
        if silent is None or silent.shown is not BrokerState.SILENT:
            return None
        down = [each for each in self._all() if each.shown is BrokerState.DOWN and not each.is_cluster_error]
        return next((each.node.id for each in down if silent.since_ms < each.since_ms + IN_SYNC_MS), None)

    def bad_words(self, brokers: Collection[int]) -> str:
        """A phrase about the first of these that is down or silent; empty if none is."""
        each = next((each for each in self._all() if each.node.id in brokers and each.shown in BAD), None)
        if each is None:
            return ""
        why = each.last_error and f": {each.last_error.rstrip('.')}"
        return f"{each.name.replace('B', 'b', 1)} is {each.shown}{why}"

    def advice(self, now_ms: float) -> str:
        """What to do about those that :meth:`troubled` names."""
        troubled = [self._brokers[broker_id] for broker_id in self.troubled(now_ms)]
        blamed = next((each for each in map(self.blamed, self.troubled(now_ms)) if each is not None), None)
        if blamed is not None:
            return f"Look at broker {blamed}, and at the network to it."
        is_named = bool(troubled) and all(CURE in each.last_error for each in troubled)
        return wait_advice(WaitCause.BROKER, CURE if is_named else "")

    def has_line(self, broker_id: int) -> bool:
        """Whether the log has reported its present bad state."""
        broker = self._brokers.get(broker_id)
        return broker is not None and broker.shown in BAD and broker.logged is broker.shown

    def why_no_metadata(self) -> str:
        silent = ", ".join(str(each.node.id) for each in self._all() if each.shown is BrokerState.SILENT)
        return "the cluster's metadata has not come since" + (silent and f": broker {silent} silent")

    def troubled(self, now_ms: float) -> dict[int, str]:
        """Broker id → a phrase, for each broker that has been in a bad state for TROUBLE_MS while records wait
        for it.
        """
        found = {}
        for each in sorted(self._brokers.values(), key=lambda each: each.shown is BrokerState.SILENT):
            lasts_ms = now_ms - each.since_ms
            if each.shown in BAD and each.held_records and lasts_ms >= TROUBLE_MS:
                blamed = self.blamed(each.node.id)
                found[each.node.id] = (
                    f"{each.name} has been {each.shown} for {duration(lasts_ms / 1e3)} and {each.waiting}"
                    + ("" if blamed is None else f", it may wait for broker {blamed}, which is down")
                )
        return found

    @property
    def are_well(self) -> bool:
        """Whether all brokers are well, as far as is known here."""
        return all(each.shown in _WELL for each in self._brokers.values())

    @property
    def is_calm(self) -> bool:
        """Whether all brokers are well and logged as such, and none changes by time alone."""
        return (
            not self.throttles
            and self.are_well
            and all(each.is_as_logged and each.departed_ms is None for each in self._brokers.values())
        )

    @property
    def throttles(self) -> dict[int, int]:
        """Broker id → its last throttle in ms, for each broker that throttled recently."""
        found = {each.node.id: max((row.throttle_ms for row in each.rows), default=0) for each in self._all()}
        return {broker_id: throttle_ms for broker_id, throttle_ms in found.items() if throttle_ms}

    def to_list(self, now_ms: float, in_flight_most: int) -> list[dict[str, Any]]:
        """The rows for status, by id. ``in_flight_most``: the unanswered requests that all workers together may have
        at one broker.
        """
        throttles = self.throttles
        shown = []
        for each in self._all():
            oldest_ms = min((row.oldest_held_ms for row in each.rows if row.held_records), default=now_ms)
            shown.append(
                {
                    "id": each.node.id,
                    "address": f"{each.node.host}:{each.node.port}",
                    "state": str(each.shown),
                    "since_seconds": round((now_ms - each.since_ms) / 1e3, 1),
                    "last_error": each.last_error,
                    "in_flight": each.in_flight,
                    "in_flight_most": in_flight_most,
                    "throttle_ms": throttles.get(each.node.id, 0),
                    "held_records": each.held_records,
                    "held_bytes": sum(row.held_bytes for row in each.rows),
                    "oldest_held_seconds": round((now_ms - oldest_ms) / 1e3, 1),
                }
            )
        return shown

    def _all(self) -> list[_Broker]:
        return [self._brokers[broker_id] for broker_id in sorted(self._brokers)]
