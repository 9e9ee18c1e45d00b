"""A process that ends or forks without a close() loses no record, whatever its producers were doing."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from client_stub import Producer
from client_stub.io import process_end
from client_stub.io.transport import Transport
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

ROOT: Final = Path(__file__).resolve().parents[3]
WAIT_S: Final = 10
RECORDS: Final = 7
"""Of a megabyte each: more than the daemon takes before it has accepted the first ones."""
DROPPED: Final = f"""
import sys
from client_stub import Producer

def work():
    producer = Producer(sys.argv[1])
    for _ in range({RECORDS}):
        producer.send("t", bytes(1_000_000))

work()
print("left", flush=True)
"""
CHILD: Final = f"""
import multiprocessing, sys
from client_stub import Producer

def work(keeps):
    global producer
    producer = Producer(sys.argv[1])
    for _ in range({RECORDS}):
        producer.send("t", bytes(1_000_000))
    if not keeps:
        del producer
    print("left", flush=True)

child = multiprocessing.get_context("fork").Process(target=work, args=(sys.argv[2] == "keeps",))
child.start()
child.join()
sys.exit(child.exitcode)
"""
CANCELLED: Final = f"""
import asyncio, sys
from client_stub import AsyncProducer

async def main():
    producer = AsyncProducer(sys.argv[1])
    for _ in range({RECORDS}):
        await producer.send("t", bytes(1_000_000))
    try:
        await asyncio.wait_for(producer.close(), 0.01)
    except TimeoutError:
        print("left", flush=True)

asyncio.run(main())
"""
EXITING: Final = """
import multiprocessing, os, signal, sys
from client_stub import Producer; from client_stub.outbox import waiters

def work():
    global producers
    signal.alarm(240)  # it interrupts each of its waits, and would outlive a parent that a time limit ends
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    producers = [Producer(sys.argv[1]) for _ in range(2)]
    for producer, topic in zip(producers, "ab"):
        producer.send(topic, b"1")
        producer.flush(until="accepted")
    wait = waiters.Waiters.wait_until

    def interrupted(self, ready, timeout, **more):
        signal.raise_signal(signal.SIGTERM)
        return wait(self, ready, timeout, **more)

    waiters.Waiters.wait_until = interrupted

child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
sys.exit(child.exitcode)
"""


@pytest.mark.parametrize(
    ("script", "word"),
    [(DROPPED, ""), (CHILD, "keeps"), (CHILD, "drops"), (CANCELLED, "")],
    ids=["dropped", "child", "both", "cancelled"],
)
def test_the_end_of_a_process_waits_for_records_of_a_producer_that_nobody_closed(
    daemon: FakeDaemon, script: str, word: str
) -> None:
    """A local variable of a function that has returned; a child of multiprocessing, which asks atexit nothing; a
    close() that was cancelled.
    """
    may_accept = threading.Event()

    def accept(*_: object) -> bool:
        assert may_accept.wait(WAIT_S)
        return True

    daemon.accept = accept
    with subprocess.Popen(
        [sys.executable, "-c", script, str(daemon.run_dir), word],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"left\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
        finally:
            may_accept.set()
        assert process.wait(WAIT_S) == 0
    assert sum(submit.count for submit in daemon.received) == RECORDS


THREAD: Final = """
import multiprocessing, sys, threading
from client_stub import Producer

def work():
    producer = Producer(sys.argv[1])
    producer.send("t", b"0").result(10)
    kept.append(producer)
    threading.Thread(target=lambda: [producer.send("t", b"1").result(10) for _ in range(300)]).start()

