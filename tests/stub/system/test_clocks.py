"""Goal: a wait with a timeout ends, whatever the application does to its clocks and signals.

No time is measured: a wait that does not end is ended by the test's own timeout.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import time_machine
from freezegun import freeze_time

from client_stub import Producer
from client_stub.compat import confluent
from client_stub.errors import BufferExhausted, DaemonLost, DaemonUnreachable, SidecarError
from client_stub.testing import FakeProducer
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

pytestmark = pytest.mark.timeout(100)

SHORT_MS = 300.0


@pytest.fixture(params=["freezegun", "time-machine", "replaced"], autouse=True)
def stopped_clock(request: pytest.FixtureRequest) -> Iterator[None]:
    """All clocks stand still. Autouse comes first: what a producer starts must not see another clock either."""
    if request.param == "freezegun":
        with freeze_time("2030-01-01"):
            yield
    elif request.param == "time-machine":
        with time_machine.travel(0, tick=False):
            yield
    else:
        clocks = {"time": 0.0, "monotonic": 0.0, "perf_counter": 0.0, "time_ns": 10**18, "sleep": None}
        with contextlib.ExitStack() as patches:
            for name, value in clocks.items():
                patches.enter_context(mock.patch.object(time, name, lambda *_, value=value: value))
            yield


def test_without_a_daemon(run_dir: Path) -> None:
    producer = Producer(run_dir, connect_timeout_ms=SHORT_MS)
    with pytest.raises(DaemonUnreachable):
        producer.partitions_for("a", SHORT_MS / 1e3)
    with pytest.raises(DaemonUnreachable):
        producer.send("a", b"1")
    producer.close(SHORT_MS / 1e3)


def test_for_room(daemon: FakeDaemon) -> None:
    daemon.accept = lambda client, submit: False
    producer = Producer(daemon.run_dir, max_block_ms=SHORT_MS)
    producer.send("a", b"1")
    producer._engine.outbox.buffer_bytes = 1
    eventually(lambda: producer._engine.outbox.closed_bytes)
    with pytest.raises(BufferExhausted):
        producer.send("a", b"2")
    producer.close(0)


def test_for_an_outcome_among_wakeups_and_signals(daemon: FakeDaemon) -> None:
    """Other changes wake each waiting caller, and so do signals: none of them begins its time again."""
    daemon.deliver = None
    producer = Producer(daemon.run_dir)
    waiting, bulk = producer.send("a", b"1"), producer.send_many("a", [(None, b"2")])
    has_ended = threading.Event()

    def wake() -> None:
        while not has_ended.wait(0.01):
            producer._engine.outbox.waiters.notify()

    former = signal.signal(signal.SIGALRM, lambda *_: None)
    # The test's own timeout may use this timer: it is put back.
    timer = signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    waker = threading.Thread(target=wake)
    waker.start()
    try:
        for wait in (waiting.result, waiting.exception, bulk.result, producer.flush):
            with pytest.raises(TimeoutError):
                wait(SHORT_MS / 1e3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, former)
        has_ended.set()
        waker.join()
    producer.close(0)


def test_for_a_daemon_that_went_away(daemon: FakeDaemon) -> None:
    """Also of a record that nobody waits for, so that its submission stays open."""
    outcomes: list[SidecarError | None] = []
    producer = Producer(daemon.run_dir, delivery_timeout_ms=SHORT_MS)
    producer.send("a", b"1").result(10)
    daemon.stop()
    eventually(lambda: producer._engine.outbox.waiters.reasons.last_word)
    producer.send("a", b"2", on_delivery=lambda error, _: outcomes.append(error))
    eventually(lambda: outcomes, 20)
    assert isinstance(outcomes[0], DaemonLost)
    producer.close(0)


def test_of_the_twins(daemon: FakeDaemon) -> None:
    daemon.deliver = None
    twin = confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)})
    twin.produce("a", b"1")
    assert twin.poll(SHORT_MS / 1e3) == 0
    assert twin.flush(SHORT_MS / 1e3) == 1
    twin._close(0)


def test_of_the_fakes() -> None:
    producer = FakeProducer()
    producer.hold()
    bulk = producer.send_many("a", [(None, b"1"), (None, b"2")])
    with pytest.raises(TimeoutError):
        bulk.result(SHORT_MS / 1e3)
