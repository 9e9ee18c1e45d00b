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
from sidecar.testing.daemon import StartDaemon
from sidecar.testing.metrics import metric
from sidecar.testing.mock_broker import MockBroker
from sidecar.testing.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.mark.rule("S2")
def test_the_second_signal_fails_what_is_left_to_its_sender(start_daemon: StartDaemon) -> None:
    """Kafka is not there, so the drain of the first SIGTERM cannot end by itself."""
    daemon = start_daemon("127.0.0.1:1", wait=False, settings={"daemon.workers": 1})
    wait_until((daemon.run_dir / "control.sock").exists, "the control socket", describe=daemon.log_tail)
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
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(20) == ExitStatus.FAILED
        with pytest.raises(SidecarError, match="daemon was closed"):
            delivery.result(timeout=10)
    finally:
        producer.close(0)
    assert "1 record could not be delivered" in daemon.log_tail()
    assert not segment.exists(), "told is settled: nothing is left in it"


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
