"""StatusPublisher: writes daemon.json and the text of `systemctl status` when the daemon's state has changed.

The Daemon calls it after a change and each second, on the controller's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from sidecar.common.sparse_log import SparseLog
from sidecar.controller.rundir.run_dir import RunDir

log = logging.getLogger(__name__)


class StatusPublisher:
    """Belongs to the controller's loop."""

    def __init__(
        self,
        run_dir: RunDir,
        *,
        status: Callable[[], Mapping[str, Any]],
        sentence: Callable[[], str],
        last_epoch: Callable[[], int],
        show: Callable[[str], None],
    ) -> None:
        """``sentence``: the state in words, which is handed to ``show`` when it changes. ``last_epoch`` is kept in the
        run directory as well.
        """
        self._run_dir = run_dir
        self._status = status
        self._sentence = sentence
        self._last_epoch = last_epoch
        self._show = show
        self._shown = ""
        self._loop = asyncio.get_running_loop()
        self._sparse_log = SparseLog(log, lambda: self._loop.time() * 1000)
        self._handle: asyncio.Handle | None = None

    def changed(self) -> None:
        """Publish soon, once for all changes of this turn."""
        if self._handle is None:
            self._handle = self._loop.call_soon(self.publish)

    def publish(self) -> None:
        """Write daemon.json now. A write that fails is logged."""
        self._handle = None
        sentence = self._sentence()
        if sentence != self._shown:
            self._shown = sentence
            self._show(sentence)
        try:
            self._run_dir.files.publish(self._status())
            self._run_dir.files.store_epoch(self._last_epoch())
        except OSError as error:
            if not self._run_dir.is_lost:  # which was logged before
                self._sparse_log.warning(
                    "publish", "Run dir %s cannot be written: %s.", self._run_dir.path, error
                )

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
