"""Overview: the operator's view of the daemon beyond its processes: Kafka, pool, clients, clock, certificates."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sidecar.common.clock import MonotonicClock
from sidecar.common.condition import BrokerRow
from sidecar.common.control import Condition
from sidecar.controller.status.certificate_book import CertificateBook, Expiry
from sidecar.controller.status.clock_watch import ClockWatch
from sidecar.controller.status.condition_book import ConditionBook, Trouble
from sidecar.controller.status.note import Note, Runbook
from sidecar.controller.status.stage_notices import stage_notices

if TYPE_CHECKING:
    from sidecar.controller.cluster.cluster import Cluster
    from sidecar.controller.rundir.segment_store import SegmentStore

TICK_S: Final = 1.0
"""The interval of :meth:`Overview.tick`."""
LATE_MS: Final = 2_000.0
"""A tick that comes later than this finds reports that are old, as after SIGCONT of a stopped daemon."""
CATCH_UP_MS: Final = 2_000.0
"""After such a tick, the time for newer reports to come: two intervals of the workers' reports."""
_CONTROLLER: Final = -1
"""Used as a worker's index: the controller's own links."""
REFRESH_MS: Final = 5_000.0
"""How often metadata is refreshed to see whether a lost broker that no worker uses is back."""


class Overview:
    """Combines the books. Belongs to the controller's loop."""

    def __init__(self, cluster: Cluster, store: SegmentStore, paused: Callable[[], Collection[str]]) -> None:
        """``paused``: the topics that an operator has paused."""
        self._cluster = cluster
        self._store = store
        self._clock = MonotonicClock()
        self._conditions = ConditionBook(
            page_count=store.segment.page_count,
            page_bytes=store.segment.page_bytes,
            held_records=partial(store.total, "records_held"),
            paused=paused,
        )
        self._certificates = CertificateBook()
        self._clock_watch = ClockWatch(self._clock.now_ms(), self._clock.timestamp_ms())
        self._is_shown = False
        self._refreshed_ms = 0.0
        self._connected: tuple[BrokerRow, ...] = ()
        """The brokers as the controller's own links see them."""

    def report(self, worker: int, condition: Condition) -> None:
        """Take a worker's report on its brokers, pool and streams."""
        self._conditions.report(worker, condition)
        self._judge()

    def worker_left(self, worker: int) -> None:
        self._conditions.worker_left(worker)

    def tick(self) -> bool:
        """Called once per TICK_S, as ages grow and brokers come back without a report. Returns True when status shows
        something that changes with time.
        """
        now_ms = self._clock.now_ms()
        if self._clock_watch.tick(now_ms, self._clock.timestamp_ms(), TICK_S * 1e3) >= LATE_MS:
            self._conditions.distrust(now_ms + CATCH_UP_MS)
        has_expired = self._certificates.tick([Expiry(*each) for each in self._cluster.expiries], time.time())
        self._cluster.tick()
        self._judge()
        was_shown = self._is_shown
        self._is_shown = (
            self._conditions.is_eventful or bool(self._clock_watch.notices()) or bool(self._stage_notices())
        )
        # Also once after it has ended, so that status is written without it.
        return was_shown or self._is_shown or has_expired

    def _judge(self) -> None:
        now_ms, cluster = self._clock.now_ms(), self._cluster
        connected = cluster.connected_brokers(now_ms)
        if connected != self._connected:
            self._connected = connected
            self._conditions.report(_CONTROLLER, Condition(brokers=connected))
        self._conditions.tick(cluster.snapshot.nodes, cluster.answered_ms, cluster.error, now_ms)
        if self._conditions.brokers.wants_metadata and now_ms - self._refreshed_ms > REFRESH_MS:
            self._refreshed_ms = now_ms
            cluster.refresh()

    def trouble(self) -> Trouble | None:
        """Why the daemon is degraded because of Kafka; None while Kafka takes the records."""
        return self._conditions.trouble(self._clock.now_ms())

    def why_waits(self, topic: str, rows: Sequence[Sequence[Any]]) -> str:
        """For what records of a topic wait, as a phrase; empty if nothing is known. ``rows``: of TOPICS_REPLY."""
        return self._conditions.why_waits(topic, [int(each[1]) for row in rows for each in row[2]])

    def status(self, in_flight_most: int) -> dict[str, Any]:
        """The keys of status. ``in_flight_most``: the requests that may be unanswered at one broker."""
        pages_used, now_ms = self._store.total("buffer_pages_taken"), self._clock.now_ms()
        return {
            "kafka_reachable": self._cluster.is_known and not self._cluster.error,
            **self._conditions.status(pages_used, in_flight_most, now_ms),
            "certificates": self._certificates.to_list(),
            "clock_steps": self._clock_watch.steps,
            "stalled_seconds": round(self._clock_watch.stalled_ms / 1e3, 1),
        }

    def notices(self) -> list[Note]:
        """Sentences that change no state, one for each cause."""
        pages_used, now_ms, wall_s = (
            self._store.total("buffer_pages_taken"),
            self._clock.now_ms(),
            time.time(),
        )
        ended, ends = (
            [
                Note(each, Runbook.CERTIFICATE_ENDS)
                for each in self._certificates.notices(wall_s, have_ended=have_ended)
            ]
            for have_ended in (True, False)
        )
        return [
            *ended,  # often the cause of what follows
            *self._conditions.notices(pages_used, now_ms),
            *ends,
            *self._stage_notices(),
            *map(Note, self._clock_watch.notices()),
        ]

    def _stage_notices(self) -> list[Note]:
        store = self._store
        return stage_notices(
            sealed=store.total("stages_sealed"),
            oldest_ms=store.highest("stage_oldest_ms"),
            staged_bytes=store.total("staged_bytes"),
            staged_bytes_max=store.highest("staged_bytes_max"),
        )
