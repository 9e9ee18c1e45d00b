"""WorkerSetup: the things that a worker is given at its start: endpoint, segment, wake descriptors, settings.

The Supervisor asks it for each START, on the controller's loop.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from sidecar.common.control import Start
from sidecar.common.pauses import Pauses
from sidecar.config.settings import SidecarConfig
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.controller.rundir.segment_store import SegmentStore
from sidecar.controller.workers.worker_process import WorkerIdentity


class WorkerSetup:
    """The same for all workers, but for their identity. Belongs to the controller's loop."""

    def __init__(
        self,
        config: SidecarConfig,
        run_dir: RunDir,
        store: SegmentStore,
        *,
        workers: int,
        dead_letters: Path,
        controller_epoch: int,
        pauses: Callable[[], Pauses],
    ) -> None:
        """``workers``: how many share the segment. ``pauses``: the orders of operators that hold now."""
        self.config = config
        """The configuration in use; a reload replaces it."""
        self.instance_key = secrets.token_bytes(32)
        """Signs the tickets of clients."""
        self._run_dir = run_dir
        self._store = store
        self._controller_epoch = controller_epoch
        self._pauses = pauses
        self._workers = workers
        self._wake_fds: tuple[int, ...] = ()
        # The segment has the size that its creator chose; all workers that share it divide it.
        self._constant = {
            "buffer.memory": store.buffer_memory_bytes,
            "daemon.workers": workers,
            "dead_letters.path": str(dead_letters),
        }

    def open(self) -> None:
        """Make the descriptors by which workers wake each other. Raises OSError."""
        self._wake_fds = tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(self._workers))

    def close(self) -> None:
        """Close the descriptors, once no worker is started any more."""
        for fd in self._wake_fds:
            os.close(fd)
        self._wake_fds = ()

    def endpoint(self, index: int, epoch: int) -> str:
        """The endpoint at which that worker takes clients."""
        return f"ipc://{self._run_dir.worker_socket(index, epoch)}"

    def start_message(self, identity: WorkerIdentity) -> Start:
        return Start(
            worker_index=identity.index,
            worker_epoch=identity.epoch,
            slot=identity.slot,
            incarnation=identity.incarnation,
            endpoint=identity.endpoint,
            instance_key=self.instance_key,
            segment_fd=self._store.fd,
            wake_fds=self._wake_fds,
            controller_epoch=self._controller_epoch,
            segment_path=str(self._store.path),
            config=self.settings(),
            extra={
                "run_dir": str(self._run_dir.path),
                "workers_lock": str(self._run_dir.workers_lock),
            },
        )

    def settings(self) -> dict[str, object]:
        """The settings that a worker uses now: the configuration, the orders of operators, and the segment's size."""
        own = {"holds_secrets": self.config.holds_secrets}
        return self.config.to_mapping() | own | self._pauses().to_settings() | self._constant
