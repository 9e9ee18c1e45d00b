"""ConditionBook: brokers, pool, held streams and the oldest records of all workers, for status and log. Sans-IO."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from sidecar.common.condition import (
    DELIBERATE,
    SPOOL_ADVICE,
    TROUBLE_MS,
    HoldCause,
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
from sidecar.controller.status.hold_sentences import HoldSentences, hold_row, sentence
from sidecar.controller.status.note import Note, Runbook
from sidecar.controller.status.wait_sentences import WaitSentences
from sidecar.telemetry.page import duration

log = logging.getLogger(__name__)

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
        self._waits = WaitSentences(self.brokers)
        self._held = HoldSentences(page_count, self._topics, self._clients, paused)
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
            self._holds_log.warning(HoldCause.PAUSED, "%s", self._held.drained(drained))
        for hold in holds:
            if hold not in drained:
                cause = HoldCause(hold["reason"])
                self._holds_log.warning(
                    (hold["client"], cause, hold["topic"]),
                    "Client %s waits%s for %s: %s. %s",
                    hold["client"],
                    hold["topic"] and f" with records for topic {hold['topic']}",
                    duration(hold["since_seconds"]),
                    self._held.why(hold),
                    self._held.advice(hold),
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
            log.warning("%s. %s", sentence(self._waits.words(row, now_ms)), self._waits.advice(row))

    def _is_passing(self, row: WaitRow) -> bool:
        if row.cause == WaitCause.BROKER:
            return self.brokers.state_of(row.broker) not in BAD
        return row.cause == WaitCause.METADATA

    # ---- what is shown

    def trouble(self, now_ms: float) -> Trouble | None:
        """Why the daemon is degraded; None while Kafka takes the records."""
        troubled = self.brokers.troubled(now_ms)
        words = [*troubled.values()]
        notes = [Note(f"{each}.", Runbook.BROKER_DOWN) for each in words]
        advice = self.brokers.advice(now_ms)
        for row in (self._oldest(False), self._oldest(True)):
            if row is not None and row.cause in _TROUBLE and now_ms - row.accepted_ms >= TROUBLE_MS:
                words.append(self._waits.words(row, now_ms, troubled))
                notes.append(Note(f"{sentence(self._waits.words(row, now_ms))}.", Runbook.RECORDS_WAIT))
                advice = self._waits.advice(row)
        if not words:
            return None
        return Trouble(f"{sentence('; '.join(words))}.", advice, tuple(notes))

    def why_waits(self, topic: str, leaders: Sequence[int]) -> str:
        """For what records of a topic wait, for the program that asks; empty if nothing is known. ``leaders``: of its
        partitions, -1 for none.
        """
        row = self._oldest(False)
        if row is not None and row.topic == topic and row.cause in _TROUBLE:
            return self._waits.words(row, self._now_ms)
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
            {**hold_row(each.row, each.since_ms, now_ms), "is_broken": each.is_broken}
            for each in self._notes.noted[:SHOWN_MAX]
        ]
        if holds:
            found += self._held.notes(holds, pages_used)
        for is_unknown in (False, True):
            row = self._oldest(is_unknown)
            if row is None or row.cause in _TROUBLE | DELIBERATE:  # an order to pause has its own notice
                continue
            if now_ms - row.accepted_ms >= TROUBLE_MS:
                runbook = Runbook.THROTTLED if row.cause == WaitCause.THROTTLED else Runbook.RECORDS_WAIT
                found.append(Note(f"{self._waits.words(row, now_ms)}. {self._waits.advice(row)}", runbook))
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
            "reason": self._waits.reason(row),
            "cause": row.cause,
        }

    def holds(self, now_ms: float) -> list[dict[str, Any]]:
        """Held streams by client, reason and topic, the longest first."""
        rows = sorted(
            (row for each in self._conditions.values() for row in each.holds), key=lambda row: row.since_ms
        )
        return [hold_row(row, row.since_ms, now_ms) for row in rows[:SHOWN_MAX]]

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
