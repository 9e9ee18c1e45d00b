"""DaemonStatus: the state of a running daemon, as its page, daemon.json, /healthz and systemd show it. In the
controller's loop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sidecar.common.own_process import own_version
from sidecar.common.processes import process_start_time
from sidecar.config.settings import SidecarConfig
from sidecar.controller.cluster.cluster import Cluster
from sidecar.controller.front.control_endpoint import ControlEndpoint
from sidecar.controller.front.orders import Orders
from sidecar.controller.front.stop_requests import StopRequests
from sidecar.controller.rundir.segment_store import SegmentStore
from sidecar.controller.status.failure_book import FailureBook
from sidecar.controller.status.health import ADVICE, Health, disk_sentence, workers_missing
from sidecar.controller.status.note import Note, Runbook, to_rows
from sidecar.controller.status.overview import Overview
from sidecar.controller.workers.supervisor import Supervisor
from sidecar.telemetry.exporter import Exporter


class DaemonStatus:
    """Reads the daemon's parts and changes none. Belongs to the controller's loop."""

    def __init__(
        self,
        config: SidecarConfig,
        store: SegmentStore,
        cluster: Cluster,
        *,
        supervisor: Supervisor,
        orders: Orders,
        overview: Overview,
        failures: FailureBook,
        stop_requests: StopRequests,
        constant: Mapping[str, Any],
    ) -> None:
        """``constant``: keys of the status that never change."""
        self.config = config
        """The configuration in use; a reload replaces it."""
        self.exporter: Exporter | None = None
        self.control: ControlEndpoint | None = None
        self.replaced_pid: int | None = None
        """The process id of the daemon that this one took over from."""
        self._store = store
        self._cluster = cluster
        self._supervisor = supervisor
        self._orders = orders
        self._overview = overview
        self._failures = failures
        self._stop_requests = stop_requests
        self._constant = constant

    def health(self) -> Health:
        """Whether records are taken and delivered now, and if not, a sentence why."""
        ready, wanted = len(self._supervisor.ready), self._supervisor.wanted
        if self._stop_requests.is_stopping:
            return Health("draining", "The daemon is draining and takes no new records.")
        if self._orders.pauses.drained_since_ms is not None:
            return Health(
                "draining", "The daemon is drained and takes no records: `kafka-sidecar resume` ends that."
            )
        disk_errno = self._store.highest("accept_log_errno")
        if disk_errno:
            return Health("refusing", disk_sentence(disk_errno, self.config.text("pool.path")))
        if self._cluster.error:
            return Health("unreachable", self._cluster.error)
        if not ready and self._supervisor.last_death:
            return Health(
                "starting", f"No worker is ready. {self._supervisor.last_death}", ADVICE["degraded"]
            )
        if not ready or not self._cluster.is_known:
            what = "its first metadata" if ready else "its workers"
            servers = ", ".join(self.config.words("bootstrap.servers"))
            return Health("starting", f"The daemon waits for {what} (bootstrap.servers {servers}).")
        if ready < wanted:
            return workers_missing(wanted - ready, wanted, self._supervisor.last_death)
        trouble = self._overview.trouble()
        if trouble is not None:
            return Health("degraded", *trouble)
        return Health("running", "")

    @property
    def _accepts_records(self) -> bool:
        """Whether records are accepted. They are even while Kafka is away; they then wait in the pool."""
        return (
            not self._stop_requests.is_stopping
            and self._orders.pauses.drained_since_ms is None
            and bool(self._supervisor.ready)
            and not self._store.highest("accept_log_errno")
        )

    def judge(self) -> tuple[bool, str]:
        health = self.health()
        return health.is_healthy, health.sentence

    def sentence(self) -> str:
        """The state in words, also for `systemctl status`."""
        return self.health().sentence or "Running"

    def to_mapping(self) -> dict[str, Any]:
        """The data of daemon.json, of the page and of `status --json`."""
        health = self.health()
        notes = [
            *(Note(each, Runbook.RECORDS_WAIT) for each in self._orders.notices()),
            *self._overview.notices(),
        ]
        overview = self._overview.status(
            self.config.integer("max.in.flight.requests.per.connection") * self._supervisor.wanted
        )
        return {
            "pid": os.getpid(),
            "start_time": process_start_time(os.getpid()),
            "version": own_version(),
            "reported_ms": time.time_ns() // 1_000_000,
            **self._constant,
            "state": health.state,
            "takes_records": health.takes_records,
            "accepts_records": self._accepts_records,
            "sentence": health.sentence,
            "advice": health.remedy,
            "http": self.exporter.address if self.exporter else "",
            "listen": self.config.text("daemon.listen"),
            "curve_public_keys": self.control.public_keys if self.control else [],
            "config_file": str(Path(self.config.file).absolute()) if self.config.file else "",
            "bootstrap": ",".join(self.config.words("bootstrap.servers")),
            "cluster_id": self._cluster.cluster_id,
            "batch_size": self.config.integer("batch.size"),
            **overview,
            "notices": list(map(str, notes)),
            "notes": to_rows(notes),
            "runbook": health.runbook.address,
            "causes": to_rows(health.notes),
            "restarts": self._supervisor.deaths.total,
            "last_restart": self._supervisor.deaths.last,
            "predecessor": self._predecessor(),
            "refused": dict(self.control.refused) if self.control else {},
            "held_slots": sorted(self._supervisor.held_slots),
            "failures": self._failures.last(),
            "failures_runbook": Runbook.RECORDS_FAILED.address,
            "standby": self._supervisor.standbys.pid,
            **self._orders.shown(),
            "workers": [
                {
                    "index": worker.identity.index,
                    "pid": worker.pid,
                    "start_time": worker.start_time,
                    "slot": worker.identity.slot,
                    "incarnation": worker.identity.incarnation,
                    "epoch": worker.identity.epoch,
                    "endpoint": worker.identity.endpoint,
                    "state": str(worker.state),
                    "cpu": worker.cpu,
                    "clients": self._store.clients_connected(worker.identity.slot),
                    **self._supervisor.deaths.of(worker.identity.index),
                }
                for worker in self._supervisor.workers
                if worker is not None
            ],
        }

    def _predecessor(self) -> dict[str, Any] | None:
        """The earlier daemon whose segment this one uses: it died, or handed its segment over."""
        if not self._store.inherited and self.replaced_pid is None:
            return None
        pid, held = self.replaced_pid, self._store.inherited
        how = "ended without a drain" if pid is None else f"(pid {pid}) handed over"
        return {
            "taken_over_pid": pid,
            "held": held,
            "sentence": f"The previous daemon {how}; its segment held {held or 'nothing'}.",
        }
