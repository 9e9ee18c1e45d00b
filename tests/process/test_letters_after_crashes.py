"""Goal: what fails after a crash of the host becomes dead letters of its own, and each is delivered once.

Nothing is known any more of who sent these records, so only their own names tell them apart: over clients, workers, and
crashes on the same day.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_stub import Producer
from sidecar.deadletter.letters import parse
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until
from tests.process.test_durability import NOWHERE, crash, settings_of

pytestmark = [pytest.mark.process, pytest.mark.kafka, pytest.mark.unmeasured]

CLIENTS, RECORDS = 5, 3
ALL = CLIENTS * RECORDS
AT_MS = time.time_ns() // 1_000_000
"""Of all records; a broker's retention takes old ones away."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder on the disk that the temporary folder is on."""
    folder = Path(tempfile.mkdtemp(prefix="ks-letters-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


def said(name: str) -> Counter[bytes]:
    """Each of the five says the same three things at the same time: not even their content tells them apart."""
    return Counter({f"{name}/{record}".encode(): CLIENTS for record in range(RECORDS)})


def accept(daemon: SidecarDaemon, topic: str, name: str, then: Callable[[], None]) -> None:
    """All of it is accepted on disk, then that happens, while none of it could be sent."""
    producers = [
        Producer(run_dir=str(daemon.run_dir), client_name=f"{name}-{number}", connect_timeout_ms=30_000)
        for number in range(CLIENTS)
    ]
    try:
        for producer in producers:
            for value in said(name):
                producer.send(topic, value, timestamp_ms=AT_MS)
            producer.flush(timeout=30, until="accepted")
        then()
    finally:
        for producer in producers:
            producer.close(0)


def spawn(daemon: SidecarDaemon, **settings: object) -> None:
    """Start it where no Kafka is; clients can reach it."""
    daemon.use(**{"bootstrap.servers": NOWHERE, **settings})
    daemon.spawn()
    daemon.wait_published()  # which comes after the socket


def check_replay(daemon: SidecarDaemon, kafka: KafkaCluster, topic: str, letters: Path, *names: str) -> None:
    """All of these are letters with names of their own, and one replay delivers each of them once."""
    found = [parse(line) for path in letters.glob("*.jsonl*") for line in path.read_bytes().splitlines()]
    count = ALL * len(names)
    assert len(found) == len({letter.identity for letter in found}) == count
    daemon.use(**{"bootstrap.servers": kafka.bootstrap_servers})
    daemon.start()
    done = daemon.command("replay")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "were there twice" not in done.stdout
    wanted = sum((said(name) for name in names), Counter[bytes]())
    assert Counter(record.value for record in read_topic(kafka.bootstrap_servers, topic)) == wanted
    again = daemon.command("replay")
    assert again.returncode == 0
    assert len(read_topic(kafka.bootstrap_servers, topic)) == count
    assert daemon.stop() == 0, daemon.log_tail()


def test_letters_of_two_crashes_on_one_day_are_all_delivered_once(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, place: Path
) -> None:
    """The first records live through two crashes, before they fail; the others through one."""
    topic, pool, letters = new_topic(partitions=3), place / "pool", place / "letters"
    daemon = start_daemon(NOWHERE, wait=False, settings=settings_of(pool, **{"dead_letters.path": letters}))
    daemon.wait_published()
    accept(daemon, topic, "first", lambda: crash(daemon, pool, "whole"))
    spawn(daemon)
    assert f"{ALL} accepted records" in daemon.log_tail()
    accept(daemon, topic, "second", lambda: crash(daemon, pool, "torn"))
    spawn(daemon, **{"max.block.ms": 500})
    wait_until(
        lambda: metric(daemon, "kafka_sidecar_records_dead_lettered_total") == 2 * ALL,
        "the letters of both",
        describe=daemon.log_tail,
    )
    accept(daemon, topic, "third", lambda: crash(daemon, pool, "gone"))
    spawn(daemon)
    wait_until(
        lambda: metric(daemon, "kafka_sidecar_records_dead_lettered_total") == ALL,
        "the letters of the third crash",
        describe=daemon.log_tail,
    )
    assert daemon.stop() == 0, daemon.log_tail()
    check_replay(daemon, kafka, topic, letters, "first", "second", "third")


def test_records_recovered_after_two_crashes_are_delivered_once(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, place: Path
) -> None:
    """Twice the host crashes, and the segment that was made again is taken out of the next daemon's hands."""
    topic, pool, letters = new_topic(partitions=3), place / "pool", place / "letters"
    daemon = start_daemon(NOWHERE, wait=False, settings=settings_of(pool, **{"dead_letters.path": letters}))
    daemon.wait_published()
    for name in ("first", "second"):
        accept(daemon, topic, name, lambda: crash(daemon, pool, "whole"))
        spawn(daemon)
        daemon.kill_all()
        done = daemon.command("recover", "--remove", "--spool-only", "--path", str(letters), str(pool))
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"undelivered         {ALL:>12,}" in done.stdout
        spawn(daemon)
    assert daemon.stop() == 0, daemon.log_tail()
    check_replay(daemon, kafka, topic, letters, "first", "second")
