"""Goal: whatever one process or user takes at the sockets, memory is bounded and a newcomer is served.

Method: the daemon with its defaults on a fake broker; raw connections of this process and of another user. Root is
needed for a second user; without it those tests are skipped.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgpack
import pytest

from client_stub import Producer
from client_stub.native.hot import encode
from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.hostile_client import Attacker, Link
from tests.process.test_hostile_clients import private_bytes
from tests.tools import ROOT_USER, needs

pytestmark = pytest.mark.process

HALF_SENT = 16
WORKER_BYTES_MAX = 32 << 20
FRAME_BYTES = 60 << 20
IDLE = 3_000
SERVED_S = 20.0
"""A generous bound for a busy machine; a newcomer alone takes milliseconds."""
ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"daemon.shutdown_timeout_s": 1}


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    with FakeBroker({"good": 3}) as broker:
        yield broker


def is_served(daemon: SidecarDaemon, name: str = "newcomer") -> float:
    """Seconds until a new client's record is delivered."""
    began_s = time.monotonic()
    with Producer(run_dir=daemon.run_dir, client_name=name, delivery_timeout_ms=SERVED_S * 1000) as producer:
        producer.send("good", value=b"here").result(timeout=SERVED_S)
    return time.monotonic() - began_s


def send_what_goes(link: Link, data: bytes) -> None:
    """The peer may stop reading, or close."""
    link.socket.settimeout(0.3)
    with suppress(OSError):
        link.write(data)


