"""ConditionBook: brokers, pool, held streams and the oldest records of all workers, for status and log. Sans-IO."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from sidecar.common.condition import (
    DELIBERATE,
    SPOOL_ADVICE,
    TROUBLE_MS,
    BrokerState,
    HoldCause,
    HoldRow,
    ShareRow,
    WaitCause,
    WaitRow,
)
from sidecar.common.control import Condition
from sidecar.common.model import Node
from sidecar.common.sparse_log import SparseLog
from sidecar.common.wording import counted, masked
from sidecar.controller.status.advice import wait_advice
from sidecar.controller.status.broker_book import BAD, BrokerBook
from sidecar.controller.status.hold_notes import HoldNotes
from sidecar.controller.status.note import Note, Runbook
from sidecar.telemetry.page import OLDEST_HELD, duration

log = logging.getLogger(__name__)

WAITS_NAMED: Final = 3
"""How many clients that wait for the same reason, and how many reasons, a notice names."""
SHOWN_MAX: Final = 20
"""How many topics and clients (those with most of the pool) and held streams (those held longest) status shows."""
OLDEST_SHOWN_MS: Final = 1_000.0
"""A record that is held for less than this counts as on its way."""
WAIT_LINE_MS: Final = 60_000.0
"""How often the log reports records that wait for long."""
BROKER_LINE_MS: Final = TROUBLE_MS + 2_000.0
"""By then a broker that does not answer, or cannot be connected to, has its own log line."""
PASSING_MS: Final = 3_000.0
"""A worker that has just begun has no metadata, and a broker that is back is connected to: for less than this."""
_OF_TOPICS: Final = frozenset({WaitCause.UNKNOWN_TOPIC, WaitCause.OUT_OF_RANGE})
"""Causes that lie with the topic that a record names."""
_TROUBLE: Final = frozenset(
    {
        WaitCause.BROKER,
        WaitCause.NO_LEADER,
        WaitCause.REFUSED,
        WaitCause.LOST,
        WaitCause.PRODUCER_ID,
        WaitCause.METADATA,
    }
)
"""Causes that lie with Kafka, which make the daemon degraded."""
_HOLD_WORDS: Final = {
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
_HOLD_WORDS_OF_MANY: Final = {
    HoldCause.RING: "they do not read their outcomes",
    HoldCause.UNKNOWN_TOPIC: "their topics are not known and such topics hold their share of the buffer pool",
    HoldCause.EXPRESS: "they are about to pass another client's backlog",
    HoldCause.ERROR: "the daemon fails to accept their records",
}
"""The texts that differ for several clients."""
_OF_THE_POOL: Final = frozenset({HoldCause.POOL, HoldCause.SHARE})
_HOLD_ADVICE: Final = {
    HoldCause.POOL: "Deliver faster, send less, or raise buffer.memory.",
    HoldCause.SHARE: "Look at what keeps the topic from being delivered, send less, or raise buffer.memory.",
    HoldCause.RING: "Look at that client: its process is stopped, or a callback blocks its io thread.",
    HoldCause.UNKNOWN_TOPIC: "Create the topic, or correct its name.",
    HoldCause.RATE: "Send less, or raise the rate of the client or topic and run `kafka-sidecar reload`.",
    HoldCause.EXPRESS: "Nothing need be done: it continues when that backlog is sent.",
    HoldCause.PAUSED: "`kafka-sidecar resume` lets clients go on.",
    HoldCause.DISK: "Make room on it, or repair it.",
    HoldCause.ERROR: "The log has the error.",
}
_HOLD_RUNBOOKS: Final = {
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


class Trouble(NamedTuple):
    """``notes``: the parts of the sentence, one for each thing that is wrong."""

    sentence: str
    advice: str
    notes: tuple[Note, ...] = ()


class ConditionBook:
    """Belongs to the controller's loop. All times are monotonic."""

    def __init__(
        self,
        *,
        page_count: int,
        page_bytes: int,
        held_records: Callable[[], int],
        paused: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """``held_records``: the number of records that are held now; the reports are up to a second older. ``paused``:
        the topics that an operator has paused.
        """
        self._held_records = held_records
        self._paused = paused
        self._page_count = page_count
        self._page_bytes = page_bytes
        self._conditions: dict[int, Condition] = {}
        """Worker index → its last report."""
        self.brokers = BrokerBook()
        self._now_ms = self._answered_ms = 0.0
        self._nodes: Mapping[int, Node] = {}
        self._cluster_error = ""
        self._is_calm = False
        """Whether time alone changes nothing: the next tick then has work only if a report, a broker's address or the
        cluster's error differs.
        """
        self._distrusted_ms = 0.0
        self._notes = HoldNotes()
        self._holds_log = SparseLog(log, lambda: self._now_ms)
        self._wait_lines: dict[bool, tuple[str, float]] = {}
        """For records of unknown topics (True) and for others (False): the cause that was logged, and when its next
        line is due.
        """
        self._passing_ms: dict[bool, float] = {}
        """As above: since when the cause is one that mostly passes at once."""
        self._throttled: dict[int, float] = {}
        """Broker id → when its throttling is to be logged again."""

    def report(self, worker: int, condition: Condition) -> None:
        """Replace a worker's report."""
        last = self._conditions.get(worker, Condition())
        if not condition.knows_cluster:
            condition = replace(
                condition,
                brokers=last.brokers,
                waits=last.waits,
                letters=condition.letters or last.letters,
                knows_cluster=True,
            )
        if condition == last and worker in self._conditions:
            return
        self._is_calm = False
        self._conditions[worker] = condition
        self.brokers.report(worker, condition.brokers)

    def worker_left(self, worker: int) -> None:
        """Its records wait on: what they wait for counts until its successor reports."""
        last = self._conditions.pop(worker, Condition())
        waited_for = tuple(row for row in last.brokers if row.held_records and row.state in BAD)
        self.report(worker, Condition(brokers=waited_for, waits=last.waits, letters=last.letters))

    def distrust(self, until_ms: float) -> None:
        """Judge and log nothing until then: this process did not run, and newer reports are still in its sockets."""
        self._distrusted_ms = until_ms

    def tick(self, nodes: Mapping[int, Node], answered_ms: float, cluster_error: str, now_ms: float) -> None:
        """Log changes. Called once a second and after each report."""
        self._now_ms, self._answered_ms = now_ms, answered_ms
        if now_ms < self._distrusted_ms:
            return
        if self._is_calm and nodes is self._nodes and cluster_error == self._cluster_error:
            return
        self._nodes, self._cluster_error = nodes, cluster_error
        self.brokers.tick(nodes, answered_ms, cluster_error, now_ms)
        for is_unknown in (False, True):
            self._log_wait(is_unknown, now_ms)
        self._notes.follow((row for each in self._conditions.values() for row in each.holds), now_ms)
        holds = [each for each in self.holds(now_ms) if each["since_seconds"] * 1e3 >= TROUBLE_MS]
        drained = [each for each in holds if each["reason"] == HoldCause.PAUSED]
        if drained:  # a drain by the operator holds every client
            self._holds_log.warning(
                HoldCause.PAUSED,
                "%s. %s",
                _sentence(_who_waits(drained, _HOLD_WORDS[HoldCause.PAUSED])),
                _HOLD_ADVICE[HoldCause.PAUSED],
            )
        for hold in holds:
            if hold not in drained:
                cause = HoldCause(hold["reason"])
                self._holds_log.warning(
                    (hold["client"], cause, hold["topic"]),
                    "Client %s waits%s for %s: %s. %s",
                    hold["client"],
                    hold["topic"] and f" with records for topic {hold['topic']}",
                    duration(hold["since_seconds"]),
                    self._why_held(hold),
                    self._hold_advice(hold),
                )
        for broker_id, throttle_ms in self.brokers.throttles.items():
            if now_ms >= self._throttled.get(broker_id, 0.0):
                self._throttled[broker_id] = now_ms + 10 * WAIT_LINE_MS
                log.warning(
                    "Broker %d throttles this daemon: it asked for %d ms of silence. %s",
                    broker_id,
                    throttle_ms,
                    wait_advice(WaitCause.THROTTLED),
                )
        self._is_calm = not self._has_waiting and self.brokers.is_calm

    @property
    def is_eventful(self) -> bool:
        """Whether something is shown whose age changes with time."""
        return not self._is_calm and (self._has_waiting or not self.brokers.are_well)

    @property
    def _has_waiting(self) -> bool:
        reports = self._conditions.values()
        return not self._notes.is_empty or any(each.holds or each.waits or each.letters for each in reports)

    # ---- the oldest records

    def _oldest(self, is_unknown: bool) -> WaitRow | None:
        if self._now_ms < self._distrusted_ms or not self._held_records():
            return None
        rows = [
            row
            for each in self._conditions.values()
            for row in each.waits
            if (row.cause in _OF_TOPICS) is is_unknown
        ]
        oldest = min(rows, key=lambda row: row.accepted_ms, default=None)
        if oldest is None:
            return None
        if is_unknown and self._answered_ms < oldest.accepted_ms:
            # Kafka has not said that the topic is missing.
            return oldest._replace(cause=str(WaitCause.METADATA))
        if oldest.cause in DELIBERATE:
            late_ms = self._now_ms - TROUBLE_MS
            late = [row for row in rows if row.cause not in DELIBERATE and row.accepted_ms <= late_ms]
            return min(late, key=lambda row: row.accepted_ms, default=oldest)
        return oldest

    def _log_wait(self, is_unknown: bool, now_ms: float) -> None:
        row = self._oldest(is_unknown)
        logged = self._wait_lines.get(is_unknown)
        if row is not None and self._is_passing(row):
            since_ms = self._passing_ms.setdefault(is_unknown, now_ms)
            if self._cluster_error or now_ms - since_ms < PASSING_MS:
                return  # while Kafka is away the line about the cluster says it
        else:
            self._passing_ms.pop(is_unknown, None)
        if row is None or row.cause in DELIBERATE or now_ms - row.accepted_ms < TROUBLE_MS:
            if logged is not None and (row is None or now_ms - row.accepted_ms < TROUBLE_MS):
                del self._wait_lines[is_unknown]
                if not is_unknown:
                    log.info("No record waits for long any more.")
            return
        is_new = logged is None or logged[0] != row.cause
        has_line = row.cause == WaitCause.BROKER and self.brokers.has_line(row.broker)
        is_of_broker = row.cause in {WaitCause.UNANSWERED, WaitCause.BROKER} and not has_line
        if is_new and is_of_broker and now_ms - row.accepted_ms < BROKER_LINE_MS:
            return
        if logged is None or is_new or now_ms >= logged[1]:
            self._wait_lines[is_unknown] = row.cause, now_ms + WAIT_LINE_MS
            if is_new and has_line:
                return  # the log has named that broker and the records waiting for it
            log.warning("%s. %s", _sentence(self._wait_words(row, now_ms)), self._advice(row))

    def _is_passing(self, row: WaitRow) -> bool:
        if row.cause == WaitCause.BROKER:
            return self.brokers.state_of(row.broker) not in BAD
        return row.cause == WaitCause.METADATA

    def _wait_words(self, row: WaitRow, now_ms: float, named: Iterable[int] = ()) -> str:
        """A phrase about a waiting record. ``named``: brokers whose state was given before it."""
        where = f"{row.topic}-{row.partition}" if row.partition >= 0 else f"topic {row.topic}"
        lasts = duration((now_ms - row.accepted_ms) / 1e3)
        is_named = row.cause == WaitCause.BROKER and row.broker in named
        reason = _why(row.error) if is_named else f", {self._reason(row)}"
        return f"{OLDEST_HELD} {lasts}, {masked(where)}{reason}"

    def _advice(self, row: WaitRow) -> str:
        if row.cause == WaitCause.BROKER:
            blamed = self.brokers.blamed(row.broker)
            if blamed is not None:
                return f"Look at broker {blamed}."
            if self.brokers.state_of(row.broker) == BrokerState.UP:
                return "If that lasts, look at the network to it."
        return wait_advice(row.cause, row.error)

    def _reason(self, row: WaitRow) -> str:
        broker = f"broker {row.broker}"
        state = self.brokers.state_of(row.broker)
        at_broker = f"{broker} {state or 'not known'}"
        if state == BrokerState.UP:  # for another worker
            at_broker = f"a worker is connecting to {broker}"
        return {
            WaitCause.BROKER: f"{at_broker}{_why(row.error)}",
            WaitCause.NO_LEADER: "no leader",
            WaitCause.REFUSED: f"{broker} refuses: {row.error}",
            WaitCause.THROTTLED: f"{broker} throttles",
            WaitCause.METADATA: self.brokers.why_no_metadata(),
            WaitCause.PRODUCER_ID: f"there is no producer id yet{_why(row.error)}",
            WaitCause.LOST: f"to be sent again{_why(row.error)}",
            WaitCause.ADOPTED: f"to be sent again to {broker} after the death of the worker that had sent it",
            WaitCause.UNKNOWN_TOPIC: "not in the cluster's metadata",
            WaitCause.OUT_OF_RANGE: "it names a partition that the topic does not have",
            WaitCause.UNANSWERED: f"{broker} has not answered yet",
            WaitCause.LINGER: "linger.ms is not over",
            WaitCause.PAUSED: "paused by an operator",
            WaitCause.QUEUED: f"in line for {broker}",
        }[WaitCause(row.cause)]

    # ---- what is shown

    def trouble(self, now_ms: float) -> Trouble | None:
        """Why the daemon is degraded; None while Kafka takes the records."""
        troubled = self.brokers.troubled(now_ms)
        words = [*troubled.values()]
        notes = [Note(f"{each}.", Runbook.BROKER_DOWN) for each in words]
        advice = self.brokers.advice(now_ms)
        for row in (self._oldest(False), self._oldest(True)):
            if row is not None and row.cause in _TROUBLE and now_ms - row.accepted_ms >= TROUBLE_MS:
                words.append(self._wait_words(row, now_ms, troubled))
                notes.append(Note(f"{_sentence(self._wait_words(row, now_ms))}.", Runbook.RECORDS_WAIT))
                advice = self._advice(row)
        if not words:
            return None
        return Trouble(f"{_sentence('; '.join(words))}.", advice, tuple(notes))

    def why_waits(self, topic: str, leaders: Sequence[int]) -> str:
        """For what records of a topic wait, for the program that asks; empty if nothing is known. ``leaders``: of its
        partitions, -1 for none.
        """
        row = self._oldest(False)
        if row is not None and row.topic == topic and row.cause in _TROUBLE:
            return self._wait_words(row, self._now_ms)
        bad = self.brokers.bad_words({each for each in leaders if each >= 0})
        if bad:
            return bad
        count = leaders.count(-1)
        return f"partitions without a leader: {count} of {len(leaders)}" if count else ""

    def notices(self, pages_used: int, now_ms: float) -> list[Note]:
        """Sentences for an operator while the daemon is healthy: clients that wait for the pool, brokers that
        throttle. One for each cause.
        """
        found: list[Note] = []
        holds = [
            {**_hold_of(each.row, each.since_ms, now_ms), "is_broken": each.is_broken}
            for each in self._notes.noted[:SHOWN_MAX]
        ]
        if holds:
            found += self._hold_notes(holds, pages_used)
        for is_unknown in (False, True):
            row = self._oldest(is_unknown)
            if row is None or row.cause in _TROUBLE | DELIBERATE:  # an order to pause has its own notice
                continue
            if now_ms - row.accepted_ms >= TROUBLE_MS:
                runbook = Runbook.THROTTLED if row.cause == WaitCause.THROTTLED else Runbook.RECORDS_WAIT
                found.append(Note(f"{self._wait_words(row, now_ms)}. {self._advice(row)}", runbook))
        letters = [row for each in self._conditions.values() for row in each.letters]
        if letters:
            first = min(letters, key=lambda row: row.since_ms)
            text = (
                f"dead letters of {counted(sum(row.submissions for row in letters), 'submission')} wait for "
                f"{duration((now_ms - first.since_ms) / 1e3)}: {masked(first.reason)}. {SPOOL_ADVICE}"
            )
            found.append(Note(text, Runbook.DEAD_LETTERS))
        for broker_id, throttle_ms in self.brokers.throttles.items():
            text = f"broker {broker_id} throttles: {throttle_ms:,} ms. {wait_advice(WaitCause.THROTTLED)}"
            found.append(Note(text, Runbook.THROTTLED))
        return found

    def _hold_notes(self, holds: list[dict[str, Any]], pages_used: int) -> list[Note]:
        by_reason: dict[tuple[HoldCause, str], list[dict[str, Any]]] = {}
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
            why = "" if cause is HoldCause.SHARE else self._why_held(held[0])
            words.append(_who_waits(held, why, text or _HOLD_WORDS_OF_MANY.get(cause, why)))
            notes.append(Note(f"{', '.join(words)}. {self._hold_advice(held[0])}", _HOLD_RUNBOOKS[cause]))
        if len(by_reason) > WAITS_NAMED:
            more = {each["client"] for held in [*by_reason.values()][WAITS_NAMED:] for each in held}
            waits = counted(len(more), "more client waits", "more clients wait")
            notes.append(Note(f"{waits} for other reasons.", Runbook.CLIENTS_HELD))
        return notes

    def _hold_advice(self, hold: dict[str, Any]) -> str:
        cause = HoldCause(hold["reason"])
        if cause in _OF_THE_POOL and hold["topic"] in self._paused():
            return f"Topic {hold['topic']} is paused: `kafka-sidecar resume` lets it go on."
        return _HOLD_ADVICE[cause]

    def _why_held(self, hold: dict[str, Any]) -> str:
        if hold["text"]:
            return str(hold["text"])
        cause = HoldCause(hold["reason"])
        if cause is HoldCause.SHARE and any(
            each["share_full"] and each["topic"] == hold["topic"] for each in self._topics()
        ):
            return f"topic {hold['topic']} holds its share of the buffer pool"
        return _HOLD_WORDS[cause]

    def status(self, pages_used: int, in_flight_most: int, now_ms: float) -> dict[str, Any]:
        """The keys of status that come from here: brokers, pool, holds, oldest_held."""
        oldest = [row for row in (self._oldest(False), self._oldest(True)) if row is not None]
        row = min(oldest, key=lambda each: each.accepted_ms, default=None)
        return {
            "brokers": self.brokers.to_list(now_ms, in_flight_most),
            "pool": {
                "pages": self._page_count,
                "pages_used": pages_used,
                "page_bytes": self._page_bytes,
                "by_topic": self._topics(),
                "by_client": self._clients(),
            },
            "holds": self.holds(now_ms),
            "oldest_held": self._oldest_held(row, now_ms),
        }

    def _oldest_held(self, row: WaitRow | None, now_ms: float) -> dict[str, Any] | None:
        if row is None or now_ms - row.accepted_ms < OLDEST_SHOWN_MS:
            return None
        return {
            "topic": masked(row.topic),
            "partition": row.partition if row.partition >= 0 else None,
            "broker": row.broker if row.broker >= 0 else None,
            "seconds": round((now_ms - row.accepted_ms) / 1e3, 1),
            "reason": self._reason(row),
            "cause": row.cause,
        }

    def holds(self, now_ms: float) -> list[dict[str, Any]]:
        """Held streams by client, reason and topic, the longest first."""
        rows = sorted(
            (row for each in self._conditions.values() for row in each.holds), key=lambda row: row.since_ms
        )
        return [_hold_of(row, row.since_ms, now_ms) for row in rows[:SHOWN_MAX]]

    def _topics(self) -> list[dict[str, Any]]:
        return self._merged("topic", [each.topics for each in self._conditions.values()])

    def _clients(self) -> list[dict[str, Any]]:
        return self._merged("client", [each.clients for each in self._conditions.values()])

    @staticmethod
    def _merged(key: str, reports: list[tuple[ShareRow, ...]]) -> list[dict[str, Any]]:
        held: dict[str, tuple[float, int, bool]] = {}
        for row in (row for rows in reports for row in rows):
            share, pages, is_full = held.get(row.name, (0.0, 0, False))
            held[row.name] = share + row.share, pages + row.pages, is_full or row.is_full
        largest = sorted(held.items(), key=lambda each: -each[1][0])[:SHOWN_MAX]
        return [
            {
                key: masked(name),
                "pages": pages,
                "share_full": is_full or share >= 1.0,
                "share": round(share, 3),
            }
            for name, (share, pages, is_full) in largest
        ]


def _hold_of(row: HoldRow, since_ms: float, now_ms: float) -> dict[str, Any]:
    return {
        "client": masked(row.client),
        "reason": row.cause,
        "topic": masked(row.topic),
        "since_seconds": round((now_ms - since_ms) / 1e3, 1),
        "streams": row.streams,
        "text": masked(row.text),
    }


def _who_waits(holds: list[dict[str, Any]], why: str, why_many: str = "") -> str:
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


def _why(error: str) -> str:
    return f": {masked(error).rstrip('.')}" if error else ""


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]
