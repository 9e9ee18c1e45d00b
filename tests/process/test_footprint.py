"""Goal: a daemon that has nothing to do does next to nothing, and clients that came and went leave nothing.

Judged from outside, by what the kernel counts for each process: context switches, descriptors, threads, memory.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from client_stub import Producer
from sidecar.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.testing.metrics import metric
from sidecar.testing.mock_broker import MockBroker
from sidecar.testing.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.alone]

WAKEUPS_PER_S_MAX = 20
IDLE_S = 5.0
WARM_UP_CONNECTS = 100
"""What grows only once (pools, caches, the allocator's arenas) has grown by then."""
GROWTH_BYTES_MAX = 3 << 20
TIMEOUT_S = 30.0


class Footprint(NamedTuple):
    descriptors: int
    threads: int
    private_bytes: int


def processes(daemon: SidecarDaemon) -> dict[str, psutil.Process]:
    workers = {f"worker {index}": pid for index, pid in enumerate(daemon.worker_pids())}
    return {
        name: psutil.Process(pid) for name, pid in {"controller": daemon.info()["pid"], **workers}.items()
    }


def wait_for_standby(daemon: SidecarDaemon) -> None:
    """It starts a moment after the workers, and brings the controller a channel and a pidfd that stay."""
    wait_until(lambda: daemon.status()["standby"], "the standby worker", timeout_s=TIMEOUT_S)


def footprint(process: psutil.Process) -> Footprint:
    # Pages of the segment and of files are shared: touching more of them is not growth.
    return Footprint(process.num_fds(), process.num_threads(), process.memory_full_info().uss)


def wakeups(process: psutil.Process) -> int:
    """Times that any thread of the process gave up the CPU to wait, and was woken again."""
    total = 0
    for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def test_idle_daemon_sleeps(mock_broker: MockBroker, start_daemon: StartDaemon) -> None:
    """With clients attached and links to the brokers open."""
    daemon = start_daemon(mock_broker.bootstrap_servers, settings={"linger.ms": 5})
    producers = [Producer(run_dir=str(daemon.run_dir), client_name=f"c{n}") for n in range(4)]
    try:
        for producer in producers:
            producer.send("smoke", value=b"x").result(timeout=TIMEOUT_S)
        wait_for_standby(daemon)
        watched = processes(daemon)
        before = {name: wakeups(process) for name, process in watched.items()}
        began = time.monotonic()
        time.sleep(IDLE_S)  # nothing to wait for: that nothing happens is what is measured
        elapsed_s = time.monotonic() - began
        rates = {name: (wakeups(each) - before[name]) / elapsed_s for name, each in watched.items()}
        assert max(rates.values()) < WAKEUPS_PER_S_MAX, rates
    finally:
        for producer in producers:
            producer.close()


def come_and_go(daemon: SidecarDaemon, count: int) -> None:
    for number in range(count):
        with Producer(run_dir=str(daemon.run_dir), client_name=f"visitor-{number}") as producer:
            producer.send("smoke", value=b"x").result(timeout=TIMEOUT_S)


@pytest.mark.parametrize("connects", [300, pytest.param(1_000, marks=pytest.mark.long)])
def test_clients_that_came_and_went_leave_nothing(
    mock_broker: MockBroker, start_daemon: StartDaemon, connects: int
) -> None:
    daemon = start_daemon(mock_broker.bootstrap_servers, settings={"linger.ms": 0})
    come_and_go(daemon, WARM_UP_CONNECTS)
    wait_for_standby(daemon)
    watched = processes(daemon)

    def all_left() -> bool:
        return metric(daemon, "kafka_sidecar_clients_connected") == 0

    wait_until(all_left, "the first clients to be gone", timeout_s=TIMEOUT_S)
    before = {name: footprint(process) for name, process in watched.items()}
    come_and_go(daemon, connects)
    wait_until(all_left, "the clients to be gone", timeout_s=TIMEOUT_S)
    for name, process in watched.items():
        was = before[name]

        def is_back(process: psutil.Process = process, was: Footprint = was) -> bool:
            now = footprint(process)
            return now.descriptors <= was.descriptors and now.threads <= was.threads

        wait_until(is_back, f"descriptors and threads of the {name} to be as before", timeout_s=TIMEOUT_S)
        grown = footprint(process).private_bytes - was.private_bytes
        print(f"{name}: {grown:+d} bytes over {connects} connects, {was}")
        assert grown < GROWTH_BYTES_MAX, f"the {name} grew by {grown} bytes over {connects} connects"
    wait_until(
        lambda: metric(daemon, "kafka_sidecar_buffer_pages_taken") == 0,
        "every page to be given back",
        timeout_s=TIMEOUT_S,
    )
    delivered = metric(daemon, "kafka_sidecar_records_delivered_total")
    assert delivered == WARM_UP_CONNECTS + connects
