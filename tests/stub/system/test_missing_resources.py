"""Where a process gets nothing more from its system, or ends, each public call raises what docs/stub-api.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.stub.fake_daemon import FakeDaemon

ROOT: Final = Path(__file__).resolve().parents[3]
WAIT_S: Final = 100
HELD: Final = "held"
STARTING: Final = ("fresh: send", "fresh: size_limit", "fresh: check_size")
"""Calls that begin the io thread of a producer, by the beginning of their names."""
TRIED: Final = """
import atexit, os, sys, threading

run_dir = sys.argv[1]

def tried(call):
    try:
        call()
        said = "nothing"
    except Exception as error:
        said = "SidecarError" if isinstance(error, errors.SidecarError) else type(error).__name__
        if type(error).__name__ in ("StartFailed", "ProducerClosed"):
            said = type(error).__name__
    os.write(1, f"{said}\\n".encode())

def all_calls(producer):
    tried(lambda: producer.send("t", b"1"))
    tried(lambda: producer.send_many("t", [(None, b"1")]))
    tried(lambda: producer.partitions_for("t", 1))
    tried(lambda: producer.size_limit("t"))
    tried(lambda: producer.stats())
    tried(lambda: producer.flush())
    tried(lambda: producer.flush(1))
    tried(lambda: producer.close(1))
    tried(lambda: producer.close())
"""
IN_ATEXIT: Final = f"""{TRIED}
atexit.register(lambda: [all_calls(used), all_calls(fresh), tried(delivery.result), tried(held.result)])
from client_stub import Producer, errors

used, fresh = Producer(run_dir), Producer(run_dir)
delivery = used.send("t", b"1")
delivery.result()
held = used.send("held", b"1")
used.close(0)
"""
"""Registered before ours, so that it runs after all producers were closed."""
IN_DEL: Final = f"""{TRIED}
from client_stub import Producer, errors

class Last:
    def __init__(self):
        self.used, self.fresh = Producer(run_dir), Producer(run_dir)
        self.delivery = self.used.send("t", b"1")
        self.delivery.result()

    def __del__(self):
        all_calls(self.used)
        all_calls(self.fresh)
        tried(self.delivery.result)
        tried(lambda: Producer(run_dir).send("t", b"1"))

last = Last()
"""
AFTER_OURS: Final = f"""{TRIED}
class Last:
    def __del__(self):
        tried(self.producer.flush)
        tried(self.producer.close)

def begin():
    last.producer = Producer(run_dir)
    tried(threading.Thread(target=int).start)
    tried(lambda: last.producer.send("held", b"1"))
    tried(lambda: last.producer.flush(until="accepted"))

last = Last()
atexit.register(begin)
from client_stub import Producer, errors
"""
"""A producer that began behind our end of the process, and that is waited for when no thread runs any more."""
BEHIND_MAIN: Final = f"""{TRIED}
from client_stub import Producer, errors

used, fresh = Producer(run_dir), Producer(run_dir)
used.send("t", b"1").result()

def work():
    threading.main_thread().join()
    tried(threading.Thread(target=int).start)
    tried(lambda: fresh.send("t", b"1"))
    all_calls(used)

threading.Thread(target=work).start()
"""
IN_DAEMON_THREAD: Final = f"""{TRIED}
from client_stub import Producer, errors

used = Producer(run_dir)
used.send("t", b"1").result()
begun = threading.Event()

def work():
    while True:
        try:
            used.send("t", b"1")
        except errors.ProducerClosed:
            return
        begun.set()

threading.Thread(target=work, daemon=True).start()
begun.wait()
"""
CLOSED: Final = ["ProducerClosed"] * 4 + ["nothing"] * 5
"""What ``all_calls`` says of a producer that is closed. One that was attached knows its size_limit."""
CLOSED_USED: Final = ["ProducerClosed"] * 3 + ["nothing"] * 6


ON_A_MAC: Final = f"""{TRIED}
for name in [each for each in dir(os) if each.startswith(("eventfd", "EFD_", "pidfd_", "memfd_", "MFD_", "sched_"))]:
    delattr(os, name)
import select, socket
del select.epoll, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC, socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT
sys.platform = "darwin"
os.geteuid = lambda: 501
os.environ.pop("XDG_RUNTIME_DIR", None)

import asyncio
from client_stub import AsyncProducer, Producer, errors
from client_stub.testing import FakeAsyncProducer, FakeProducer

