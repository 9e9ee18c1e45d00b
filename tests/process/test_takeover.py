"""Goal: `run --takeover` puts another build in the place of a running daemon; its clients notice nothing."""

from __future__ import annotations

import os
import signal
import statistics
import time
from itertools import pairwise
from pathlib import Path

import pytest

from sidecar.common.model import ExitStatus
from sidecar.common.processes import process_state
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.steady_load import SteadyLoad
from sidecar.tools.testing.waiting import wait_until
from tests.process.builds import make_build, run_build

pytestmark = pytest.mark.process


def longest_silence_ms(load: SteadyLoad, since_s: float) -> float:
    """Between two acks told to one client, the worst of all clients."""
    return max(1000 * (b - a) for each in load.clients for a, b in pairwise(each.delivered_since(since_s)))


@pytest.mark.kafka
def test_upgrade_under_load(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, tmp_path: Path
) -> None:
    """There and back again between two builds. The silence is printed, not judged: this machine is shared."""
    daemon = start_daemon(kafka.bootstrap_servers)
    other = make_build(tmp_path, "97.1.2")
    silences: list[float] = []
    with SteadyLoad(kafka.bootstrap_servers, daemon.run_dir, new_topic(partitions=3), clients=3) as load:
        load.wait_more()
        for turn in range(2):
            run_build(daemon, other if turn % 2 == 0 else Path(__file__).parents[2])
            begun_s = time.monotonic()
            old = daemon.take_over()
            assert old.returncode == ExitStatus.OK, daemon.log_tail()
            assert (daemon.info()["version"] == "97.1.2") == (turn % 2 == 0)
            load.wait_more()
            silences.append(longest_silence_ms(load, begun_s))
        load.check()
    assert daemon.stop() == ExitStatus.OK, daemon.log_tail()
    log = daemon.log_path.read_text()
    assert "Traceback" not in log
    assert "is killed" not in log, "each was asked, and went"
    print(f"\nsilence at a takeover: median {statistics.median(silences):.0f} ms of {silences}")


@pytest.mark.kafka
@pytest.mark.parametrize("victims", ["all", "worker"])
def test_one_that_cannot_answer_is_killed(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, victims: str
) -> None:
    """Controller and workers stopped, or a worker that does not end: who starts is told, and --takeover kills."""
    # The old daemon's own look at heartbeats must not be the one that kills.
    daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.heartbeat_timeout_s": 600})
    with SteadyLoad(kafka.bootstrap_servers, daemon.run_dir, new_topic(partitions=3), clients=2) as load:
        load.wait_more()
        old = daemon.process
        assert old is not None
        workers = daemon.worker_pids()
        stopped = [old.pid, *workers] if victims == "all" else workers[:1]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        if victims == "all":
            second = daemon.spawn()
            assert second.wait(20) == ExitStatus.FAILED
            assert f"pid {old.pid}, which is stopped" in daemon.log_tail()
            daemon.process = old
        daemon.take_over()
        assert "it is killed" in daemon.log_path.read_text()
        for pid in stopped:
            # Nothing of it runs again, whoever lets it continue.
            assert process_state(pid) in {None, "Z"}
        load.wait_more()
        load.check()


def test_another_layout_is_refused(
    start_daemon: StartDaemon, mock_broker: MockBroker, tmp_path: Path
) -> None:
    daemon = start_daemon(mock_broker.bootstrap_servers)
    old = daemon.process
    segment = Path(daemon.info()["segment"])
    run_build(daemon, make_build(tmp_path, "98.0", layout_version=98))
    refused = daemon.spawn("--takeover")
    try:
        assert refused.wait(30) == ExitStatus.FAILED
    finally:
        daemon.process = old
    assert "That daemon continues" in daemon.log_tail()
    assert "layout version" in daemon.log_tail()
    assert segment.exists()
    assert daemon.command("status").returncode == ExitStatus.OK


def test_nobody_there_is_a_plain_start(start_daemon: StartDaemon, mock_broker: MockBroker) -> None:
    daemon = start_daemon(mock_broker.bootstrap_servers)
    assert daemon.stop() == ExitStatus.OK
    daemon.spawn("--takeover")
    daemon.wait_ready()
    assert daemon.stop() == ExitStatus.OK


def test_two_at_once(start_daemon: StartDaemon, mock_broker: MockBroker) -> None:
    """One takes over; the other is told, and disturbs nothing."""
    daemon = start_daemon(mock_broker.bootstrap_servers)
    first = daemon.process
    assert first is not None
    both = [daemon.spawn("--takeover"), daemon.spawn("--takeover")]
    assert first.wait(30) == ExitStatus.OK
    loser = wait_until(
        lambda: next((each for each in both if each.poll() is not None), None),
        "one of them to end",
        describe=daemon.log_tail,
    )
    (winner,) = [each for each in both if each is not loser]
    daemon.process = winner
    if loser.returncode == ExitStatus.FAILED:
        assert "is taking over" in daemon.log_path.read_text()
    else:
        assert loser.returncode == ExitStatus.OK, (
            "it was there first, and the other took over from it in turn"
        )
    daemon.wait_ready()
    assert daemon.stop() == ExitStatus.OK
