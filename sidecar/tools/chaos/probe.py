"""The probe of a soak: a quiet client that times its records. Its arguments are those of
:mod:`sidecar.tools.chaos.client`.

The file ``JOURNAL.latencies`` beside its journal has, for each delivered record, when it was due (monotonic) and how
many seconds later its callback came. Latency counts from the moment the record was due, so it includes a ``send()``
that waits.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from client_stub import Producer
from sidecar.tools.chaos.client import FLUSH_S, RECORD_ID, Client, run_client
from sidecar.tools.chaos.client_journal import ClientJournal, ClientState, Head

LATENCY = struct.Struct("<dd")
"""(when due, seconds until the outcome)."""
_LOOK_BYTES = LATENCY.size * 65_536


def latencies_path(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}.latencies")


class Probe(Client):
    """A client that sends one record at a time, at the journal's rate."""

    def __init__(self, connect: Callable[[], Producer], topic: str, journal: ClientJournal) -> None:
        super().__init__(connect, topic, journal)
        self._file = latencies_path(journal.path).open("ab", buffering=0)

    def run(self, run: int, client: int, value_bytes: int) -> None:
        head = self._head
        filler = b"." * max(0, value_bytes - RECORD_ID.size)
        gap_s = 1.0 / head[Head.RATE]
        with self._connect() as producer:
            head[Head.STATE] = ClientState.SENDING
            due_s = time.monotonic()
            for number in range(self._journal.records_max):
                if head[Head.STOP]:
                    break
                time.sleep(max(0.0, due_s - time.monotonic()))
                head[Head.SENT] = number + 1
                producer.send(
                    self._topic,
                    value=RECORD_ID.pack(run, client, number) + filler,
                    on_delivery=partial(self._on_timed, number, due_s),
                )
                due_s += gap_s
            producer.flush(timeout=FLUSH_S)

    def _on_timed(self, number: int, due_s: float, error: Any, metadata: Any) -> None:
        self._on_delivery(number, error, metadata)
        if error is None:
            self._file.write(LATENCY.pack(due_s, time.monotonic() - due_s))


class LatencyReader:
    """Reads the latencies that a probe has written since the last call."""

    def __init__(self, journal: Path) -> None:
        self._path = latencies_path(journal)
        self._position = 0

    def read(self) -> list[float]:
        """The latencies in seconds, in the order of the outcomes."""
        return [latency_s for _, latency_s in self._records()]

    def _records(self) -> Iterator[tuple[float, float]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            while data := file.read(_LOOK_BYTES):
                data = data[: len(data) - len(data) % LATENCY.size]
                if not data:
                    return
                self._position += len(data)
                file.seek(self._position)
                yield from LATENCY.iter_unpack(data)


if __name__ == "__main__":
    raise SystemExit(run_client(Probe))
