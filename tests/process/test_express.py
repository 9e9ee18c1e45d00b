"""Goal: a quiet client's records pass a runaway client's backlog, and a kill -9 with both under way loses, doubles and
reorders nothing.

Judged by a consumer that is not ours, on a real broker, with the clients' own account of every record.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time

import pytest

from client_stub import Producer
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.segment import Segment
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.steady_load import SteadyLoad
from sidecar.tools.testing.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.kafka, pytest.mark.unmeasured]

KILLS, KILLS_LONG = 3, 12
CALL_RECORDS = 1_000
VALUE_BYTES = 1_000
LOUD = "loud"


class Runaway:
    """A client that sends as fast as the daemon takes."""

    def __init__(self, daemon: SidecarDaemon, topic: str) -> None:
        self.calls = 0
        self.failed: BaseException | None = None
        self._topic = topic
        self._producer = Producer(run_dir=str(daemon.run_dir), client_name=LOUD, max_block_ms=60_000)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        calls = []
        try:
            while not self._stop.is_set():
                first = self.calls * CALL_RECORDS
                values = [
                    (None, RecordId(LOUD, first + number).encode().ljust(VALUE_BYTES, b" "))
                    for number in range(CALL_RECORDS)
                ]
                calls.append(self._producer.send_many(self._topic, values))
                self.calls += 1
            for call in calls:
                call.result(timeout=120)
        except BaseException as error:
            self.failed = error

    def finish(self) -> int:
        """Stop; how many records were delivered, which are all."""
        self._stop.set()
        self._thread.join(timeout=150)
        self._producer.close(timeout=60)
        if self.failed is not None:
            raise self.failed
        return self.calls * CALL_RECORDS


def express_bytes(daemon: SidecarDaemon) -> int:
    """So much went through express chains of the one worker so far."""
    fd = os.open(json.loads((daemon.run_dir / "segment.json").read_text())["path"], os.O_RDONLY)
    try:
        segment = Segment.attach(fd)
    finally:
        os.close(fd)
    try:
        return sum(name.tail for name in ChainTable(segment, 0).names() if name.is_express)
    finally:
        segment.close()


def ready_worker(daemon: SidecarDaemon) -> int | None:
    return next((int(each["pid"]) for each in daemon.info()["workers"] if each["state"] == "ready"), None)


@pytest.mark.parametrize(
    "kills", [KILLS, pytest.param(KILLS_LONG, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_both_chains_outlive_their_worker(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, kills: int
) -> None:
    daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.workers": 1, "buffer.memory": 128 << 20})
    topic = new_topic(partitions=3)
    random_ = random.Random()
    passed = 0
    with SteadyLoad(kafka.bootstrap_servers, daemon.run_dir, topic, clients=3, burst=2) as load:
        load.wait_more(50, describe=daemon.log_tail)
        loud = Runaway(daemon, topic)
        for _ in range(kills):
            before = express_bytes(daemon)
            wait_until(
                lambda before=before: express_bytes(daemon) > before,  # type: ignore[misc]
                "quiet clients to pass the backlog",
                interval_s=0.002,
                describe=daemon.log_tail,
            )
            time.sleep(random_.uniform(0.0, 0.1))
            victim = wait_until(lambda: ready_worker(daemon), "the worker to be ready")
            passed += express_bytes(daemon) - before
            os.kill(victim, signal.SIGKILL)
            wait_until(
                lambda victim=victim: ready_worker(daemon) not in (None, victim),  # type: ignore[misc]
                "the worker to be replaced",
                describe=daemon.log_tail,
            )
        sent = loud.finish()
        for client in load.clients:
            client.finish()
        ledger = Ledger()
        ledger.sent(LOUD, sent)
        ledger.delivered_up_to(LOUD, sent)
        for client in load.clients:
            ledger.sent(client.name, client.sent)
            for number, error, _ in client.outcomes:
                assert error is None, f"{client.name} {number}: {error}"
                ledger.delivered(RecordId(client.name, number))
        for record in read_topic(kafka.bootstrap_servers, topic, timeout_s=240.0):
            ledger.read(RecordId.decode(record.value or b""), record.partition)
        ledger.check()
    assert passed > 0
    log = daemon.log_path.read_text()
    assert "Traceback" not in log
    assert "ALARM" not in log
