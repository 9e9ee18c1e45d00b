"""The lease of a checkpoint: a file in it that says which run has the stream. Two runs would send everything twice.

Clocks of two hosts are never compared. Who finds the file of another run waits until it is renewed, so that run lives,
or until it should have been: then it has died, and its lease is taken.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

FILE: Final = "run"
RENEW_S: Final = 4.0
DEAD_S: Final = 15.0
POLL_S: Final = 0.5


class LeaseHolder(NamedTuple):
    """Who has a lease. ``renewals`` counts up while it lives."""

    run: str
    host: str
    pid: int
    renewals: int

    @property
    def has_ended(self) -> bool:
        """Known only of a process of this host."""
        if self.host != os.uname().nodename:
            return False
        with suppress(PermissionError):
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return True
        return False


class LeaseFolder(Protocol):
    """The folder of the checkpoint, by names of files in it."""

    def read(self, name: str) -> str | None: ...

    def write(self, name: str, text: str) -> None: ...

    def delete(self, name: str) -> None: ...


UNREADABLE: Final = LeaseHolder("", "", 0, 0)


class Lease:
    """Taken by ``take``, renewed by a thread until ``release``. ``on_loss`` is called there if another run took it."""

    def __init__(self, folder: LeaseFolder, run: str, on_loss: Callable[[], None]) -> None:
        self._folder = folder
        self._own = LeaseHolder(run, os.uname().nodename, os.getpid(), 0)
        self._on_loss = on_loss
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def take(self) -> LeaseHolder | None:
        """None once it is taken, else who has it."""
        found = self._read()
        if found is not None and not found.has_ended and self._is_renewed(found):
            return found
        self._write()
        # Two runs may have come at once: the one that wrote last has it.
        time.sleep(POLL_S)
        found = self._read()
        if found is not None and found != UNREADABLE and found.run != self._own.run:
            return found
        self._thread.start()
        return None

    def release(self) -> None:
        if self._thread.ident is None:
            return
        self._is_over.set()
        self._thread.join()
        found = self._read()
        if found is not None and found.run == self._own.run:
            self._folder.delete(FILE)

    def _is_renewed(self, found: LeaseHolder) -> bool:
        end = time.monotonic() + DEAD_S
        while time.monotonic() < end:
            time.sleep(POLL_S)
            now = self._read()
            if now is None:
                return False
            if now not in (found, UNREADABLE):
                return True
        return False

    def _renew(self) -> None:
        while not self._is_over.wait(RENEW_S):
            with suppress(Exception):  # of py4j or of the file system: the next time may do
                found = self._read()
                if found is not None and found != UNREADABLE and found.run != self._own.run:
                    self._on_loss()
                    return
                self._own = self._own._replace(renewals=self._own.renewals + 1)
                self._write()

    def _read(self) -> LeaseHolder | None:
        """None where there is none."""
        try:
            text = self._folder.read(FILE)
            return None if text is None else LeaseHolder(**json.loads(text))
        except Exception:  # it is being written; a local file system of Hadoop checks sums
            return UNREADABLE

    def _write(self) -> None:
        self._folder.write(FILE, json.dumps(self._own._asdict()))
