"""ClientProcesses: learns from the kernel which client processes have died, by pidfd.

A stub that is killed sends no goodbye, and its connection proves nothing: a child forked from it may still hold the
sockets. A dead process cannot come back for its outcomes, so its rows need not wait for the grace period.
"""

from __future__ import annotations

import asyncio
import logging
import os

log = logging.getLogger(__name__)


class ClientProcesses:
    """Watches client processes. Belongs to the worker's loop. Uses one file descriptor per process with any number of
    clients.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rows: dict[int, set[int]] = {}
        self._handles: dict[int, int] = {}
        self._process_of: dict[int, int] = {}
        self._dead_rows: set[int] = set()

    def watch(self, row: int, pid: int) -> None:
        """Watch the process of the client in ``row``. ``pid`` 0: not known, so only silence will show its death.

        A process that cannot be watched (no file descriptor left) is treated the same.
        """
        self.forget(row)
        if not pid:
            return
        if pid not in self._handles:
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                self._dead_rows.add(row)
                return
            except OSError as error:
                log.warning("The process of a client (pid %d) cannot be watched: %s.", pid, error)
                return
            self._handles[pid] = handle
            self._rows[pid] = set()
            self._loop.add_reader(handle, self._died, pid)
        self._rows[pid].add(row)
        self._process_of[row] = pid

    def sees(self, row: int) -> bool:
        """Whether the death of the process of this row's client will be noticed."""
        return row in self._process_of or row in self._dead_rows

    def forget(self, row: int) -> None:
        """Stop watching for a row that gets another client, or none."""
        self._dead_rows.discard(row)
        pid = self._process_of.pop(row, None)
        if pid is not None:
            self._rows[pid].discard(row)
            if not self._rows[pid]:
                self._drop(pid)

    def take_dead(self) -> set[int]:
        """Remove and return the rows whose process has died since the last call."""
        dead, self._dead_rows = self._dead_rows, set()
        return dead

    def close(self) -> None:
        for pid in list(self._handles):
            self._drop(pid)

    def _died(self, pid: int) -> None:
        rows = self._rows[pid]
        self._dead_rows |= rows
        for row in rows:
            del self._process_of[row]
        self._drop(pid)

    def _drop(self, pid: int) -> None:
        handle = self._handles.pop(pid)
        del self._rows[pid]
        self._loop.remove_reader(handle)
        os.close(handle)
