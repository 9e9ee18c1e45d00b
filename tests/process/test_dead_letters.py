"""Goal: what fails when its client is gone comes back by `replay` or `recover`; the ledger always adds up."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sidecar.deadletter.progress import read_progress
from sidecar.deadletter.spool_files import spool_files
from sidecar.shm import layout
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon, cli
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.metrics import http_get, metric
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.steady_load import SteadyLoad
from sidecar.tools.testing.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.kafka]

COUNT = 1_200
SENDER = """
import os, sys, time
from client_stub import Producer
run_dir, topic, count = sys.argv[1:]
producer = Producer(run_dir=run_dir, client_name="doomed")
for number in range(int(count)):
    producer.send(topic, key=b"%d" % (number % 7), value=b"doomed/%d|" % number, headers=[("n", b"%d" % number)])
print("sent", flush=True)
time.sleep(600)
"""
NAMES = ("accepted_total", "delivered_total", "failed_total", "dead_lettered_total", "aborted_total", "held")


def ledger_of(daemon: SidecarDaemon) -> dict[str, int]:
    """The five numbers, of one scrape."""
    found = dict.fromkeys(NAMES, 0)
    for line in http_get(daemon, "/metrics").splitlines():
        for name in NAMES:
            if line.startswith(f"kafka_sidecar_records_{name}{{"):
                found[name] += int(float(line.rpartition(" ")[2]))
    return found


def difference(ledger: dict[str, int]) -> int:
    return ledger["accepted_total"] - sum(ledger[name] for name in NAMES[1:])


def doomed_client(daemon: SidecarDaemon, topic: str, count: int = COUNT) -> None:
    """A client that is killed as soon as the daemon has all it sent."""
    before = metric(daemon, "kafka_sidecar_records_accepted_total")
    client = subprocess.Popen(
        [sys.executable, "-c", SENDER, str(daemon.run_dir), topic, str(count)], stdout=subprocess.PIPE
    )
    try:
        wait_until(
            lambda: metric(daemon, "kafka_sidecar_records_accepted_total") == before + count,
            "the records to be accepted",
            describe=daemon.log_tail,
        )
    finally:
        client.kill()
        client.wait()


def interrupt_replay(daemon: SidecarDaemon, folder: Path) -> None:
    """Ctrl-C once its first chunk is delivered: it ends where nothing is under way (or was quicker than that)."""
    running = subprocess.Popen(
        [*cli("replay"), "--run-dir", str(daemon.run_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(
        lambda: running.poll() is not None or read_progress(folder)[0],
        "letters to be delivered",
        interval_s=0.002,
    )
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    if running.returncode:
        assert running.returncode == 1
        assert "run it again to continue" in err, out + err
    delivered, in_doubt = read_progress(folder)
    assert delivered
    assert in_doubt == 0


def check_topic(kafka: KafkaCluster, topic: str, count: int = COUNT) -> None:
    """Every record is there once. (Its sender never heard of it: it was told by the replay.)"""
    ledger = Ledger()
    ledger.sent("doomed", count)
    ledger.delivered_up_to("doomed", count)
    found = read_topic(kafka.bootstrap_servers, topic)
    ledger.read_all((RecordId.decode(record.value or b""), record.partition) for record in found)
    ledger.check()


def test_a_killed_client_s_failures_come_back_by_replay(
    kafka: KafkaCluster, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """Records to a topic that is not there fail at max.block.ms; the worker is killed meanwhile, too."""
    topic, folder = f"late-{os.getpid()}", tmp_path / "letters"
    daemon = start_daemon(
        kafka.bootstrap_servers,
        settings={
            "max.block.ms": 1_500,
            "daemon.client_grace_s": 0.5,
            "dead_letters.path": folder,
            "daemon.workers": 1,
        },
    )
    assert daemon.command("replay").stdout.startswith("0 dead letters")
    doomed_client(daemon, topic)
    assert difference(ledger_of(daemon)) == 0
    os.kill(daemon.worker_pids()[0], signal.SIGKILL)
    wait_until(
        lambda: metric(daemon, "kafka_sidecar_records_dead_lettered_total") == COUNT,
        "the dead letters",
        describe=lambda: f"{ledger_of(daemon)}\n{daemon.log_tail()}",
    )
    assert ledger_of(daemon) == dict(zip(NAMES, (COUNT, 0, 0, COUNT, 0, 0), strict=True))
    shown = daemon.command("replay", "--dry-run")
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"{COUNT:,} dead letters in ")
    lines = [json.loads(line) for path in spool_files(folder) for line in path.read_text().splitlines()]
    assert len({line["id"] for line in lines}) == COUNT
    assert {(line["topic"], line["client"]) for line in lines} == {(topic, "doomed")}
    assert f"{COUNT:,} dead lettered" in daemon.command("status").stdout

    again = daemon.command("replay")
    assert again.returncode == 1, "the topic is still not there"
    assert f"{topic}: {COUNT:,} failed again and stay: Topic {topic} not present" in again.stdout
    assert metric(daemon, "kafka_sidecar_records_dead_lettered_total") == COUNT, "replay was there to be told"

    kafka.create_topics({topic: 3})
    interrupt_replay(daemon, folder)
    sent = daemon.command("replay", "--topic", topic, "--since", "1h", "--json")
    assert sent.returncode == 0, sent.stdout + sent.stderr
    found = json.loads(sent.stdout)
    assert (found["failed"], found["delivered"], found["error"]) == (0, found["found"], None)
    check_topic(kafka, topic)
    # A file that its writer may still add to is left; it is closed after ten seconds without a letter.
    wait_until(lambda: not list(folder.glob("*.open")), "the spool's file to be closed", timeout_s=60)
    assert daemon.command("replay").stdout.startswith("0 dead letters")
    check_topic(kafka, topic)
    assert daemon.stop() == 0, daemon.log_tail()
    assert spool_files(folder) == []


def test_a_segment_with_a_damaged_header_is_recovered(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic
) -> None:
    """The daemon is killed with records that wait and its header is hurt: set aside by the next, then recovered."""
    topic = f"later-{os.getpid()}"
    daemon = start_daemon(kafka.bootstrap_servers)
    doomed_client(daemon, topic)
    segment = Path(daemon.info()["segment"])
    daemon.kill_all()
    with segment.open("r+b") as file:
        file.seek(layout.HEADER_FIELDS_OFFSET)
        file.write(b"\xff" * 64)
    daemon.start()
    (aside,) = segment.parent.glob(f"{segment.name}.set-aside-*")
    try:
        listed = daemon.command("recover")
        assert listed.returncode == 0
        assert f"{COUNT:,} undelivered" in listed.stdout
        assert "damaged header" in listed.stdout
        assert "in use" in listed.stdout, "the new daemon's own"
        refused = daemon.command("recover", str(daemon.info()["segment"]))
        assert (refused.returncode, "in use by a running daemon" in refused.stderr) == (2, True)
        kafka.create_topics({topic: 3})
        done = daemon.command("recover", "--remove", str(aside))
        assert done.returncode == 0, done.stdout + done.stderr
        assert not aside.exists()
    finally:
        aside.unlink(missing_ok=True)
    check_topic(kafka, topic)


def test_the_ledger_adds_up_at_every_scrape(
    daemon: SidecarDaemon, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    """Under load, with workers killed; a worker killed between two counters owes at most the submission it was at."""
    topic = new_topic(partitions=3)
    differences: list[int] = []
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.is_set():
            differences.append(difference(ledger_of(daemon)))

    random_ = random.Random(5)
    watcher = threading.Thread(target=scrape)
    with SteadyLoad(kafka.bootstrap_servers, daemon.run_dir, topic, clients=3) as load:
        load.wait_more(300, describe=daemon.log_tail)
        watcher.start()
        try:
            for _ in range(4):
                pids = wait_until(daemon.worker_pids, "workers")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(random_.choice(pids), signal.SIGKILL)
                before = load.delivered
                wait_until(lambda before=before: load.delivered > before + 300, "records to flow again")  # type: ignore[misc]
                time.sleep(random_.uniform(0.0, 0.3))
            load.check()
        finally:
            is_over.set()
            watcher.join()
    assert len(differences) > 20
    assert max(map(abs, differences)) < 65_536
    assert sum(1 for each in differences if each) <= len(differences) // 10, differences
    wait_until(lambda: ledger_of(daemon)["held"] == 0, "everything to end", describe=daemon.log_tail)
    assert difference(ledger_of(daemon)) == 0