def said(call):
    try:
        return call()
    except errors.SidecarError as error:
        return f"{{type(error).__name__}}: {{error}}"

for call in (
    lambda: Producer().send("t", b"1"),
    lambda: Producer(run_dir).send_many("t", [(None, b"1")]),
    lambda: Producer(run_dir).partitions_for("t", 1),
    lambda: asyncio.run(AsyncProducer().send_and_wait("t", b"1")),
):
    print(said(call))
with Producer() as producer:
    producer.flush()
with FakeProducer() as fake:
    print(fake.send("t", b"1").result().offset, fake.partitions_for("t")[0].leader)

async def main():
    async with FakeAsyncProducer() as fake:
        return (await fake.send_and_wait("t", b"1")).offset

print(asyncio.run(main()))
"""


@pytest.fixture
def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def daemon(daemon: FakeDaemon) -> Iterator[FakeDaemon]:
    """It delivers all but what is sent to the topic HELD."""
    daemon.deliver = lambda client, submit: (
        None if submit.topic == HELD else daemon.deliver_all(client, submit)
    )
    return daemon


def documented(classes: list[str], what: str) -> bool:
    """Whether an error with these classes may reach a caller."""
    if not classes or {"SidecarError", "TimeoutError"} & set(classes):
        return True
    # Python itself has no memory. The constructor reads a relative path.
    return "MemoryError" in classes if what == "memory maps" else "ValueError" in classes and what == "folder"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["threads", "descriptors", "memory maps", "folder"])
def test_a_missing_resource_is_an_error_of_ours(
    daemon: FakeDaemon, environment: dict[str, str], what: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.stub.system.missing_resources", str(daemon.run_dir), what],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) > 50
    assert [each for each in said if not documented(each[1], what)] == []
    assert [each for each in said if each[0].startswith("afterwards") and each[1]] == []
    assert "io thread failed" not in done.stderr
    if what in {"threads", "descriptors"}:
        began = [
            each for each in said if each[0].startswith(STARTING) and each[0] != "fresh: send after close"
        ]
        assert began and {each[1][0] for each in began} == {"StartFailed"}
        word = "thread" if what == "threads" else "Too many open files"
        assert all(word in each[2] and "ulimit" in each[2] for each in began)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (IN_ATEXIT, [*CLOSED_USED, *CLOSED, "nothing", "SidecarError"]),
        (IN_DEL, [*CLOSED_USED, *CLOSED, "nothing", "StartFailed"]),
        (IN_DAEMON_THREAD, []),
    ],
    ids=["atexit", "del", "daemon thread"],
)
def test_the_end_of_the_interpreter_is_an_error_of_ours(
    daemon: FakeDaemon, environment: dict[str, str], script: str, expected: list[str]
) -> None:
    assert run_script(script, daemon, environment) == expected


@pytest.mark.parametrize(
    ("script", "with_thread", "without"),
    [
        (BEHIND_MAIN, ["nothing"] * 10, ["StartFailed"] + ["nothing"] * 9),
        # Without a thread nothing was sent that could be waited for.
        (AFTER_OURS, ["nothing"] * 2 + ["SidecarError"] * 2, ["StartFailed"] + ["nothing"] * 3),
    ],
    ids=["behind main", "after ours"],
)
def test_a_producer_starts_after_the_main_thread_where_threads_can(
    daemon: FakeDaemon,
    environment: dict[str, str],
    script: str,
    with_thread: list[str],
    without: list[str],
) -> None:
    """Python 3.12 starts no thread there, and those before and behind it do."""
    plain_thread, *said = run_script(script, daemon, environment)
    assert said == (with_thread if plain_thread == "nothing" else without)


def run_script(script: str, daemon: FakeDaemon, environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script, str(daemon.run_dir)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


def test_another_system_gets_one_sentence_and_the_fakes(
    daemon: FakeDaemon, environment: dict[str, str]
) -> None:
    """A Mac, as far as Python shows: what ``os``, ``select`` and ``socket`` have on Linux alone is gone."""
    *real, fake, awaited = run_script(ON_A_MAC, daemon, environment)
    assert len(real) == 4
    assert set(real) == {
        "StartFailed: A producer needs Linux, and this is macOS: run the program on Linux or in a Linux container. "
        "Tests of it run here with client_stub.testing.FakeProducer."
    }
    assert (fake, awaited) == ("0 0", "0")
