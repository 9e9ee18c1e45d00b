"""Outcome: what a steady sender reported, compared with its topic as an independent consumer reads it."""

from __future__ import annotations

import json
import subprocess
import threading
from dataclasses import dataclass

from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.reading import read_topic
from tests.deploy.steady_sender import DELIVERING

NAME = "steady"


@dataclass(frozen=True)
class Outcome:
    """Counts of one sender. Nothing of it was lost, doubled or reordered: that is judged before."""

    sent: int
    failed: int
    longest_silence_s: float


class Sender:
    """A running steady_sender.py, wherever its command line puts it."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._words: list[str] = []
        self._report = ""
        self._delivering = threading.Event()
        # Both at once: a report of many failures fills its pipe.
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read_words, self._read_report)
        ]
        for reader in self._readers:
            reader.start()

    def _read_words(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._words.append(line)
            if line.strip() == DELIVERING:
                self._delivering.set()
        self._delivering.set()  # it has ended: nobody waits in vain

    def _read_report(self) -> None:
        assert self._process.stdout is not None
        self._report = self._process.stdout.read()

    def wait_delivering(self, timeout_s: float = 60.0) -> None:
        """Returns when its first record was acknowledged. Raises AssertionError when that never happens."""
        assert self._delivering.wait(timeout_s), "nothing was acknowledged"
        assert self._process.poll() is None, "".join(self._words[-20:])

    def outcome(self, bootstrap_servers: str, topic: str, timeout_s: float = 150.0) -> Outcome:
        """Wait for its end and read the topic. Raises AssertionError for anything lost, doubled or reordered."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"no end within {timeout_s:g} s: {''.join(self._words[-20:])}") from None
        for reader in self._readers:
            reader.join(5)
        assert self._process.returncode == 0, "".join(self._words[-20:])
        report = json.loads(self._report.splitlines()[-1])
        ledger = Ledger()
        ledger.sent(NAME, report["sent"])
        failed = {int(number): bool(possibly) for number, _, possibly in report["failed"]}
        for number in range(report["sent"]):
            record = RecordId(NAME, number)
            if number in failed:
                ledger.failed(record, possibly_persisted=failed[number])
            else:
                ledger.delivered(record)
        for read in read_topic(bootstrap_servers, topic):
            ledger.read(RecordId.decode(read.value or b""), read.partition)
        ledger.check()
        assert report["delivered"] == report["sent"] - len(failed)
        return Outcome(report["sent"], len(failed), report["longest_silence_s"])

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
