"""Goal: starting, stopping and going wrong each say one clear sentence and lose nothing that was accepted."""

from __future__ import annotations

import contextlib
import signal
import socket
from pathlib import Path
from urllib.error import HTTPError

import pytest

from sidecar.common.model import ExitStatus
from sidecar.tools.testing.daemon import DaemonFailed, SidecarDaemon, StartDaemon
from sidecar.tools.testing.forked_clients import collect, enter, start_clients
from sidecar.tools.testing.kafka_cluster import KafkaCluster, free_ports
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.metrics import http_get, metric
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process


def ended(daemon: SidecarDaemon, timeout_s: float = 20.0) -> tuple[int, str]:
    """Exit status and log of a daemon that is expected to end by itself."""
    assert daemon.process is not None
    return daemon.process.wait(timeout_s), daemon.log_tail()


@pytest.mark.kafka
def test_sigterm_drains(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, ledger: Ledger
) -> None:
    """SIGTERM while four clients send: what was accepted is delivered or failed to its sender."""
    daemon = start_daemon(kafka.bootstrap_servers)
    topic = new_topic(partitions=3)
    clients = start_clients(daemon.run_dir, topic, 4, 20_000)
    wait_until(
        lambda: metric(daemon, "kafka_sidecar_records_delivered_total") > 5_000,
        "some records to be delivered",
    )
    segment = Path(daemon.info()["segment"])
    assert daemon.stop() == ExitStatus.OK, daemon.log_tail()
    assert not segment.exists(), "a clean stop leaves no segment"
    assert not list(daemon.run_dir.glob("*.sock"))
    # The clients wait for a daemon that may come back; it does, and takes the rest.
    daemon.start()
    enter(collect(clients), ledger)
    ledger.read_all(
        (RecordId.decode(record.value or b""), record.partition)
        for record in read_topic(kafka.bootstrap_servers, topic)
    )
    ledger.check()


def test_unreachable_bootstrap_stays_up_and_says_so(start_daemon: StartDaemon) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    daemon = start_daemon(address, wait=False)
    daemon.wait_published()
    status = daemon.command("status")
    assert status.returncode == ExitStatus.FAILED
    assert address in status.stdout + status.stderr
    with pytest.raises(HTTPError) as refused:
        http_get(daemon, "/healthz")
    assert refused.value.code == 503
    assert address in refused.value.read().decode()
    assert daemon.process is not None
    assert daemon.process.poll() is None
    assert daemon.stop() == ExitStatus.OK


def test_it_comes_to_life_when_kafka_does(start_daemon: StartDaemon, mock_broker: MockBroker) -> None:
    """One dead bootstrap address beside a live one does no harm."""
    dead = f"127.0.0.1:{free_ports(1)[0]}"
    daemon = start_daemon(f"{dead},{mock_broker.bootstrap_servers}")
    assert daemon.status()


def test_second_daemon_names_the_holder(start_daemon: StartDaemon, mock_broker: MockBroker) -> None:
    first = start_daemon(mock_broker.bootstrap_servers)
    second = SidecarDaemon(mock_broker.bootstrap_servers, run_dir=first.run_dir)
    second.log_path = Path(f"{first.run_dir}.second.log")
    try:
        second.spawn()
        status, text = ended(second)
    finally:
        second.log_path.unlink(missing_ok=True)
    assert status == ExitStatus.FAILED
    assert str(first.info()["pid"]) in text
    assert str(first.run_dir) in text
    assert first.command("status").returncode == ExitStatus.OK


