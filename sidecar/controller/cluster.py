"""The cluster as the controller knows it: pulls metadata once for all workers and pushes what changed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from client_stub.wire import Kind
from sidecar.common.control import ControlMessage
from sidecar.common.settings import SidecarConfig
from sidecar.controller.worker_process import WorkerProcess

log = logging.getLogger(__name__)


class Cluster:
    """Joins metadata fetcher and UpdateMetadata push to the table of workers. Belongs to the loop."""

    def __init__(
        self, config: SidecarConfig, *, controller_epoch: int, on_change: Callable[[], None]
    ) -> None:
        self.controller_id = os.getpid()
        self.controller_epoch = controller_epoch
        self.error = ""
        self.cluster_id: str | None = None
        self.broker_count = 0
        self.is_known = False
        self._config = config
        self._on_change = on_change

    def start(self) -> None: ...

    async def close(self) -> None: ...

    def worker_joined(self, worker: WorkerProcess) -> None: ...

    def worker_left(self, worker: WorkerProcess) -> None: ...

    def worker_said(self, worker: WorkerProcess, message: ControlMessage) -> None: ...

    async def topics(self, names: list[str] | None) -> list[list[object]]:
        return [[int(Kind.TOPICS)]]
