"""Goal: no message that a local process can write ends a worker, or costs another client a record.

Method: the daemon with its defaults on a fake broker, `sidecar.tools.testing.fuzz_client` with a fixed seed, and good
clients beside it. 20,000 messages in the short form, and fifty times as many with another seed in the long form.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.metrics import metric
from tests.process.test_hostile_clients import Good, private_bytes

pytestmark = [pytest.mark.process, pytest.mark.unmeasured]

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 20_000
MESSAGES_LONG = 1_000_000
WORKER_BYTES_MAX = 64 << 20
LOG_LINES_PER_MINUTE_MAX = 500
"""Three processes with two or three logs each, and 64 peers with a line of their own a minute in each of them."""


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker({"good": 1, "fuzz": 2}) as broker:
        yield broker


@pytest.mark.parametrize(
    ("seed", "messages"),
    [(1, MESSAGES), pytest.param(2, MESSAGES_LONG, marks=pytest.mark.long)],
    ids=["short", "long"],
)
def test_random_messages_end_nothing_and_cost_nobody_a_record(
    broker: FakeBroker, seed: int, messages: int
) -> None:
    settings = {"buffer.memory": 128 << 20, "daemon.shutdown_timeout_s": 1, "metadata.max.age.ms": 60_000}
    with SidecarDaemon(broker.bootstrap_servers, settings=settings) as daemon:
        good = Good(daemon)
        fuzz = ["sidecar.tools.testing.fuzz_client", str(daemon.run_dir), str(seed), str(messages)]
        survives(daemon, good, fuzz, messages)
        assert metric(daemon, "kafka_sidecar_malformed_frames_total") > messages // 100
    check_order(broker, good)


def survives(daemon: SidecarDaemon, good: Good, fuzz: list[str], messages: int) -> None:
    """Run that module with these words beside the good clients, and close those: the same processes, no traceback, few
    lines in the log, little memory."""
    pids, segment, controller = daemon.worker_pids(), str(daemon.info()["segment"]), daemon.info()["pid"]
    try:
        good.send(5)
        processes = [*pids, controller]
        memory = {pid: private_bytes(pid, segment) for pid in processes}
        lines = sum(1 for _ in daemon.log_lines())
        began_s = time.monotonic()
        running = subprocess.Popen(
            dying_with_parent([sys.executable, "-m", *fuzz]),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            highest = 0
            while running.poll() is None:
                good.send(5)
                highest = max(highest, *(private_bytes(pid, segment) - memory[pid] for pid in processes))
            assert running.stdout is not None
            said = running.stdout.read()
        finally:
            running.kill()
            running.communicate()
        minutes = (time.monotonic() - began_s) / 60
        good.send(5)
        grown = list(daemon.log_lines())[lines:]
        print(f"{said.strip()}; grown by {highest >> 20} MiB at most, {len(grown)} log lines")
        assert int(said.split()[1]) >= messages
        assert (daemon.worker_pids(), daemon.info()["pid"]) == (pids, controller), "the same processes"
        assert metric(daemon, "kafka_sidecar_accept_errors_total") == 0, "a fault of ours"
        assert not any("Traceback" in line for line in grown), [line for line in grown if "Error" in line][:9]
        assert len(grown) < LOG_LINES_PER_MINUTE_MAX * (minutes + 1)
        assert highest < WORKER_BYTES_MAX
    finally:
        good.close()


def check_order(broker: FakeBroker, good: Good) -> None:
    values = [
        record.value for record in broker.records("good") if record.value.startswith(good.name.encode())
    ]
    assert values == good.sent, "each once, and in order"
