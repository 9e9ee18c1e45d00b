"""Makes a run directory again that was removed under its daemon: clients find it, and workers can be replaced.

The Daemon calls it each second, on the controller's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.common.control import ListenAgain
from sidecar.controller.front.http_port import bind_path

if TYPE_CHECKING:
    from sidecar.controller.front.control_endpoint import ControlEndpoint
    from sidecar.controller.rundir.run_dir import RunDir
    from sidecar.controller.workers.worker_process import WorkerProcess
    from sidecar.telemetry.exporter import Exporter

log = logging.getLogger(__name__)


class LostRunDir:
    """Watches the run directory. Belongs to the controller's loop.

    Connections stay: only the sockets at the paths are new. A worker locks its slot in the new lock file before it
    listens there, so that the next daemon sees that it lives.
    """

    def __init__(self, run_dir: RunDir, segment: Path, publish: Callable[[], None]) -> None:
        """``publish`` writes the files by which a successor finds the segment."""
        self._run_dir = run_dir
        self._segment = segment
        self._publish = publish
        self._steps: list[Callable[[], None]] = []
        """The steps that a folder that was made again still needs."""
        self._fault = ""

    def tick(
        self, *, control: ControlEndpoint | None, exporter: Exporter | None, workers: Iterable[WorkerProcess]
    ) -> None:
        """Called once a second. A step that fails is tried again at the next call."""
        if self._run_dir.is_lost:
            if not self._run_dir.make_again(self._segment):
                return
            self._steps = [self._publish]
            self._steps += [partial(worker.channel.send, ListenAgain()) for worker in workers]
            if control is not None:
                self._steps.append(control.listen_again)
            if exporter is not None:
                self._steps.append(partial(_listen_again, exporter))
        if not self._steps:
            return
        try:
            while self._steps:
                self._steps[0]()
                del self._steps[0]
        except OSError as error:
            if str(error) != self._fault:
                self._fault = str(error)
                log.error(
                    "Run dir %s was removed and cannot be filled again yet: %s.", self._run_dir.path, error
                )
            return
        self._fault = ""
        log.warning("Run dir %s is made again: clients find this daemon there.", self._run_dir.path)


def _listen_again(exporter: Exporter) -> None:
    path = exporter.lost_path
    if path is not None:
        exporter.listen_at(bind_path(str(path)))
