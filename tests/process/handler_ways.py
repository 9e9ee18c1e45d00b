"""The program of test_signal_handlers.py: WAY RUN_DIR SECONDS. Sends without pause while something interrupts it.

At the end one line of JSON: {name of a sender: [records it sent, numbers of those whose call was broken off]}.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from client_stub import Producer
from client_stub.errors import ForkedProducer

TICK_S = 0.001
FORK_EVERY = 25
"""Ticks."""
CHILD_RECORDS = 5
WAIT_S = 60


class Interrupted(Exception):
    """The exception of a handler."""


class Sender:
    """Numbers its records. A call that an exception broke off is begun and not done: its record may arrive or not."""

    def __init__(self, name: str, producer: Producer) -> None:
        self.name, self.producer = name, producer
        self.begun: list[int] = []
        self.done: list[int] = []
        self.last: Any = None

    def send(self) -> None:
        number = len(self.begun)
        self.begun.append(number)
        # Each other one by the slow way: with a header.
        headers = [("h", b"x")] if number % 2 else None
        self.last = self.producer.send("t", b"%s-%d" % (self.name.encode(), number), headers=headers)
        self.done.append(number)

    def report(self) -> dict[str, list[Any]]:
        return {self.name: [len(self.begun), sorted(set(self.begun) - set(self.done))]}


def tick(handler: Any) -> None:
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)


def stop_ticking() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


def send_for(main: Sender, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        main.send()


def handlers_that_send(producer: Producer, seconds: float, *, wait: bool) -> dict[str, list[Any]]:
    main, handler = Sender("main", producer), Sender("handler", producer)
    is_busy = False

    def send(*_: Any) -> None:
        nonlocal is_busy
        if is_busy:
            return  # a handler may be interrupted too, and would overtake itself
        is_busy = True
        handler.send()
        if wait:
            signal.setitimer(signal.ITIMER_REAL, 0)
            handler.last.result(WAIT_S)
            producer.flush(WAIT_S)
            signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        is_busy = False

    tick(send)
    send_for(main, seconds)
    stop_ticking()
    return main.report() | handler.report()


def handlers_that_raise(producer: Producer, seconds: float) -> dict[str, list[Any]]:
    main = Sender("main", producer)
    is_armed = False

    def throw(*_: Any) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False  # once for each call: nothing is to be raised where the exception is caught
            raise Interrupted

    tick(throw)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        with contextlib.suppress(Interrupted):
            is_armed = True
            main.send()
            is_armed = False
    stop_ticking()
    return main.report()


def exceptions_from_another_thread(producer: Producer, seconds: float) -> dict[str, list[Any]]:
    """As a task queue gives up on a task. It may strike where the last one is handled: then the thread ends."""
    main = Sender("main", producer)
    ends = time.monotonic() + seconds

    def send() -> None:
        while time.monotonic() < ends:
            with contextlib.suppress(Interrupted):
                send_for(main, seconds)

    threading.excepthook = lambda _: None
    while time.monotonic() < ends:
        thread = threading.Thread(target=send)
        thread.start()
        while thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupted)
            )
            time.sleep(TICK_S)
    return main.report()


def handlers_that_fork(producer: Producer, seconds: float, *, goes_on: bool) -> dict[str, list[Any]]:
    """Each child sends; with ``goes_on`` from where its parent was interrupted, else out of the handler."""
    main = Sender("main", producer)
    reports = main.report()
    children: list[int] = []
    ticks = 0
    child: Sender | None = None

    def leave(sender: Sender) -> None:
        status = 1
        try:
            for _ in range(CHILD_RECORDS):
                sender.send()
            producer.flush(WAIT_S)
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def fork(*_: Any) -> None:
        nonlocal ticks, child
        ticks += 1
        if ticks % FORK_EVERY or child is not None:
            return
        name = f"child{len(children)}"
        pid = os.fork()
        if pid:
            children.append(pid)
            return
        child = Sender(name, producer)
        if not goes_on:
            leave(child)

    tick(fork)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            main.send()
        except ForkedProducer:
            assert child is not None
        if child is not None:
            leave(child)
    stop_ticking()
    for place, pid in enumerate(children):
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"child {place} ended with {status}"
        reports[f"child{place}"] = [CHILD_RECORDS, []]
    return reports | main.report()


def threads_that_fork(run_dir: str) -> dict[str, list[Any]]:
    """Eight threads fork at the same moments; no child may keep any of its parent's producers."""
    sys.setswitchinterval(1e-6)
    producers = [Producer(run_dir) for _ in range(30)]
    futures = [producer.send("t", b"producer%d-0" % place) for place, producer in enumerate(producers)]
    barrier = threading.Barrier(8)
    statuses: list[int] = []

    def fork() -> None:
        for _ in range(25):
            barrier.wait(WAIT_S)
            pid = os.fork()
            if not pid:
                status = 0
                try:
                    for future in futures:
                        try:
                            future.result(0)
                            status = 1
                        except ForkedProducer:
                            pass
                        except TimeoutError:
                            status = 2
                finally:
                    os._exit(status)
            statuses.append(os.waitpid(pid, 0)[1])

    threads = [threading.Thread(target=fork) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert statuses == [0] * 200, f"{sum(map(bool, statuses))} of {len(statuses)} children keep a producer"
    for producer in producers:
        producer.close(0)
    return {}


def main() -> None:
    way, run_dir, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    if way == "threads that fork":
        print(json.dumps(threads_that_fork(run_dir)))
        return
    producer = Producer(run_dir)
    producer.send("t", b"warm-0").result(WAIT_S)
    match way:
        case "handlers that send":
            reports = handlers_that_send(producer, seconds, wait=False)
        case "handlers that wait":
            reports = handlers_that_send(producer, seconds, wait=True)
        case "handlers that raise":
            reports = handlers_that_raise(producer, seconds)
        case "exceptions from another thread":
            reports = exceptions_from_another_thread(producer, seconds)
        case "handlers that fork":
            reports = handlers_that_fork(producer, seconds, goes_on=False)
        case "handlers that fork and return":
            reports = handlers_that_fork(producer, seconds, goes_on=True)
        case _:
            raise SystemExit(f"{way!r} is no way")
    producer.flush(WAIT_S)
    producer.close(WAIT_S)
    print(json.dumps(reports | {"warm": [1, []]}))


if __name__ == "__main__":
    main()
