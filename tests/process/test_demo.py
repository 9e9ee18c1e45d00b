"""The demo as a program: its counts decide its exit status, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO

import pytest

from sidecar.tools.demo.judge import Judge, LiveReading, TopicReader
from sidecar.tools.testing.daemon import cli
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process

TIMEOUT_S = 30.0


def start(output: IO[bytes], *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*cli("demo"), *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )


def children(pid: int) -> list[int]:
    """Every living descendant of ``pid``."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *children(child)]
    return found


def test_mock_demo_delivers_every_row(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("wb") as output:
        status = start(output, "--mock").wait(120)
    text = path.read_text()
    assert status == 0, text
    assert "neither Spark nor exactness is shown" in text
    assert re.search(r"rows delivered, as the daemon counts\s+│\s+336,776", text), text


@pytest.mark.alone  # a signal that comes in a fork hook is lost, and coverage makes those hooks long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "out"
    with path.open("wb") as output:
        demo = start(output, "--mock")
        try:
            wait_until(lambda: "send_many()" in path.read_text(), "the job to start", timeout_s=60)
            run_dir = Path(re.findall(r"run dir (\S+),", path.read_text())[0])
            segment = re.findall(r'"segment": "([^"]+)"', (run_dir / "daemon.json").read_text())
            started = wait_until(lambda: children(demo.pid), "its children")
            assert len(started) >= 4  # mock cluster, controller, two workers; perhaps the senders
            demo.send_signal(number)
            try:
                status = demo.wait(60)
            except subprocess.TimeoutExpired:
                demo.send_signal(signal.SIGABRT)  # it says where it hangs
                demo.wait()
                pytest.fail(path.read_text())
            assert status == (130 if number == signal.SIGINT else 143), path.read_text()
        finally:
            demo.kill()
            demo.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "all children to be gone")
    assert not run_dir.exists()
    assert segment and not Path(segment[0]).exists()
    assert "Traceback" not in path.read_text()


def test_closing_the_reader_ends_who_still_reads(mock_broker: MockBroker) -> None:
    """Ctrl-C may come between the start of the reading thread and whoever would tell it to end."""
    reader = TopicReader(mock_broker.bootstrap_servers, "smoke")
    LiveReading(reader, Judge()).__enter__()
    closing = threading.Thread(target=reader.close, daemon=True)
    closing.start()
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
    wait_until(
        lambda: not any(each.name == "live-reading" for each in threading.enumerate()), "the thread to end"
    )


@pytest.mark.kafka
@pytest.mark.spark
def test_whole_demo_on_a_running_cluster(kafka: KafkaCluster, tmp_path: Path) -> None:
    """The main job: PySpark, real Kafka, the independent judge, the comparison."""
    path = tmp_path / "out"
    with path.open("wb") as output:
        status = start(output, "--bootstrap-servers", kafka.bootstrap_servers).wait(240)
    text = path.read_text()
    assert status == 0, text
    assert re.search(r"rows read back by the judge\s+│\s+336,776", text), text
    assert re.search(r"16 keys: counts, sums and order agree\s+│\s+yes", text), text
