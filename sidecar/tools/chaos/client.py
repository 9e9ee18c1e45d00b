"""One client of the workload: ``python -m sidecar.tools.chaos.client RUN_DIR TOPIC JOURNAL RUN NUMBER VALUE_BYTES``.

It sends numbered records at the rate in its journal until that says stop, then flushes and closes. It knows nothing of
faults: whatever is killed or cut, no call of its producer may raise.
"""

from __future__ import annotations

import struct
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from client_stub import Producer
from sidecar.tools.chaos.client_journal import ClientJournal, ClientState, Head, delivered_word, failed_word

RECORD_ID = struct.Struct("<IIQ")
"""Run, client, number: the first bytes of every value."""
KEYS = 13
BURST = 50
BLOCK_MS = 120_000
FLUSH_S = 180.0


class Client:
    """Belongs to the main thread; callbacks run on the producer's io thread and store one word each."""

    def __init__(self, connect: Callable[[], Producer], topic: str, journal: ClientJournal) -> None:
        self._connect = connect
        self._topic = topic
        self._journal = journal
        self._head = journal.head
        self._words = journal.words

    def run(self, run: int, client: int, value_bytes: int) -> None:
        """Send until the journal says stop: with one producer, or one after the other."""
        head, records_max = self._head, self._journal.records_max
        filler = b"." * max(0, value_bytes - RECORD_ID.size)
        number = 0
        while not head[Head.STOP] and number < records_max:
            visit = head[Head.VISIT_RECORDS] or records_max
            with self._connect() as producer:
                number = self._send(producer, (run, client, filler), number, min(number + visit, records_max))
                producer.flush(timeout=FLUSH_S)

    def _send(self, producer: Producer, record: tuple[int, int, bytes], number: int, end: int) -> int:
        """Send records from ``number`` to ``end``, or until the stop. Returns the number of the next one."""
        head, send, topic = self._head, producer.send, self._topic
        run, client, filler = record
        keys = [b"key-%d" % each for each in range(KEYS)]
        due_s = time.monotonic()
        head[Head.STATE] = ClientState.SENDING
        while not head[Head.STOP] and number < end:
            for _ in range(min(BURST, end - number)):
                head[Head.SENT] = (
                    number + 1
                )  # before it is true: nobody shall find a record that was never sent
                send(
                    topic,
                    value=RECORD_ID.pack(run, client, number) + filler,
                    # With and without a key in turn; order is kept per partition either way.
                    key=keys[number % KEYS] if number & 1 else None,
                    on_delivery=partial(self._on_delivery, number),
                )
                number += 1
            rate = head[Head.RATE]
            now_s = time.monotonic()
            # A delayed client continues at its rate; it does not send the missing minutes at once.
            due_s = max(due_s + BURST / rate, now_s - 1.0) if rate else now_s
            if due_s > now_s:
                time.sleep(due_s - now_s)
        return number

    def _on_delivery(self, number: int, error: Any, metadata: Any) -> None:
        head, words = self._head, self._words
        if words[number]:
            head[Head.DECIDED_TWICE] += 1
        elif error is None:
            words[number] = delivered_word(metadata.partition, metadata.offset)
            if number >= head[Head.NEWEST]:
                head[Head.NEWEST] = number + 1
        else:
            words[number] = failed_word(possibly_persisted=int(getattr(error, "persistence", 0)) != 0)


class Runs(Protocol):
    """A kind of clients."""

    def __init__(self, connect: Callable[..., Producer], topic: str, journal: ClientJournal) -> None: ...
    def run(self, run: int, client: int, value_bytes: int) -> None: ...


def run_client(kind: type[Runs]) -> int:
    """Run the process of one client, by the arguments of its command line."""
    run_dir, topic, path = sys.argv[1:4]
    run, number, value_bytes = map(int, sys.argv[4:7])
    journal = ClientJournal.open(Path(path))

    def connect(**options: Any) -> Producer:
        return Producer(
            run_dir=run_dir,
            client_name=f"chaos-{number}",
            max_block_ms=BLOCK_MS,
            connect_timeout_ms=BLOCK_MS,
            delivery_timeout_ms=BLOCK_MS,
            **options,
        )

    try:
        kind(connect, topic, journal).run(run, number, value_bytes)
    except BaseException:
        journal.raised(traceback.format_exc(limit=-3))
        return 1
    journal.head[Head.STATE] = ClientState.ENDED
    return 0


if __name__ == "__main__":
    raise SystemExit(run_client(Client))
