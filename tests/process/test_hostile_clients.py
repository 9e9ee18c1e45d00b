"""Goal: hostile local processes cost a good client little: no worker dies, memory and log are bounded.

Method: the daemon with its defaults (two workers) on a fake broker, a good client at each worker, and six processes of
sidecar/tools/testing/hostile_client.py at a time. Times are compared with the same alone, with room for a busy
machine; the absolute bound is asked in the long form only.
"""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from client_stub import Producer
from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.hostile_client import KINDS
from sidecar.tools.testing.metrics import metric

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
POOL_BYTES = 128 << 20
MEMORY_BYTES_MAX = 160 << 20
"""Of one worker beyond its memory at the start, the shared pool not counted: two bounded kinds of buffers, and some."""
LOG_LINES_MAX = 300
"""A line a minute and client; hostile ones come as new clients again and again, and 64 have lines of their own."""
GOOD_WAIT_S = 10.0
RECORDS = 60
FILES = 200


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    with FakeBroker({"good": 3}) as broker:
        yield broker


@pytest.fixture
def daemon(broker: FakeBroker) -> Iterator[SidecarDaemon]:
    settings = {"buffer.memory": POOL_BYTES, "daemon.shutdown_timeout_s": 1}
    with SidecarDaemon(broker.bootstrap_servers, settings=settings) as daemon:
        assert len(daemon.worker_pids()) == 2, "the default"
        yield daemon


Words = Callable[[str, int], list[str]]
"""Kind and seed of a hostile process → its module and words."""


@contextmanager
def hostile(words: Words, kinds: list[str], seed: int = 0) -> Iterator[None]:
    processes = [
        subprocess.Popen(
            dying_with_parent([sys.executable, "-m", *words(kind, seed + number)]),
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        for number, kind in enumerate(kinds)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"struck\n"
        yield
        assert all(process.poll() is None for process in processes), "the attack went on to its end"
    finally:
        for process in processes:
            process.kill()
            process.communicate()


_serial = itertools.count()


class Good:
    """A client at each worker; their records are numbered, and their outcomes noted."""

    def __init__(self, daemon: SidecarDaemon, place: str | None = None) -> None:
        """``place``: where they find the daemon, if not by its run dir."""
        self.producers = [
            Producer(run_dir=place or daemon.run_dir, client_name=f"good-{n}") for n in range(2)
        ]
        self.name = f"good-{daemon.info()['pid']}-{next(_serial)}"
        self.sent: list[bytes] = []

    def send(self, records: int) -> list[float]:
        """Seconds from send() to its outcome, ascending."""
        waited_s = []
        for _ in range(records):
            for producer in self.producers:
                value = f"{self.name}-{len(self.sent)}".encode()
                self.sent.append(value)
                began_s = time.monotonic()
                producer.send("good", value=value).result(timeout=GOOD_WAIT_S)
                waited_s.append(time.monotonic() - began_s)
        return sorted(waited_s)

    def close(self) -> None:
        for producer in self.producers:
            producer.close(timeout=GOOD_WAIT_S)


def private_bytes(pid: int, segment: str) -> int:
    """Resident memory of a process without the shared segment."""
    total = 0
    counts = True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if "-" in first and not first.endswith(":"):
            counts = segment not in line
        elif first == "Rss:" and counts:
            total += int(line.split()[1]) << 10
    return total


def attack(
    daemon: SidecarDaemon,
    broker: FakeBroker,
    kinds: list[str],
    *,
    records: int = RECORDS,
    seed: int = 0,
    place: str | None = None,
    words: Words | None = None,
) -> tuple[list[float], list[float]]:
    """Times of the good clients alone and beside ``kinds``; all else that must hold is asserted here.

    ``place`` is where the good clients find the daemon, if not by its run dir, and ``words`` are the hostile ones'.
    """
    pids, segment = daemon.worker_pids(), str(daemon.info()["segment"])
    good = Good(daemon, place)
    words = words or (
        lambda kind, seed: ["sidecar.tools.testing.hostile_client", kind, str(daemon.run_dir), str(seed)]
    )
    try:
        good.send(5)  # connections and metadata are there
        alone = good.send(records)
        memory = {pid: private_bytes(pid, segment) for pid in pids}
        lines = sum(1 for _ in daemon.log_lines())
        with hostile(words, kinds, seed):
            beside: list[float] = []
            while len(beside) < 2 * records:
                beside += good.send(10)
                grown = max(private_bytes(pid, segment) - memory[pid] for pid in pids)
                assert grown < MEMORY_BYTES_MAX, f"a worker has grown by {grown >> 20} MiB"
        assert daemon.worker_pids() == pids, "the same processes as before"
        assert metric(daemon, "kafka_sidecar_accept_errors_total") == 0, "a fault of ours"
        said = list(daemon.log_lines())[lines:]
        assert len(said) < LOG_LINES_MAX, said[-20:]
        assert not any("Traceback" in line for line in said), said
    finally:
        good.close()
    found = Counter(record.value for record in broker.records("good"))
    assert [value for value in good.sent if found[value] != 1] == [], "each is there, once"
    return alone, sorted(beside)


def p99(times: list[float]) -> float:
    return times[int(len(times) * 0.99)]


@pytest.mark.parametrize(
    "kinds",
    [
        ["large_first_frame", "half_messages", "never_attach", "long_messages", "hellos", "deep_and_wide"],
        ["topic_flood", "topic_flood", "absurd_values", "absurd_values", "pings_unread", "random_frames"],
    ],
    ids=["large", "many"],
)
def test_six_hostile_processes_cost_a_good_client_little(
    daemon: SidecarDaemon, broker: FakeBroker, kinds: list[str]
) -> None:
    alone, beside = attack(daemon, broker, kinds)
    middle = len(beside) // 2
    assert beside[middle] < max(0.25, 20 * alone[middle]), (alone[middle], beside[middle])
    print(
        f"alone p50 {alone[middle]:.4f} p99 {p99(alone):.4f}; beside {beside[middle]:.4f} {p99(beside):.4f}"
    )


def test_more_connections_than_open_files_keep_nobody_out(broker: FakeBroker) -> None:
    """libzmq aborts its process there, so one local process once ended the controller whenever it liked."""
    limited = SidecarDaemon(broker.bootstrap_servers, prefix=["prlimit", f"--nofile={FILES}:{FILES}"])
    with limited as daemon, ExitStack() as stack:
        before = (daemon.info()["pid"], daemon.worker_pids())
        doors = [daemon.run_dir / "control.sock"]
        doors += [Path(str(each["endpoint"]).removeprefix("ipc://")) for each in daemon.info()["workers"]]
        for door in doors:
            for _ in range(2 * FILES):
                idle = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                idle.connect(str(door))
        good = Good(daemon)
        try:
            good.send(5)
        finally:
            good.close()
        assert (daemon.info()["pid"], daemon.worker_pids()) == before


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_hostile_process_alone(daemon: SidecarDaemon, broker: FakeBroker, kind: str) -> None:
    alone, beside = attack(daemon, broker, [kind] * 6, records=300)
    print(f"{kind}: p99 alone {p99(alone) * 1000:.1f} ms, beside six {p99(beside) * 1000:.1f} ms")
    assert p99(beside) < 0.5, (p99(alone), p99(beside))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_hostile_processes_at_random(daemon: SidecarDaemon, broker: FakeBroker, seed: int) -> None:
    alone, beside = attack(daemon, broker, ["any"] * 6, records=1_000, seed=1_000 * seed)
    assert p99(beside) < 0.5, (p99(alone), p99(beside))