def test_remains_of_a_killed_daemon_are_no_obstacle(
    start_daemon: StartDaemon, mock_broker: MockBroker
) -> None:
    """Sockets, lock file and an empty segment of a killed daemon: the next one clears them away."""
    daemon = start_daemon(mock_broker.bootstrap_servers)
    segment = Path(daemon.info()["segment"])
    workers = daemon.worker_pids()
    daemon.kill()
    wait_until(lambda: not any(_alive(pid) for pid in workers), "the workers to notice and end")
    assert (daemon.run_dir / "control.sock").exists()
    daemon.start()
    assert daemon.stop() == ExitStatus.OK
    assert not segment.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_idle_daemon_stops_at_once(
    start_daemon: StartDaemon, mock_broker: MockBroker, number: signal.Signals
) -> None:
    daemon = start_daemon(mock_broker.bootstrap_servers)
    workers = daemon.worker_pids()
    assert daemon.process is not None
    daemon.process.send_signal(number)
    assert ended(daemon)[0] == ExitStatus.OK
    assert not any(_alive(pid) for pid in workers)
    assert not list(daemon.run_dir.glob("*.sock"))


def test_taken_http_port(start_daemon: StartDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        daemon = start_daemon("127.0.0.1:1", wait=False, settings={"http.listen": address})
        status, text = ended(daemon)
    assert status == ExitStatus.FAILED
    assert address in text
    assert "http.listen" in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("linger.msec", 5, "linger.ms"),
        ("linger.ms", "soon", "linger.ms"),
        ("acks", "most", "acks"),
        ("buffer.memory", -1, "buffer.memory"),
    ],
)
def test_wrong_configuration(start_daemon: StartDaemon, setting: str, value: object, words: str) -> None:
    daemon = start_daemon("127.0.0.1:1", wait=False, settings={setting: value})
    status, text = ended(daemon)
    assert status == ExitStatus.USAGE
    assert words in text
    assert "Traceback" not in text


def test_run_dir_too_long(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """AF_UNIX paths end at 107 bytes; ZeroMQ would say only 'Invalid argument'."""
    run_dir = tmp_path / ("d" * 120)
    daemon = start_daemon("127.0.0.1:1", wait=False, run_dir=run_dir)
    status, text = ended(daemon)
    daemon.log_path.unlink(missing_ok=True)
    assert status in {ExitStatus.FAILED, ExitStatus.USAGE}
    assert "107" in text
    assert "Traceback" not in text


def test_status_without_a_daemon(tmp_path: Path) -> None:
    daemon = SidecarDaemon("127.0.0.1:1", run_dir=tmp_path)
    status = daemon.command("status")
    assert status.returncode == ExitStatus.DAEMON_UNREACHABLE
    assert str(tmp_path) in status.stderr
    assert "kafka-sidecar run" in status.stderr


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")
    return False


def test_a_dead_letter_folder_that_cannot_be_used_is_refused_at_the_start(
    mock_broker: MockBroker, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DaemonFailed, match=r"dead_letters.path = .* cannot be used"):
        start_daemon(
            mock_broker.bootstrap_servers, settings={"dead_letters.path": tmp_path / "file" / "letters"}
        )


def test_an_error_in_the_controllers_second_is_logged_and_the_next_second_comes(
    start_daemon: StartDaemon, mock_broker: MockBroker, tmp_path: Path
) -> None:
    """The task ended without a line: `status` did not move, and no idle daemon ended."""
    (tmp_path / "sitecustomize.py").write_text(
        """
import sys

if "run" in sys.orig_argv:
    from sidecar.controller.status.overview import Overview

    tick, faults = Overview.tick, [KeyError("a bug"), KeyError("a bug")]

    def failing(overview):
        if faults:
            raise faults.pop()
        return tick(overview)

    Overview.tick = failing
"""
    )
    daemon = start_daemon(
        mock_broker.bootstrap_servers,
        settings={"daemon.idle_timeout_s": 3},
        environment={"PYTHONPATH": str(tmp_path)},
    )
    status, log = ended(daemon)
    assert status == ExitStatus.OK
    assert log.count("KeyError: 'a bug'") == 1, log
    assert log.count("This is a bug of kafka-sidecar: please report it.") == 1, log
    assert "No client for 3 s (daemon.idle_timeout_s)" in log
