"""Goal: a stop delivers or tells; the second signal forces; systemd hears each step."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest

from client_stub import Producer
from client_stub.errors import SidecarError
from sidecar.common.model import ExitStatus
from sidecar.controller.front.stop_requests import REPEAT_S, StopRequests, StopStep
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.waiting import wait_until
from tests.waiting_places import PLACES

pytestmark = pytest.mark.process


def test_a_signal_at_any_moment_of_its_end_changes_no_exit_status(start_daemon: StartDaemon) -> None:
    """SIGTERM each millisecond until it is gone, the interpreter's own end included."""
    daemon = start_daemon("127.0.0.1:1", wait=False, settings={"daemon.workers": 1})
    daemon.wait_published()
    process = daemon.process
    assert process is not None

    def has_ended() -> bool:
        process.send_signal(signal.SIGTERM)
        return process.poll() is not None

    wait_until(has_ended, "its end", timeout_s=20, interval_s=0.001)
    assert process.returncode == ExitStatus.OK


@pytest.mark.rule("S2")
def test_the_second_signal_fails_what_is_left_to_its_sender(start_daemon: StartDaemon) -> None:
    """Kafka is not there, so the drain of the first SIGTERM cannot end by itself."""
    daemon = start_daemon("127.0.0.1:1", wait=False, settings={"daemon.workers": 1})
    daemon.wait_published()
    producer = Producer(run_dir=str(daemon.run_dir))
    try:
        delivery = producer.send("orders", value=b"paid")
        wait_until(
            lambda: metric(daemon, "kafka_sidecar_records_accepted_total") == 1, "the record to be accepted"
        )
        segment = Path(daemon.info()["segment"])
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: daemon.info()["state"] == "draining", "the drain to begin")
        shown = daemon.command("status")
        assert shown.returncode == ExitStatus.FAILED
        assert "takes no new records" in shown.stdout
        daemon.force()
        assert daemon.process.wait(20) == ExitStatus.FAILED
        with pytest.raises(SidecarError, match="daemon was closed"):
            delivery.result(timeout=10)
    finally:
        producer.close(0)
    assert "1 record could not be delivered" in daemon.log_tail()
    assert not segment.exists(), "told is settled: nothing is left in it"


@pytest.mark.rule("S2")
def test_two_signals_of_one_stop_fail_nothing(start_daemon: StartDaemon) -> None:
    """`timeout`, and a stop of a process group, send SIGTERM twice within milliseconds."""
    with FakeBroker({"orders": 1}) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.workers": 1})
        held = kafka.add(on(Api.PRODUCE, times=ALWAYS).hold_answer())
        with Producer(run_dir=str(daemon.run_dir)) as producer:
            deliveries = [producer.send("orders", value=b"%d" % number) for number in range(500)]
            producer.flush(20, until="accepted")
            assert daemon.process is not None
            daemon.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "SIGTERM: draining" in daemon.log_tail(), "the drain to begin")
            daemon.process.send_signal(signal.SIGTERM)
            daemon.process.send_signal(signal.SIGINT)
            wait_until(lambda: "SIGINT again" in daemon.log_tail(), "the last signal")
            held.release()
            kafka.clear_rules()
            assert [delivery.result(timeout=20).offset for delivery in deliveries] == list(range(500))
            assert daemon.process.wait(20) == ExitStatus.OK, daemon.log_tail()
        assert len(kafka.records("orders")) == 500


@pytest.mark.rule("S2")
@pytest.mark.parametrize("waits_for", ["answer", "leader", "partition", "retry", "topic"])
def test_at_the_drains_deadline_every_record_fails_to_its_sender(
    start_daemon: StartDaemon, waits_for: str
) -> None:
    """Each place of a worker in which a record may wait ends, and with it the worker."""
    place = PLACES[waits_for]
    with FakeBroker({"orders": 1}) as kafka:
        daemon = start_daemon(
            kafka.bootstrap_servers, settings={"daemon.workers": 1, "daemon.shutdown_timeout_s": 1}
        )
        producer = Producer(run_dir=str(daemon.run_dir))
        try:
            assert producer.send("orders", value=b"before").result(20).offset == 0
            place.begin(kafka, daemon)
            delivery = producer.send(place.topic, value=b"paid", partition=place.partition)
            producer.flush(20, until="accepted")
            assert daemon.process is not None
            daemon.process.send_signal(signal.SIGTERM)
            assert daemon.process.wait(30) == ExitStatus.FAILED, daemon.log_tail()
            with pytest.raises(SidecarError):
                delivery.result(timeout=10)
        finally:
            producer.close(0)
        assert "1 record could not be delivered" in daemon.log_tail()


@pytest.mark.rule("S2")
def test_the_second_stop_counts_after_two_seconds() -> None:
    requests = StopRequests()
    assert requests.ask(100.0) is StopStep.DRAIN
    assert requests.ask(100.0 + REPEAT_S - 0.001) is StopStep.REPEAT
    assert requests.ask(100.0 + REPEAT_S) is StopStep.FORCE, "repeats do not put it off"
    assert requests.ask(100.0 + REPEAT_S) is StopStep.FORCE


def test_systemd_hears_ready_watchdog_and_stopping(
    start_daemon: StartDaemon, mock_broker: MockBroker, short_dir: Path
) -> None:
    path = str(short_dir / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.settimeout(20)
        daemon = start_daemon(
            mock_broker.bootstrap_servers,
            environment={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "400000"},
            wait=False,  # a socket nobody reads keeps ten datagrams: the watchdog's would leave no room for READY
        )
        said: list[bytes] = []

        def hear(what: bytes) -> None:
            deadline_s = time.monotonic() + 30
            while not any(what in each for each in said):
                assert time.monotonic() < deadline_s, f"{what!r} was not said: {said}"
                said.append(heard.recv(4096))

        hear(b"READY=1")
        hear(b"WATCHDOG=1")
        hear(b"STATUS=Running")
        assert daemon.stop() == ExitStatus.OK
        hear(b"STOPPING=1")
        assert b"STATUS=The daemon waits for its workers" in b"".join(said)
    assert daemon.process is not None
    assert f"MAINPID={daemon.process.pid}".encode() in b"".join(said)