kept = []
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
sys.exit(child.exitcode)
"""


def test_a_thread_that_outlives_the_work_of_a_child_keeps_sending(daemon: FakeDaemon) -> None:
    """multiprocessing waits for it, but only behind its own calls at the end."""
    ended = subprocess.run(
        [sys.executable, "-c", THREAD, str(daemon.run_dir)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sum(submit.count for submit in daemon.received) == 301


class Living:
    """A producer that has nothing to wait for."""

    was_interrupted = False

    def flush(self, timeout: float | None = None) -> int:
        raise AssertionError("this is no child of multiprocessing")

    def close(self, timeout: float | None, occasion: str = "") -> None:
        pass

    def forked_child(self) -> None:
        pass


@pytest.mark.parametrize(
    ("interruption", "shared"),
    [
        (None, [10.0, 3.0, 0.0]),
        (KeyboardInterrupt(), [10.0, 0.0, 0.0, 0.0]),
        (SystemExit(143), [10.0, 0.0, 0.0, 0.0]),
    ],
    ids=["", "ctrl-c", "sys.exit"],
)
def test_all_producers_of_a_process_share_the_time_at_its_end(
    monkeypatch: pytest.MonkeyPatch, interruption: BaseException | None, shared: list[float]
) -> None:
    """Ctrl-C, or a signal handler's sys.exit(), ends the wait for all of them, and each still says what it has not
    delivered."""
    now_s = 100.0
    timeouts: list[float | None] = []

    class Slow(Living):
        def close(self, timeout: float | None, occasion: str = "") -> None:
            nonlocal now_s
            timeouts.append(timeout)
            now_s += 7.0
            if interruption is not None and timeout:
                raise interruption

    kept = [Slow() for _ in range(3)]
    monkeypatch.setattr(process_end, "monotonic", lambda: now_s)
    monkeypatch.setattr(process_end, "_living", weakref.WeakKeyDictionary(dict.fromkeys(kept)))
    monkeypatch.setattr(process_end, "_leaving", set())
    process_end.at_exit()
    assert timeouts == shared


def test_a_signal_handler_that_exits_ends_the_wait_and_each_producer_logs_its_records(
    daemon: FakeDaemon,
) -> None:
    """Also a second signal. The status of a multiprocessing child is that of its handler, where it can be."""
    daemon.deliver = None
    ended = subprocess.run(
        [sys.executable, "-c", EXITING, str(daemon.run_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == (143 if sys.version_info < (3, 13) else 0), ended.stderr
    for topic in ("a", "b"):
        assert (
            f"1 record for topic {topic} had no outcome when the producer was closed at the end"
            in ended.stderr
        )
    assert "Traceback" not in ended.stderr
    assert eventually(lambda: len(daemon.byes) == 2) and daemon.byes == [True, True]


def test_the_list_of_producers_is_whole_while_other_threads_make_some() -> None:
    kept = [Living() for _ in range(1_000)]
    for each in kept:
        process_end.enter(each)
    has_ended = threading.Event()

    def make() -> None:
        while not has_ended.is_set():
            process_end.enter(made := Living())
            process_end.leave(made)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    maker = threading.Thread(target=make)
    maker.start()
    try:
        for _ in range(50):
            process_end._after_fork_in_child()
    finally:
        has_ended.set()
        maker.join()
        sys.setswitchinterval(interval_s)
        for each in kept:
            process_end.leave(each)


@pytest.mark.parametrize("on_delivery", [None, lambda *_: None], ids=["future", "callback"])
def test_undelivered_records_of_a_dropped_producer_are_reported_once(
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    on_delivery: Callable[..., None] | None,
) -> None:
    """As for a producer that is still there, also when Ctrl-C comes amid the wait for its thread."""
    daemon.deliver = None
    monkeypatch.setattr(process_end, "_living", weakref.WeakKeyDictionary())
    monkeypatch.setattr(process_end, "EXIT_FLUSH_S", 0.05)
    producer = Producer(daemon.run_dir)
    producer.send("t", b"1", on_delivery=on_delivery)
    producer.flush(WAIT_S, until="accepted")
    io = producer._engine.io
    assert io is not None
    join, interruptions = io.join, [KeyboardInterrupt()]

    def interrupted(timeout: float | None) -> None:
        join(timeout)
        if timeout == process_end.CANCEL_S and interruptions:
            raise interruptions.pop()

    monkeypatch.setattr(io, "join", interrupted)
    monkeypatch.setattr(
        io, "request_close", lambda cancel, close=io.request_close: interruptions or close(cancel=cancel)
    )
    del producer
    process_end.at_exit()
    (line,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert line == (
        "1 record for topic t had no outcome when the producer was closed at the end of the process: "
        "the daemon has accepted it and delivers it."
    )
    assert eventually(lambda: daemon.byes) == [True] and not interruptions


def test_producers_that_are_dropped_one_by_one_are_not_remembered(daemon: FakeDaemon) -> None:
    for number in range(5):
        producer = Producer(daemon.run_dir)
        producer.send("t", b"1").result(WAIT_S)
        del producer
        eventually(lambda number=number: len(daemon.byes) > number)
        eventually(lambda: all(io.has_ended for io in process_end._leaving))
    assert len(process_end._leaving) <= 1


def test_a_close_that_ctrl_c_breaks_off_at_its_end_harms_no_producer_of_a_later_fork(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of that one has ended, and giving up its sockets once more raised: the child's other producers kept
    their parent's, and waited for ever."""
    producers = [Producer(daemon.run_dir) for _ in range(6)]
    for each in producers:
        each.send("t", b"parent").result(WAIT_S)
    closing, others = producers[0], producers[1:]
    io = closing._engine.io
    assert io is not None
    join = io.join

    def interrupted(timeout: float | None) -> None:
        join(timeout)
        raise KeyboardInterrupt

    monkeypatch.setattr(io, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        closing.close()
    eventually(lambda: io.has_ended)
    child = os.fork()
    if not child:
        good = 0
        try:
            good = sum(each.send("t", b"child").result(WAIT_S).offset >= 0 for each in others)
        finally:
            os._exit(good)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(others)
    monkeypatch.undo()
    for each in producers:
        each.close()


def test_a_transport_is_given_up_any_number_of_times(run_dir: Path) -> None:
    transport = Transport(str(run_dir / "control.sock"))
    transport.close(None)
    transport.forked()
    transport.close(None)


FORKS: Final = """
import os, sys, threading
from client_stub import Producer

def fork(*_):
    children.append(os.fork())
    forked.set()

children, forked = [], threading.Event()
producer = Producer(sys.argv[1])
producer.send("t", b"1", on_delivery=fork)
del producer
print("left", flush=True)
forked.wait(10)
print(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
"""


def test_a_callback_that_forks_leaves_the_child_nothing_of_a_dropped_producer(daemon: FakeDaemon) -> None:
    """The child once went on as the io thread of its parent's producer, on the same connection."""
    daemon.accept = lambda client, submit: False
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, str(daemon.run_dir)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"left\n"
        eventually(lambda: daemon.received)
        daemon.accept = lambda client, submit: True
        daemon.kill_worker()
        assert process.stdout.readline() == b"0\n", "how the child ended"
        assert process.wait(WAIT_S) == 0
    assert eventually(lambda: daemon.byes) == [False], "only the parent's"
