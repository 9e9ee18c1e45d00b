"""Goal: with pool.sync = accept a crash of the host loses nothing accepted; possible duplicates are counted.

The crash: everything is killed by SIGKILL and the segment says another boot (or is gone), as after a power cut.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub import Producer
from sidecar.shm.layout import BOOT_ID_OFFSET
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

pytestmark = [pytest.mark.process]

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def pool() -> Iterator[Path]:
    """A pool.path on the disk that the temporary folder is on."""
    folder = Path(tempfile.mkdtemp(prefix="ks-pool-", dir="/var/tmp"))
    yield folder / "pool"
    shutil.rmtree(folder)


def settings_of(pool: Path, **more: object) -> dict[str, object]:
    return {"pool.path": str(pool), "pool.sync": "accept", "buffer.memory": 16 << 20, **more}


def crash(daemon: SidecarDaemon, pool: Path, left: str) -> None:
    """The host dies: processes, run dir; the segment is of another boot, torn, or gone."""
    daemon.kill_all()
    for name in ("segment.json", "daemon.json"):
        (daemon.run_dir / name).unlink(missing_ok=True)  # they were in memory
    if left == "gone":
        pool.unlink()
        return
    with pool.open("r+b") as file:
        file.seek(BOOT_ID_OFFSET)
        file.write(bytes(16))
        if left == "torn":
            size = pool.stat().st_size
            for at in range(4096, min(size, 8 << 20), 12_288):
                file.seek(at)
                file.write(os.urandom(512))


@pytest.mark.kafka
@pytest.mark.parametrize("left", ["whole", "torn", "gone"])
def test_a_crash_of_the_host_loses_nothing(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, pool: Path, left: str, ledger: Ledger
) -> None:
    topic = new_topic(partitions=3)
    daemon = start_daemon(kafka.bootstrap_servers, settings=settings_of(pool))
    delivered, kept = 400, 300
    with Producer(run_dir=str(daemon.run_dir), client_name="early", connect_timeout_ms=30_000) as producer:
        for number in range(delivered):
            producer.send(topic, RecordId("early", number).encode(), str(number % 7).encode())
        producer.flush(timeout=30)
    daemon.stop()
    assert not pool.exists() and not Path(f"{pool}.log").exists(), "nothing is left in it"
    # Accepted while no broker can be reached: nothing but the disk has these.
    daemon.use(**{"bootstrap.servers": NOWHERE})
    daemon.spawn()
    daemon.wait_published()
    producer = Producer(run_dir=str(daemon.run_dir), client_name="late", connect_timeout_ms=30_000)
    try:
        for number in range(kept):
            producer.send(topic, RecordId("late", number).encode(), str(number % 7).encode())
        producer.flush(timeout=30, until="accepted")
    finally:
        crash(daemon, pool, left)
        producer.close(0)
    daemon.use(**{"bootstrap.servers": kafka.bootstrap_servers})
    daemon.start()
    log = daemon.log_path.read_text()
    assert f"{kept} accepted records" in log
    wait_until(
        lambda: metric(daemon, "kafka_sidecar_records_delivered_total") == kept,
        "what was accepted to be delivered",
        describe=daemon.log_tail,
    )
    assert metric(daemon, "kafka_sidecar_records_resent_unknown_total") == kept
    assert metric(daemon, "kafka_sidecar_records_accepted_total") == kept
    daemon.stop()
    assert not pool.exists() and not Path(f"{pool}.log").exists()
    for name, count in (("early", delivered), ("late", kept)):
        ledger.sent(name, count)
        ledger.delivered_up_to(name, count)
    ledger.read_all(
        (RecordId.decode(record.value or b""), record.partition)
        for record in read_topic(kafka.bootstrap_servers, topic)
    )
    ledger.check()
    if left != "torn":
        assert "ALARM" not in log


@pytest.mark.kafka
def test_duplicates_are_counted(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, pool: Path
) -> None:
    """The host dies under load: everything accepted is there at least once, doubles are at most what was counted."""
    topic = new_topic(partitions=3)
    daemon = start_daemon(kafka.bootstrap_servers, settings=settings_of(pool))
    producer = Producer(run_dir=str(daemon.run_dir), client_name="p", connect_timeout_ms=30_000)
    sent = 0
    try:
        for _ in range(60):
            for _ in range(50):
                producer.send(topic, RecordId("p", sent).encode())
                sent += 1
            producer.flush(timeout=30, until="accepted")
    finally:
        crash(daemon, pool, "whole")
        producer.close(0)
    daemon.start()
    restored = metric(daemon, "kafka_sidecar_records_resent_unknown_total")
    wait_until(
        lambda: metric(daemon, "kafka_sidecar_records_delivered_total") == restored,
        "what was accepted to be delivered",
        describe=daemon.log_tail,
    )
    found = Counter(
        RecordId.decode(record.value or b"").number for record in read_topic(kafka.bootstrap_servers, topic)
    )
    assert set(found) == set(range(sent))
    assert sum(found.values()) - sent <= restored
    assert max(found.values()) <= 2
    assert restored < sent, "what had its end was known to have it"


def test_a_killed_worker_continues_with_the_same_log(start_daemon: StartDaemon, pool: Path) -> None:
    """Process death is not a crash of the host: the segment says everything, the log is begun anew from it."""
    daemon = start_daemon(NOWHERE, wait=False, settings=settings_of(pool, **{"daemon.workers": 1}))
    daemon.wait_published()
    with_producer = Producer(run_dir=str(daemon.run_dir), connect_timeout_ms=30_000)
    try:
        for round_ in range(3):
            for _ in range(10):
                with_producer.send("orders", b"paid")
            with_producer.flush(timeout=30, until="accepted")
            if round_ == 0:
                (pid,) = daemon.worker_pids()
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda pid=pid: pid not in daemon.worker_pids(), "a new worker")  # type: ignore[misc]
            elif round_ == 1:
                daemon.kill()
                daemon.spawn()
        crash(daemon, pool, "whole")
        daemon.spawn()
        wait_until(
            lambda: "30 accepted records (" in daemon.log_tail(),
            "all that was accepted to be found",
            describe=daemon.log_tail,
        )
    finally:
        with_producer.close(0)


def test_a_place_that_is_no_disk_is_refused(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(NOWHERE, wait=False, settings=settings_of(Path("/dev/shm/ks-no-disk")))
    assert daemon.process is not None
    assert daemon.process.wait(30) == 1
    assert "is on a tmpfs, which a crash of the host empties" in daemon.log_tail()


def test_a_disk_that_fails_is_said_and_nothing_is_accepted_on_it(
    start_daemon: StartDaemon, pool: Path
) -> None:
    """The kernel refuses the worker's writes (RLIMIT_FSIZE): a real error of a real file, in a running daemon."""
    daemon = start_daemon(NOWHERE, wait=False, settings=settings_of(pool, **{"daemon.workers": 1}))
    daemon.wait_published()
    producer = Producer(run_dir=str(daemon.run_dir), connect_timeout_ms=30_000)
    try:
        producer.send("orders", b"early")
        producer.flush(30, until="accepted")
        (pid,) = daemon.worker_pids()
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (256 << 10, most))
        for _ in range(6):
            producer.send("orders", bytes(100_000))
        wait_until(lambda: "The accept log cannot be written" in daemon.log_path.read_text(), "the error")
        with pytest.raises(TimeoutError, match="records are not accepted yet"):
            producer.flush(0.5, until="accepted")
        wait_until(lambda: "refusing" in daemon.command("status").stdout, "status to say so")
        shown = daemon.command("status")
        assert shown.returncode == 1
        assert "failed (File too large): no record is accepted any more" in shown.stdout + shown.stderr
        daemon.kill()
        daemon.spawn()
        producer.flush(60, until="accepted")
        assert metric(daemon, "kafka_sidecar_records_accepted_total") == 7
    finally:
        producer.close(0)
