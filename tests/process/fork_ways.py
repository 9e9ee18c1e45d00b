"""The program of test_forks.py: WAY RUN_DIR TOPIC FORKS. A thread sends without pause while the main thread forks."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from typing import Any

from client_stub import Producer
from client_stub.errors import ForkedProducer
from sidecar.tools.testing.ledger import RecordId
from sidecar.tools.testing.waiting import wait_until

CHILD_RECORDS = 50
BETWEEN_FORKS = 100
"""Records that the parent's thread sends between two forks."""
PAUSE_S = 0.001
FLUSH_S = 60


class Sender:
    """Numbers its records and notes what it is told; one line of JSON at the end."""

    def __init__(self, name: str, producer: Producer, topic: str) -> None:
        self.name, self.producer, self.topic = name, producer, topic
        self.sent = 0
        self.delivered: list[int] = []
        self.last: Any = None

    def send(self, count: int) -> None:
        for _ in range(count):
            number = self.sent

            def told(error: object, _metadata: object, number: int = number) -> None:
                if error is None:
                    self.delivered.append(number)

            self.last = self.producer.send(self.topic, RecordId(self.name, number).encode(), on_delivery=told)
            self.sent += 1

    def report(self) -> None:
        self.producer.flush(timeout=FLUSH_S)
        line = json.dumps([self.name, self.sent, self.delivered]) + "\n"
        # One write: lines of several processes stay whole.
        os.write(1, line.encode())


def send_and_report(name: str, producer: Producer, topic: str) -> None:
    sender = Sender(name, producer, topic)
    sender.send(CHILD_RECORDS)
    sender.report()


def with_own_producer(name: str, run_dir: str, topic: str) -> None:
    with Producer(run_dir=run_dir, client_name=name) as producer:
        send_and_report(name, producer, topic)


def child(way: str, name: str, parent: Sender) -> None:
    """The child's use of what it inherited."""
    if way == "sends":
        send_and_report(name, parent.producer, parent.topic)
    elif way == "closes":
        try:
            parent.last.result(timeout=1)
        except ForkedProducer:
            pass
        else:
            raise AssertionError("an inherited future must raise ForkedProducer")
        parent.producer.flush(timeout=FLUSH_S)
        parent.producer.close()


def fork_one(way: str, name: str, parent: Sender) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child(way, name, parent)
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            if way == "ends" and status == 0:
                sys.exit(0)
            sys.stderr.flush()
            os._exit(status)
    wait_for(pid)


def fork_daemon(run_dir: str, topic: str, forks: int, parent: Sender) -> None:
    """A daemon that forks a child for each task, and imports the stub long before them."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setsid()
            for number in range(forks):
                task = os.fork()
                if task == 0:
                    with_own_producer(f"task-{number}", run_dir, topic)
                    os._exit(0)
                wait_for(task)
            status = 0
        finally:
            os._exit(status)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, f"the daemon ended with {status}"
            return
        parent.send(10)
        time.sleep(PAUSE_S)


def wait_for(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"child {pid} ended with {status}"


def main() -> None:
    way, run_dir, topic, forks = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    with Producer(run_dir=run_dir, client_name="parent") as producer:
        parent = Sender("parent", producer, topic)
        parent.send(1)
        producer.flush(timeout=FLUSH_S)
        if way == "daemon":
            fork_daemon(run_dir, topic, forks, parent)
            parent.report()
            return
        stop = threading.Event()

        def keep_sending() -> None:
            while not stop.wait(PAUSE_S):
                parent.send(10)

        thread = threading.Thread(target=keep_sending)
        thread.start()
        try:
            for number in range(forks):
                mark = parent.sent + BETWEEN_FORKS
                wait_until(
                    lambda mark=mark: parent.sent >= mark,  # type: ignore[misc]
                    "the parent to send",
                    interval_s=PAUSE_S,
                )
                if way.startswith("multiprocessing-"):
                    context = multiprocessing.get_context(way.removeprefix("multiprocessing-"))
                    process = context.Process(
                        target=with_own_producer, args=(f"child-{number}", run_dir, topic)
                    )
                    process.start()
                    process.join()
                    assert process.exitcode == 0
                else:
                    fork_one(way, f"child-{number}", parent)
        finally:
            stop.set()
            thread.join()
        parent.report()


if __name__ == "__main__":
    main()
