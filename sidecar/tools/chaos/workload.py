"""The workload: a number of places, each with one client at a time. A client that was killed or has sent enough gets a
successor.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sidecar.common.python_child import python_command
from sidecar.tools.chaos.client_journal import ClientJournal, ClientState, Head
from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.waiting import wait_until

LIFE_RECORDS_MAX = 2_000_000
"""A client that has sent this many records ends."""
BROKEN_MAX = 5
END_TIMEOUT_S = 240.0


class WorkloadFailed(RuntimeError):
    """Clients keep failing, or do not end when asked to."""


@dataclass(frozen=True)
class Place:
    """A kind of clients, one after the other. ``rate``: records per second; 0: as fast as they are accepted."""

    rate: int
    visit_records: int = 0
    """A new producer after each this many records; 0: one for the client's life."""
    module: str = "sidecar.tools.chaos.client"
    records_max: int = LIFE_RECORDS_MAX


@dataclass(eq=False)
class ClientRun:
    """One client process. ``over`` once it was ``killed`` by us or has ended."""

    number: int
    place: int
    journal: ClientJournal
    process: subprocess.Popen[bytes]
    killed: bool = False

    @property
    def over(self) -> bool:
        return self.killed or self.journal.state >= ClientState.ENDED


class Workload:
    """Use it from the main thread, as a child dies with the thread that started it."""

    def __init__(
        self,
        *,
        run_dir: Path,
        topic: str,
        folder: Path,
        run: int,
        places: Sequence[Place],
        value_bytes: int,
    ) -> None:
        self._run_dir = run_dir
        self._topic = topic
        self._folder = folder
        self.run = run
        self._kinds = tuple(places)
        self._is_hurried = False
        self._value_bytes = value_bytes
        self.clients: list[ClientRun] = []
        """All clients that were ever started."""
        self._places: list[ClientRun] = [self._start(place) for place in range(len(places))]

    @property
    def live(self) -> list[ClientRun]:
        return [client for client in self._places if not client.over]

    @property
    def sent(self) -> int:
        return sum(client.journal.sent for client in self.clients)

    def kill(self, client: ClientRun) -> ClientRun:
        """Kill a client. Returns its successor, which is started at once."""
        client.killed = True
        client.process.kill()
        client.process.wait()
        self._places[client.place] = self._start(client.place)
        return self._places[client.place]

    def at(self, place: int) -> ClientRun:
        """The client that has the place now."""
        return self._places[place]

    def end(self, client: ClientRun) -> ClientRun:
        """Let a client flush and close. Returns its successor, which is started when it is gone."""
        client.journal.head[Head.STOP] = 1
        wait_until(
            lambda: client.process.poll() is not None,
            f"client {client.number} to have every outcome",
            timeout_s=END_TIMEOUT_S,
        )
        self.tend()
        return self._places[client.place]

    def tend(self) -> None:
        """Start successors for the clients that have ended. Raises WorkloadFailed when too many failed."""
        for client in list(self._places):
            if client.process.poll() is not None:
                if client.journal.state is not ClientState.ENDED and not client.killed:
                    self._note_broken(client)
                self._places[client.place] = self._start(client.place)

    def hurry(self) -> None:
        """Send as fast as records are accepted from now on."""
        self._is_hurried = True
        for client in self.live:
            client.journal.head[Head.RATE] = 0

    def finish(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Let all clients flush and close, and wait for them."""
        for client in self._places:
            client.journal.head[Head.STOP] = 1
        wait_until(
            lambda: all(client.process.poll() is not None for client in self._places),
            "the clients to have every outcome",
            timeout_s=timeout_s,
            describe=lambda: str(
                [(each.number, each.journal.sent, each.journal.state.name) for each in self.live]
            ),
        )
        for client in self._places:
            if client.journal.state is not ClientState.ENDED and not client.killed:
                self._note_broken(client)

    @property
    def killed(self) -> set[int]:
        """Numbers of the clients that we killed."""
        return {client.number for client in self.clients if client.killed}

    @property
    def raised(self) -> list[str]:
        """Errors that clients raised, or their exits; there must be none."""
        return [
            f"client {client.number}: "
            + (client.journal.raised_text or f"ended with status {client.process.returncode}")
            for client in self.clients
            if not client.killed
            and client.process.poll() is not None
            and client.journal.state is not ClientState.ENDED
        ]

    def stop(self) -> None:
        """Kill the remaining clients. May be called again."""
        for client in self.clients:
            if client.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(client.process.pid, signal.SIGKILL)
                client.process.wait()

    def close(self) -> None:
        self.stop()
        for client in self.clients:
            client.journal.close()

    def _note_broken(self, client: ClientRun) -> None:
        if len(self.raised) >= BROKEN_MAX:
            raise WorkloadFailed("clients end by themselves:\n" + "\n".join(self.raised))

    def _start(self, place: int) -> ClientRun:
        number, kind = len(self.clients), self._kinds[place]
        journal = ClientJournal.create(self._folder / f"client-{number}", kind.records_max)
        journal.head[Head.RATE] = 0 if self._is_hurried else kind.rate
        journal.head[Head.VISIT_RECORDS] = kind.visit_records
        journal.head[Head.PLACE] = place
        process = subprocess.Popen(
            dying_with_parent(
                python_command(
                    kind.module,
                    str(self._run_dir),
                    self._topic,
                    str(journal.path),
                    *map(str, (self.run, number, self._value_bytes)),
                )
            ),
            stdin=subprocess.DEVNULL,
        )
        client = ClientRun(number, place, journal, process)
        self.clients.append(client)
        return client
