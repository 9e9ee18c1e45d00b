"""Goal: the log begins with what runs here, ends with what became of the records, and is silent about proper ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest

from client_stub import Producer
from sidecar.common.model import ExitStatus
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process

SEND = """
import sys
from client_stub import Producer
producer = Producer(run_dir=sys.argv[1], client_name=sys.argv[2])
producer.send("orders", value=b"paid")
producer.flush(until=sys.argv[3])
print("sent", flush=True)
if sys.argv[3] == "accepted":
    sys.stdin.read()
producer.close()
"""


def test_banner_and_last_line(start_daemon: StartDaemon) -> None:
    with FakeBroker({"orders": 1}) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers, settings={"linger.ms": 7})
        said = daemon.log_tail(100)
        assert re.search(
            r" INFO controller: kafka-sidecar \S+ starts on run dir \S+ \(pid \d+, Python", said
        ), said
        assert "linger.ms = 7 (-X)" in said
        assert re.search(r"Pool of \d+ MiB \([\d,]+ pages of 16,384 bytes\) in \S+, for 2 workers", said), (
            said
        )
        for number in range(3):
            done = subprocess.run(
                [sys.executable, "-c", SEND, str(daemon.run_dir), f"short-{number}", "delivered"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        held = kafka.add(on(Api.PRODUCE, times=ALWAYS).hold_answer())
        with Producer(run_dir=str(daemon.run_dir)) as producer:
            delivery = producer.send("orders", value=b"last")
            producer.flush(20, until="accepted")
            assert daemon.process is not None
            daemon.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "draining" in daemon.log_tail(), "the drain")
            held.release()
            kafka.clear_rules()
            assert delivery.result(20).offset == 3
        assert daemon.process.wait(20) == ExitStatus.OK
    last = daemon.log_tail(1)
    assert re.search(
        r"Drained in \d+\.\d s: 1 record delivered, 0 failed to their senders, 0 became dead letters", last
    ), last
    assert "died" not in daemon.log_tail(1000), "clients that ended properly are no news"


def test_a_client_that_dies_with_records_is_said(start_daemon: StartDaemon) -> None:
    with FakeBroker({"orders": 1}) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers)
        held = kafka.add(on(Api.PRODUCE, times=ALWAYS).hold_answer())
        with subprocess.Popen(
            [sys.executable, "-c", SEND, str(daemon.run_dir), "billing", "accepted"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"sent\n"
            client.kill()
        wait_until(lambda: "Client billing has died with 1 record under way" in daemon.log_tail(), "the line")
        held.release()
        kafka.clear_rules()
        wait_until(lambda: metric(daemon, "kafka_sidecar_records_delivered_total") == 1, "its record")


@pytest.mark.parametrize("line_format", ["json", "journald"])
def test_every_line_of_both_processes_has_the_format(start_daemon: StartDaemon, line_format: str) -> None:
    with FakeBroker({"orders": 1}) as kafka:
        daemon = start_daemon(
            kafka.bootstrap_servers, settings={"log.format": line_format, "log.level": "debug"}
        )
        with Producer(run_dir=str(daemon.run_dir)) as producer:
            producer.send("orders", value=b"paid").result(20)
        assert daemon.stop() == ExitStatus.OK
    lines = daemon.log_path.read_text().splitlines()
    if line_format == "json":
        found = [json.loads(line) for line in lines]
        processes = {each["process"] for each in found}
        assert "controller" in processes
        assert processes & {"worker 0", "worker 1"}
        assert all(each["time"] and each["level"] and each["message"] for each in found)
    else:
        assert all(re.match(r"<[2-7]>(controller|worker \d): ", line) for line in lines), lines
        assert not any(re.match(r"<\d>\S+ \d{4}-", line) for line in lines), "the journal has the time"
