"""Looks at the state that the threads of a producer share, while another thread sends. None may stumble over a
submission that comes or goes meanwhile: in the io thread that would end the producer.

A tracer stands in for the other threads. Before each step of byte code of a look, where the interpreter may give way to
another thread, topics and submissions are added and the oldest submission is removed.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import client_stub
from client_stub import Producer
from client_stub.engine.flush_wait import FlushWait
from client_stub.io.slow_topics import SLOW_MS, SlowTopics
from client_stub.native.hot import OpenStream
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.submission import Submission

PENDING: Final = 10
PACKAGE: Final = str(Path(client_stub.__file__).parent)


def slow_topics(producer: Producer) -> None:
    looker = SlowTopics(producer._engine.outbox, lambda *_: pytest.fail("no record has waited that long"))
    looker._slow(time.monotonic() * 1e3 - SLOW_MS)


def stats(producer: Producer) -> None:
    producer.stats()


def takes_records(producer: Producer) -> None:
    assert producer.takes_records


def flush_times_out(producer: Producer) -> None:
    FlushWait(producer._engine.outbox).timeout_error(0.0)


def flush_is_over(producer: Producer) -> None:
    assert not FlushWait(producer._engine.outbox, "accepted").is_over()


def line_about_the_left(producer: Producer) -> None:
    outbox = producer._engine.outbox
    outbox.failures.log_left(list(outbox.pending), outbox.waiters.reasons, "in a test")


class Senders:
    """Other threads, which get their turn before each step of byte code of the package."""

    def __init__(self, outbox: Outbox) -> None:
        self.turns = 0
        self._outbox = outbox
        self._names = (f"topic-{number}" for number in itertools.count())
        for _ in range(PENDING):
            self._add()

    def _add(self) -> None:
        name = next(self._names)
        self._outbox.streams[name] = OpenStream(name, self._outbox)
        self._outbox.pending[Submission(self._outbox.waiters, name, None, 0, 0)] = None

    def trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.turns += 1
            for _ in range(2):  # the number must change in each turn: that is how a dictionary notices it
                self._add()
            self._outbox.pending.pop(next(iter(self._outbox.pending)))
        return self.trace


@pytest.mark.parametrize(
    "look",
    [slow_topics, stats, takes_records, flush_times_out, flush_is_over, line_about_the_left],
    ids=lambda look: look.__name__,
)
def test_a_check_survives_concurrent_senders(short_dir: Path, look: Callable[[Producer], None]) -> None:
    with Producer(short_dir, max_block_ms=0) as producer:
        senders = Senders(producer._engine.outbox)
        before = sys.gettrace()
        sys.settrace(senders.trace)
        try:
            look(producer)
        finally:
            sys.settrace(before)
            producer._engine.outbox.pending.clear()
    assert senders.turns > 20
