"""The program of test_green_threads.py: PATCH RUN_DIR. It sends from green threads, and from a forked child.

PATCH names what is patched, and when: ``gevent``, ``gevent late``, ``gevent thread=False``, ``eventlet``, and so on. At
the end one line of JSON for each process: [name, records sent, numbers of those reported as delivered].
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Final

LIBRARY, *WORDS = sys.argv[1].split()
RUN_DIR: Final = sys.argv[2]
TOPIC: Final = "t"
LATE_TOPIC: Final = "late"
"""The test creates it when this program says that it waits for it."""
GREEN: Final = 20
RECORDS: Final = 50
"""By each of the green threads."""
PATIENCE_S: Final = 60.0
WAITING: Final = "waiting"


def patch() -> None:
    if "unpatched" in WORDS:
        return
    parts = {name: value == "True" for name, value in (word.split("=") for word in WORDS if "=" in word)}
    if LIBRARY == "gevent":
        importlib.import_module("gevent.monkey").patch_all(**parts)
    else:
        importlib.import_module("eventlet").monkey_patch(**parts)


def spawn(work: Callable[[], object]) -> Callable[[], object]:
    """Start a green thread. Returns what waits for it, and raises what it has raised."""
    if LIBRARY == "gevent":
        greenlet = importlib.import_module("gevent").spawn(work)
        got: Callable[[], object] = greenlet.get
        return got
    waited: Callable[[], object] = importlib.import_module("eventlet").spawn(work).wait
    return waited


if "late" not in WORDS:
    patch()

# After the patches, which is the point.
from client_stub import Producer  # noqa: E402
from client_stub.errors import ForkedProducer  # noqa: E402


class Sender:
    """Numbers its records and notes those that are reported as delivered."""

    def __init__(self, name: str, producer: Producer) -> None:
        self.name, self.producer = name, producer
        self.sent = 0
        self.delivered: list[int] = []
        self.pid = os.getpid()

    def send(self) -> Any:
        number = self.sent
        self.sent += 1

        def told(error: object, _metadata: object) -> None:
            if error is None:
                self.delivered.append(number)

        return self.producer.send(TOPIC, f"{self.name}/{number}|".encode(), on_delivery=told)

    def work(self) -> None:
        for number in range(RECORDS):
            if os.getpid() != self.pid:
                return  # gevent's child has the green threads of its parent
            delivery = self.send()
            if number % 10 == 0:
                try:
                    assert delivery.result(PATIENCE_S).topic == TOPIC
                except ForkedProducer:
                    assert os.getpid() != self.pid

    def report(self) -> None:
        assert self.producer.flush(PATIENCE_S) == 0
        os.write(1, (json.dumps([self.name, self.sent, self.delivered]) + "\n").encode())


def wait_while_others_run(producer: Producer) -> None:
    """Each wait ends only by what the test does when another green thread has spoken: it must get its turn."""
    waits = [
        lambda: producer.send(LATE_TOPIC, b"late/0|").result(PATIENCE_S),
        lambda: producer.flush(PATIENCE_S),
        lambda: producer.partitions_for(f"{LATE_TOPIC}-2", PATIENCE_S),
    ]
    waiting = [spawn(each) for each in waits]
    spawn(lambda: print(WAITING, flush=True))()
    for wait in waiting:
        wait()


def fork_and_send(parent: Sender) -> None:
    """The child sends by the producer that it inherited, while green threads of the parent send."""
    busy = [spawn(parent.work) for _ in range(3)]
    # Where it is patched, os.fork() is the same. The plain one leaves the child a hub that does not work.
    pid = importlib.import_module("gevent").fork()
    if pid == 0:
        child = Sender("child", parent.producer)
        child.work()
        child.report()
        parent.producer.close(PATIENCE_S)
        os._exit(0)
    for wait in busy:
        wait()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {status}"


def main() -> None:
    producer = Producer(RUN_DIR, "green", max_block_ms=PATIENCE_S * 1e3, connect_timeout_ms=PATIENCE_S * 1e3)
    sender = Sender("main", producer)
    sender.send().result(PATIENCE_S)
    if "late" in WORDS:
        patch()
    for wait in [spawn(sender.work) for _ in range(GREEN)]:
        wait()
    wait_while_others_run(producer)
    if LIBRARY == "gevent":  # eventlet's hub does not outlive a fork
        fork_and_send(sender)
    sender.report()
    producer.close(PATIENCE_S)


if __name__ == "__main__":
    main()
