"""Goal: stopped processes, full disks, a deleted segment, a clock that went back: nothing is lost, all is said."""

from __future__ import annotations

import os
import signal
import struct
from pathlib import Path

import pytest

from client_stub import Producer
from sidecar.common.model import ExitStatus
from sidecar.common.processes import process_state
from sidecar.shm import layout
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.steady_load import SteadyLoad
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process

CREATED_MS = layout.HEADER_FIELDS_OFFSET + 80
"""Where the header tells when the segment was made."""
DAY_MS = 86_400_000


def stop_a_worker(kafka: KafkaCluster, daemon: SidecarDaemon, topic: str) -> None:
    with SteadyLoad(kafka.bootstrap_servers, daemon.run_dir, topic, clients=2) as load:
        load.wait_more()
        victim = daemon.ready_pids()[0]
        os.kill(victim, signal.SIGSTOP)
        wait_until(
            lambda: len(daemon.ready_pids()) == 2 and victim not in daemon.ready_pids(),
            "the stopped worker to be replaced",
            timeout_s=120.0,
            describe=daemon.log_tail,
        )
        assert process_state(victim) is None, "dead and reaped before anybody took its slot"
        with pytest.raises(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
        load.wait_more()
        load.check()
    log = daemon.log_path.read_text()
    assert "it had been silent for" in log
    assert "Traceback" not in log


@pytest.mark.kafka
def test_a_stopped_worker(kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic) -> None:
    daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.heartbeat_timeout_s": 2})
    stop_a_worker(kafka, daemon, new_topic(partitions=3))


@pytest.mark.long
@pytest.mark.kafka
def test_a_worker_stopped_for_a_minute(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic
) -> None:
    daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.heartbeat_timeout_s": 60})
    stop_a_worker(kafka, daemon, new_topic(partitions=3))


def test_two_started_at_once(start_daemon: StartDaemon, mock_broker: MockBroker) -> None:
    """One gets the run dir, the other is told who has it."""
    daemon = start_daemon(mock_broker.bootstrap_servers, wait=False)
    both = [daemon.process, daemon.spawn()]
    loser = wait_until(
        lambda: next((each for each in both if each is not None and each.poll() is not None), None),
        "one of them to end",
        describe=daemon.log_tail,
    )
    (winner,) = [each for each in both if each is not None and each is not loser]
    daemon.process = winner
    assert loser.returncode == ExitStatus.FAILED
    assert f"held by a daemon with pid {winner.pid}" in daemon.log_path.read_text()
    daemon.wait_ready()
    assert daemon.stop() == ExitStatus.OK


@pytest.mark.parametrize("where", ["/dev/shm", "disk"])
def test_no_room_for_the_segment(start_daemon: StartDaemon, tmp_path: Path, where: str) -> None:
    """Said in one sentence at the start, and nothing stays behind; never a SIGBUS later."""
    settings: dict[str, object] = {"buffer.memory": 1 << 46}
    if where == "disk":
        settings["pool.path"] = str(tmp_path / "pool")
    daemon = start_daemon("127.0.0.1:1", wait=False, settings=settings)
    assert daemon.process is not None
    assert daemon.process.wait(60) == ExitStatus.FAILED
    told = daemon.log_tail()
    assert "cannot be allocated" in told or "cannot be made" in told
    assert "Traceback" not in told
    assert not (tmp_path / "pool").exists()


@pytest.mark.kafka
def test_the_segment_is_deleted_under_a_running_daemon(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic
) -> None:
    """It goes on, also over the death of a worker; a takeover is refused; the next start says what is missing."""
    daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.workers": 1})
    topic = new_topic(partitions=3)
    with SteadyLoad(kafka.bootstrap_servers, daemon.run_dir, topic, clients=2) as load:
        load.wait_more()
        segment = Path(daemon.info()["segment"])
        segment.unlink()
        (victim,) = daemon.ready_pids()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: daemon.ready_pids() not in ([], [victim]), "the worker to be replaced")
        load.wait_more()
        old = daemon.process
        refused = daemon.spawn("--takeover")
        assert refused.wait(30) == ExitStatus.FAILED
        daemon.process = old
        assert f"{segment} is not there" in daemon.log_tail()
        load.wait_more()
        load.check()
    daemon.kill()
    daemon.start()
    assert f"The segment {segment} of the previous daemon is gone" in daemon.log_path.read_text()
    with Producer(run_dir=str(daemon.run_dir)) as producer:
        assert producer.send(topic, value=b"anew").result(timeout=30).offset >= 0


@pytest.mark.kafka
def test_the_clock_went_back(kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic) -> None:
    """The dead daemon's stamps lie in the future of the next one, its epochs too."""
    topic = new_topic(partitions=1)
    daemon = start_daemon("127.0.0.1:1", wait=False, settings={"daemon.workers": 1})
    daemon.wait_published()
    with Producer(run_dir=str(daemon.run_dir)) as producer:
        deliveries = [producer.send(topic, value=b"%d" % number) for number in range(3)]
        wait_until(lambda: metric(daemon, "kafka_sidecar_records_accepted_total") == 3, "records")
        segment = Path(daemon.info()["segment"])
        victims = daemon.worker_pids()
        daemon.kill()
        wait_until(lambda: all(process_state(pid) in {None, "Z"} for pid in victims), "the worker to end")
        with segment.open("r+b") as file:
            file.seek(CREATED_MS)
            (made_ms,) = struct.unpack("<q", file.read(8))
            assert made_ms > DAY_MS
            file.seek(CREATED_MS)
            file.write(struct.pack("<q", made_ms + DAY_MS))
        epoch = daemon.run_dir / "epoch"
        ahead = int(epoch.read_text()) + DAY_MS // 1000
        epoch.write_text(f"{ahead}\n")
        daemon.use(**{"bootstrap.servers": kafka.bootstrap_servers})
        daemon.start()
        assert daemon.info()["controller_epoch"] > ahead, "never an epoch twice, whatever the clock says"
        assert [delivery.result(timeout=30).offset for delivery in deliveries] == [0, 1, 2]
    assert [record.value for record in read_topic(kafka.bootstrap_servers, topic)] == [b"0", b"1", b"2"]
