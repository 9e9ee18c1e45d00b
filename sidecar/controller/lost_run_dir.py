"""Makes a run directory again that was removed under its daemon: clients find it, and workers can be replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from sidecar.common.control import ListenAgain
from sidecar.controller.http_port import bind_path

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.controller.control_endpoint import ControlEndpoint
    from sidecar.controller.run_dir import RunDir
    from sidecar.controller.worker_process import WorkerProcess
    from sidecar.telemetry.exporter import Exporter

log = logging.getLogger(__name__)


def mend_run_dir(
    run_dir: RunDir,
    publish: Callable[[], None],
    *,
    segment: Path,
    control: ControlEndpoint | None,
    exporter: Exporter | None,
    workers: Iterable[WorkerProcess],
) -> None:
    """Called once a second. ``publish`` writes the files by which a successor finds the segment.

    Connections stay: only the sockets at the paths are new. A worker locks its slot in the new lock file before it
    listens there, so that the next daemon sees that it lives.
    """
    if not run_dir.is_lost or not run_dir.make_again(segment):
        return
    try:
        publish()
        for worker in workers:
            worker.channel.send(ListenAgain())
        if control is not None:
            control.listen_again()
        if exporter is not None and exporter.lost_path is not None:
            exporter.listen_at(bind_path(str(exporter.lost_path)))
    except OSError as error:
        log.error("Run dir %s was removed and cannot be filled again: %s.", run_dir.path, error)
        return
    log.warning("Run dir %s is made again: clients find this daemon there.", run_dir.path)