@pytest.mark.parametrize("size", [FRAME_BYTES, 2 << 20], ids=["over the limit", "within it"])
@pytest.mark.parametrize("attached", [False, True], ids=["before ATTACH", "attached"])
def test_half_sent_frames_of_sixteen_connections_cost_a_worker_little(
    broker: FakeBroker, size: int, attached: bool
) -> None:
    with (
        SidecarDaemon(broker.bootstrap_servers, settings=SETTINGS | {"daemon.workers": 1}) as daemon,
        ExitStack() as stack,
    ):
        is_served(daemon)
        (pid,), segment = daemon.worker_pids(), str(daemon.info()["segment"])
        before = private_bytes(pid, segment)
        attacker = Attacker(Path(daemon.run_dir), 1)
        links = []
        for _ in range(HALF_SENT):
            link, epoch = attacker.attached() if attached else (attacker.bare(), 1)
            stack.callback(link.close)
            head = b"".join(encode([msgpack.packb(attacker.submit(epoch)), b""]))[:-2]
            link.write(b"\x01" + head[1:] + b"\x02" + size.to_bytes(8, "big"))
            links.append(link)
        highest = 0
        for link in links:
            send_what_goes(link, bytes(size * 2 // 3))
            highest = max(highest, private_bytes(pid, segment) - before)
        print(f"highest: {highest >> 20} MiB")
        assert highest <= WORKER_BYTES_MAX
        is_served(daemon)
        assert daemon.worker_pids() == [pid]


_IDLE = """
import socket, sys
from client_stub.zmtp.mechanism import opening
paths, held = sys.argv[2:], []
for number in range(int(sys.argv[1])):
    held.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    held[-1].connect(paths[number % len(paths)])
    if number % 2:
        try:
            held[-1].sendall(opening(b"DEALER"))
        except OSError:
            pass  # closed already
print("held", flush=True)
sys.stdin.read()
"""


def test_three_thousand_idle_connections_keep_nobody_out(broker: FakeBroker) -> None:
    with SidecarDaemon(broker.bootstrap_servers, settings=SETTINGS) as daemon:
        paths = [str(daemon.run_dir / "control.sock")]
        paths += [str(each["endpoint"]).removeprefix("ipc://") for each in daemon.info()["workers"]]
        with running([sys.executable, "-c", _IDLE, str(IDLE), *paths]) as idle:
            assert first_line(idle) == "held\n"
            print(f"served in {is_served(daemon):.3f} s")


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A neighbour that goes on until the end of the block."""
    process = subprocess.Popen(
        dying_with_parent(command),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


_AS_NOBODY = """
import os, sys
from pathlib import Path
from sidecar.tools.testing.hostile_client import Attacker
os.setgroups([]); os.setgid(65534); os.setuid(65534)
links = []
attacker = Attacker(Path({run_dir!r}), 1)
while True:
    try:
        links.append(attacker.attached()[0])
    except OSError as error:
        print(len(links), error, flush=True)
        break
sys.stdin.read()
"""


@needs(ROOT_USER)
def test_a_user_that_takes_all_clients_it_can_leaves_places_and_is_named(broker: FakeBroker) -> None:
    """Eight processes, since one alone has its own share. Their user cannot read the run dir of root by itself."""
    with SidecarDaemon(broker.bootstrap_servers, settings=SETTINGS | {"daemon.clients_max": 32}) as daemon:
        daemon.run_dir.chmod(0o711)
        (daemon.run_dir / "daemon.json").chmod(0o644)
        for path in daemon.run_dir.glob("*.sock"):
            path.chmod(0o666)
        command = [sys.executable, "-c", _AS_NOBODY.format(run_dir=str(daemon.run_dir))]
        with ExitStack() as stack:
            greedy = [stack.enter_context(running(command)) for _ in range(8)]
            words = [first_line(process) for process in greedy]
            assert sum(int(each.split()[0]) for each in words) == 24, words
            assert any("24 of 32 rows are taken, 24 of them by uid 65534" in each for each in words), words
            is_served(daemon)


_FLOODS = """
import contextlib, os, sys
from pathlib import Path
from sidecar.tools.testing.hostile_client import RECORD, Attacker
full = 0
for number in range(10):
    child = os.fork()
    if not child:
        attacker, words = Attacker(Path(sys.argv[1]), number), []
        for turn in range(5):
            with contextlib.suppress(OSError):
                link, epoch = attacker.attached()
                for stream in range(1, 201):
                    link.send(attacker.submit(epoch, stream=stream, topic=f"nobody-{number}-{turn}-{stream}"), RECORD)
                link.socket.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    while True:
                        words.append(str(link.receive()))
                link.close()
        os._exit(any("table of topics" in word for word in words))
    full += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(full)
"""


def test_processes_that_name_topics_nobody_made_leave_a_row_for_a_topic_that_is_there(
    broker: FakeBroker,
) -> None:
    """Records wait under the names for max.block.ms though their processes are gone. The newcomer's topic is in Kafka,
    and nobody uses it here yet.
    """
    with SidecarDaemon(broker.bootstrap_servers, settings=SETTINGS | {"daemon.workers": 1}) as daemon:
        command = [sys.executable, "-c", _FLOODS, str(daemon.run_dir)]
        found = subprocess.run(
            command, cwd=ROOT, timeout=120.0, check=True, stdout=subprocess.PIPE, text=True
        )
        assert int(found.stdout), "nobody found the table of topics full"
        print(f"{found.stdout.strip()} of 10 found it full; the newcomer took {is_served(daemon):.3f} s")


def test_one_process_sends_to_a_thousand_topics_that_are_there() -> None:
    """Nearly all rows of a worker's table at once, while nothing of them is known yet."""
    topics = [f"made-{number}" for number in range(1_000)]
    with (
        FakeBroker(dict.fromkeys(topics, 1)) as broker,
        SidecarDaemon(broker.bootstrap_servers, settings=SETTINGS | {"daemon.workers": 1}) as daemon,
        ExitStack() as stack,
    ):
        producers = [stack.enter_context(Producer(run_dir=daemon.run_dir)) for _ in range(5)]
        sent = [producers[number // 200].send(topic, value=b"v") for number, topic in enumerate(topics)]
        for producer in producers:
            assert producer.flush(60.0) == 0
        assert all(each.exception() is None for each in sent)
