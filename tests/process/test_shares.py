"""Goal: with the defaults, clients that flood topics nobody made leave room for a good one, whichever worker it is on.

Method: two workers, a fake broker, six flooding processes of many topics; then good clients, at least one at each
worker, send one record after the other. The pool's words say how much the flood holds.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from client_stub import Producer
from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.alone]

FLOODS = 6
RECORDS = 100
POOL_BYTES = 16 << 20
GOOD_WAIT_S = 5.0
"""For one record on a machine under load; without shares over all workers it was the flood's max.block.ms."""
FLOOD = """
import sys
from client_stub import Producer, errors
producer = Producer(run_dir=sys.argv[1], client_name=sys.argv[2], max_block_ms=100)
while True:
    for number in range(3):
        try:
            producer.send_many(f"nobody-made-{sys.argv[2]}-{number}", [(None, b"x" * 1000)] * 500)
        except errors.BufferExhausted:
            pass
"""


@pytest.fixture(scope="module")
def kafka_topic() -> Iterator[FakeBroker]:
    with FakeBroker({"good": 3}) as broker:
        yield broker


@pytest.fixture(scope="module")
def flooded(kafka_topic: FakeBroker) -> Iterator[SidecarDaemon]:
    """A daemon with two workers whose pool six clients fill as far as they may."""
    settings = {"buffer.memory": POOL_BYTES, "max.block.ms": 60_000, "daemon.shutdown_timeout_s": 1}
    with SidecarDaemon(kafka_topic.bootstrap_servers, settings=settings) as daemon:
        assert len(daemon.worker_pids()) == 2, "the default"
        floods = [
            subprocess.Popen(
                dying_with_parent([sys.executable, "-c", FLOOD, str(daemon.run_dir), f"flood-{number}"]),
            )
            for number in range(FLOODS)
        ]
        try:
            wait_until(
                lambda: share_taken(daemon) > 0.6 and metric(daemon, "kafka_sidecar_holds_total") >= FLOODS,
                "every flood is held",
                describe=lambda: f"taken: {share_taken(daemon):.2f}",
            )
            yield daemon
        finally:
            for flood in floods:
                flood.kill()
                flood.wait()


def share_taken(daemon: SidecarDaemon) -> float:
    """The part of the pool that is taken, by both workers together."""
    return metric(daemon, "kafka_sidecar_buffer_pages_taken") * (16 << 10) / POOL_BYTES


def test_six_floods_at_two_workers_leave_a_good_client_its_room(flooded: SidecarDaemon) -> None:
    good = [Producer(run_dir=flooded.run_dir, client_name=f"good-{number}") for number in range(2)]
    try:
        waited_s: list[float] = []
        for _ in range(RECORDS):
            for producer in good:
                began_s = time.monotonic()
                producer.send("good", value=b"v" * 200).result(timeout=GOOD_WAIT_S)
                waited_s.append(time.monotonic() - began_s)
        # Topics that do not move hold three quarters at most, over both workers; the good ones hold a page each.
        assert share_taken(flooded) <= 0.76
        assert sorted(waited_s)[len(waited_s) // 2] < 0.5
        by_worker = [worker["clients"] for worker in flooded.info()["workers"]]
        assert len(by_worker) == 2 and all(by_worker)
    finally:
        for producer in good:
            producer.close(timeout=10)


def test_a_bulk_load_gets_what_six_floods_leave(flooded: SidecarDaemon) -> None:
    """More than the rest of the pool at once: it waits for pages that move, never for those of the floods."""
    payload = [(None, b"v" * 1000)] * 20_000
    with Producer(run_dir=flooded.run_dir, client_name="bulk") as producer:
        assert producer.send_many("good", payload).result(timeout=30) is not None
