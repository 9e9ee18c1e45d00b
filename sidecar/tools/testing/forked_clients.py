"""Forked clients for the process tests: they number their records and report the outcome of each.

``python -m sidecar.tools.testing.forked_clients RUN_DIR TOPIC CLIENTS RECORDS`` is a separate program, since it forks.
The parent sends through its producer first and keeps it open, as a pre-forking server would. Odd children go on with
the inherited producer object, even ones make their own. The result is one line of JSON: a :class:`ClientReport` for
each sender.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.common.python_child import python_command
from sidecar.tools.testing.forking import fork_and_collect
from sidecar.tools.testing.ledger import Ledger, RecordId

if TYPE_CHECKING:
    from client_stub import Producer

KEYS = 13
FLUSH_S = 120.0
PARENT_RECORDS = 100


class ClientReport(NamedTuple):
    """Outcomes of one sender: the numbers of the records that were delivered, and those of the records that failed."""

    name: str
    sent: int
    delivered: list[int]
    failed: list[tuple[int, bool, str]]
    """Record number, whether it may be persisted, error text."""


def enter(reports: list[ClientReport], ledger: Ledger) -> None:
    """Enter the outcomes that the senders reported into ``ledger``."""
    for report in reports:
        ledger.sent(report.name, report.sent)
        for number in report.delivered:
            ledger.delivered(RecordId(report.name, number))
        for number, possibly, _text in report.failed:
            ledger.failed(RecordId(report.name, number), possibly_persisted=possibly)


def start_clients(run_dir: Path | str, topic: str, clients: int, records: int) -> subprocess.Popen[str]:
    """Start the program and return its process. :func:`collect` waits for its end."""
    return subprocess.Popen(
        python_command(
            "sidecar.tools.testing.forked_clients", str(run_dir), topic, str(clients), str(records)
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def collect(process: subprocess.Popen[str], timeout_s: float = 180.0) -> list[ClientReport]:
    """Wait for the program and return its reports. Raises RuntimeError with its output when it failed or is late."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise RuntimeError(f"the clients did not end within {timeout_s:g} s: {err}") from None
    if process.returncode != 0:
        raise RuntimeError(f"the clients ended with {process.returncode}: {err}")
    return [
        ClientReport(name, sent, delivered, [(n, bool(p), str(text)) for n, p, text in failed])
        for name, sent, delivered, failed in json.loads(out)
    ]


class NumberedSender:
    """Sends numbered records through one producer and notes the outcome of each."""

    def __init__(self, name: str, producer: Producer, topic: str) -> None:
        self.name = name
        self._producer = producer
        self._topic = topic
        self._sent = 0
        self._delivered: list[int] = []
        self._failed: list[tuple[int, bool, str]] = []

    def send(self, count: int) -> None:
        """Send ``count`` records, each with a callback."""
        for _ in range(count):
            number = self._sent
            value, key = RecordId(self.name, number).encode(), b"key-%d" % (number % KEYS)

            def on_delivery(error: Any, _metadata: object, number: int = number) -> None:
                self._note(number, error)

            self._producer.send(self._topic, value=value, key=key, on_delivery=on_delivery)
            self._sent += 1

    def _note(self, number: int, error: Any) -> None:
        if error is None:
            self._delivered.append(number)
        else:
            possibly = int(getattr(error, "persistence", 0)) != 0
            self._failed.append((number, possibly, f"{type(error).__name__}: {error}"))

    def report(self) -> ClientReport:
        """Flush the producer, then return the outcomes noted."""
        self._producer.flush(timeout=FLUSH_S)
        return ClientReport(self.name, self._sent, self._delivered, self._failed)


def run_child(name: str, producer: Producer, topic: str, records: int) -> ClientReport:
    sender = NumberedSender(name, producer, topic)
    sender.send(records)
    return sender.report()


def main() -> int:
    """Fork the clients, collect their reports, and print all as one JSON array."""
    from client_stub import Producer

    run_dir, topic, clients, records = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with Producer(run_dir=run_dir, client_name="parent") as inherited:
        parent = NumberedSender("parent", inherited, topic)
        parent.send(PARENT_RECORDS)  # not flushed: the children are forked with these in flight

        def child(index: int) -> ClientReport:
            name = f"client-{index}"
            if index % 2:
                return run_child(name, inherited, topic, records)
            with Producer(run_dir=run_dir, client_name=name) as own:
                return run_child(name, own, topic, records)

        reports = fork_and_collect(clients, child)
        ended = [report for report in reports if report is not None]
        print(json.dumps([*ended, parent.report()]))
    return 0 if len(ended) == clients else 1


if __name__ == "__main__":
    raise SystemExit(main())
