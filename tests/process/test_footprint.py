"""Goal: a daemon that has nothing to do does next to nothing. Clients that have left and a backlog leave nothing.

Judged from outside, by what the kernel counts for each process: context switches, descriptors, threads, memory.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from client_stub import Producer
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.process_stats import anonymous_rss_mb
from sidecar.tools.testing.waiting import wait_until
from sidecar.worker.housekeeping import TRIM_MS

pytestmark = [pytest.mark.process, pytest.mark.alone]

WAKEUPS_PER_S_MAX = 20
IDLE_S = 5.0
WARM_UP_CONNECTS = 100
"""Memory that grows only once (pools, caches, the allocator's arenas) has grown by then."""
GROWTH_BYTES_MAX = 3 << 20
BACKLOG_RECORDS = 600_000
RETURNED_S = 4 * TRIM_MS / 1000
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
    wait_until(lambda: daemon.info()["standby"], "the standby worker", timeout_s=TIMEOUT_S)


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


def test_the_memory_of_a_backlog_goes_back_while_records_flow(
    mock_broker: MockBroker, start_daemon: StartDaemon
) -> None:
    """All brokers are away for a while. Memory that the worker took meanwhile for requests and small records goes
    back to the system, also when it has no idle moment after that."""
    daemon = start_daemon(
        mock_broker.bootstrap_servers, settings={"daemon.workers": 1, "buffer.memory": 128 << 20}
    )
    (worker,) = daemon.worker_pids()
    rows = [(None, b"x" * 16)] * BACKLOG_RECORDS
    with Producer(run_dir=str(daemon.run_dir)) as producer:

        def trickle() -> float:
            producer.send("smoke", value=b"x").result(timeout=TIMEOUT_S)
            return anonymous_rss_mb(worker)

        producer.send_many("smoke", rows[:10_000]).result(timeout=TIMEOUT_S)
        before_mb = trickle()
        for broker in range(1, 4):
            mock_broker.command(f"down {broker}")
        backlog = producer.send_many("smoke", rows)
        wait_until(
            lambda: metric(daemon, "kafka_sidecar_records_held") >= BACKLOG_RECORDS,
            "the backlog",
            timeout_s=TIMEOUT_S,
        )
        full_mb = anonymous_rss_mb(worker)
        for broker in range(1, 4):
            mock_broker.command(f"up {broker}")
        backlog.result(timeout=TIMEOUT_S)
        most_mb = trickle()
        wait_until(
            lambda: trickle() < before_mb + GROWTH_BYTES_MAX / 1e6,
            f"the memory of the backlog to go back ({before_mb:.1f} MB before, {full_mb:.1f} with it, {most_mb:.1f} "
            "after)",
            timeout_s=RETURNED_S,
            interval_s=0.1,
            describe=lambda: f"{trickle():.1f} MB",
        )
        print(
            f"{before_mb:.1f} MB before, {full_mb:.1f} with the backlog, {most_mb:.1f} after, {trickle():.1f} now"
        )
