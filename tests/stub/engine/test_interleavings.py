"""Callers act between any two steps of byte code of the io thread: nothing is lost, doubled or reordered.

The interpreter lets threads change places about every 5 ms, so a race of a few steps shows once in millions of records.
Here the io thread stops before steps that a seed chooses, and a caller does one thing there.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import client_stub
from client_stub import Delivery, Producer
from client_stub.outbox import outbox
from tests.stub.fake_daemon import Client, FakeDaemon, Submit

STUB: Final = str(Path(client_stub.__file__).parent)
SEEDS: Final = 12
LONG_TIMES: Final = 50
TURNS: Final = 1_500
TURNS_OF_A_WORKER: Final = 150
TOPICS: Final = 3
STEPS_MAX: Final = 60
"""The io thread runs at most this many steps between two stops."""
BEFORE: Final = 1
"""One record is sent before, as the first one waits for the io thread to connect."""
IDLE_S: Final = 0.005
WAIT_S: Final = 20.0


class Stops:
    """Stops the io thread before steps that the seed chooses."""

    def __init__(self, seed: int) -> None:
        self.is_on = False
        self._random = random.Random(seed)
        self._steps_left = 1
        self._stopped = threading.Semaphore(0)
        self._goes_on = threading.Semaphore(0)

    def trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """For ``threading.settrace``."""
        if not self.is_on or not frame.f_code.co_filename.startswith(STUB):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._steps_left -= 1
            if self._steps_left <= 0:
                self._steps_left = self._random.randint(1, STEPS_MAX)
                self._stopped.release()
                assert self._goes_on.acquire(timeout=WAIT_S)
        return self.trace

    @contextlib.contextmanager
    def stop(self) -> Iterator[None]:
        """Within the block the io thread stands still, or it sleeps as there is nothing to do."""
        is_stopped = self._stopped.acquire(timeout=IDLE_S)
        try:
            yield
        finally:
            if is_stopped:
                self._goes_on.release()

    def end(self) -> None:
        self.is_on = False
        self._goes_on.release()


class Caller:
    """Does one thing after another, as a seed chooses, and knows what has to arrive."""

    def __init__(self, producer: Producer, seed: int) -> None:
        self.sent: dict[str, list[bytes]] = {f"topic-{number}": [] for number in range(TOPICS)}
        self.deliveries: list[Delivery] = []
        self.watched: dict[str, list[bytes]] = {topic: [] for topic in self.sent}
        """Records whose outcomes have to be called back, in this order."""
        self.called: dict[str, list[bytes]] = {topic: [] for topic in self.sent}
        self._producer = producer
        self._random = random.Random(seed)

    @property
    def sent_count(self) -> int:
        return sum(map(len, self.sent.values()))

    def act(self) -> None:
        producer, topic, value = self._producer, self._random.choice(list(self.sent)), b"%d" % self.sent_count
        match self._random.randrange(10):
            case 0:
                values = [b"%s-%d" % (value, number) for number in range(self._random.randint(1, 50))]
                self.deliveries.append(producer.send_many(topic, [(None, each) for each in values]))
                self.sent[topic] += values
                return
            case 1:
                with contextlib.suppress(TimeoutError):
                    producer.flush(0)
                return
            case 2:
                counts = producer.stats()
                assert counts.sent == counts.delivered + counts.waiting
                assert counts.sent >= self.sent_count + BEFORE
                assert counts.delivered <= counts.accepted
                return
            case 3:
                with contextlib.suppress(TimeoutError):
                    producer.send(topic, value).result(0)
            case 4:
                producer.send(topic, value, on_delivery=lambda *_: self.called[topic].append(value))
                self.watched[topic].append(value)
            case 5:
                producer.send(topic, value)  # its future is dropped
            case _:
                self.deliveries.append(producer.send(topic, value))
        self.sent[topic].append(value)


@pytest.mark.parametrize(
    "times", [1, pytest.param(LONG_TIMES, marks=pytest.mark.long)], ids=["short", "long"]
)
@pytest.mark.parametrize("streams_max", [200, 1], ids=["", "one stream"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_callers_act_between_any_two_steps_of_the_io_thread(
    daemon: FakeDaemon,
    seed: int,
    streams_max: int,
    times: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrived: dict[str, list[bytes]] = {}
    daemon.limits["streams"] = streams_max
    if streams_max == 1:
        monkeypatch.setattr(outbox, "STREAMS_KEPT_MAX", 1)  # idle topics are forgotten all the time
        monkeypatch.setattr(outbox.Outbox, "_streams_max", 1)

    def deliver(client: Client, submit: Submit) -> None:
        arrived.setdefault(submit.topic, []).extend(bytes(record[1]) for record in submit.records)
        daemon.deliver_all(client, submit)

    daemon.deliver = deliver
    stops = Stops(seed)
    before = threading.gettrace()  # of the measurement of coverage
    threading.settrace(stops.trace)
    try:
        producer = Producer(daemon.run_dir)
        caller = Caller(producer, seed)
        producer.send("another", b"")
    finally:
        threading.settrace(before)  # type: ignore[arg-type]
    producer.flush()
    del arrived["another"]
    stops.is_on = True
    try:
        for turn in range(1, times * TURNS + 1):
            with stops.stop():
                caller.act()
            if not turn % TURNS_OF_A_WORKER:
                daemon.kill_worker()
    finally:
        stops.end()
    producer.close(WAIT_S)
    assert arrived == caller.sent
    counts = producer.stats()
    assert counts.sent == counts.accepted == counts.delivered == caller.sent_count + BEFORE
    assert all(each.result(0) for each in caller.deliveries)
    assert caller.called == caller.watched
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert bool(daemon.ended) == (streams_max == 1)
