"""ST-03 and ST-06: what becomes of stages whose process, worker or daemon ends, and that nothing of many is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from client_stub import Producer
from client_stub.contract.tcp import KEY_FILE_VARIABLE
from client_stub.errors import SidecarError
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.client_table import ClientTable
from sidecar.shm.lane_records import LaneRecords
from sidecar.shm.segment import Segment
from sidecar.shm.stage_records import StageRecords
from sidecar.shm.stage_states import StageRowState
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.tcp_access import TcpAccess
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process

CALL_S: Final = 30.0

STAGER: Final = """
import sys
from client_stub import Producer
run_dir, how = sys.argv[1:3]
producer = Producer(run_dir=run_dir, client_name="stager")
stage = producer.stage("job", 1, how)
for number in range(100):
    stage.send("t", b"%s-%d" % (how.encode(), number))
if how == "sealed":
    print(stage.seal(30).decode(), flush=True)
else:
    print("open", flush=True)
sys.stdin.read()
"""


def stager_process(address: str, how: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", STAGER, address, how]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def staged(daemon: SidecarDaemon) -> float:
    return metric(daemon, "kafka_sidecar_records_staged")


def include(daemon: SidecarDaemon, *tokens: bytes) -> None:
    with Producer(run_dir=str(daemon.run_dir), client_name="includer", transactional_id="job") as producer:
        producer.init_transactions(CALL_S)
        with producer.transaction():
            producer.include(list(tokens), CALL_S)


def test_open_stage_of_a_killed_process_is_dropped_and_a_sealed_one_is_not(start_daemon: StartDaemon) -> None:
    with FakeBroker({"t": 2}, transaction_version=2) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.workers": 1})
        run_dir = str(daemon.run_dir)
        with stager_process(run_dir, "open") as opened, stager_process(run_dir, "sealed") as sealed:
            assert opened.stdout is not None and sealed.stdout is not None
            token = sealed.stdout.readline().strip()
            assert opened.stdout.readline() == b"open\n"
            wait_until(lambda: staged(daemon) == 200, "all records are staged")
            for process in (opened, sealed):
                process.kill()
        wait_until(lambda: staged(daemon) == 100, "the open stage is dropped")
        wait_until(lambda: metric(daemon, "kafka_sidecar_records_aborted_total") == 100, "its records ended")
        wait_until(lambda: metric(daemon, "kafka_sidecar_stages_abandoned_total") == 1, "it is counted")
        assert not kafka.records("t")
        include(daemon, token)
        assert len(kafka.records("t", committed=True)) == 100


def test_stages_of_processes_on_other_hosts(
    start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon does not see these processes: only the end of a connection shows that one is gone."""
    access = TcpAccess(tmp_path, ["stager", "includer"])
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(access.key_file))
    with FakeBroker({"t": 2}, transaction_version=2) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers, settings=access.settings, config=access.config)
        with (
            stager_process(access.address, "open") as opened,
            stager_process(access.address, "sealed") as sealed,
        ):
            assert opened.stdout is not None and sealed.stdout is not None
            token = sealed.stdout.readline().strip()
            assert opened.stdout.readline() == b"open\n"
            wait_until(lambda: staged(daemon) == 200, "all records are staged")
            for process in (opened, sealed):
                process.kill()
        wait_until(lambda: staged(daemon) == 100, "the open stage is dropped")
        with Producer(access.address, client_name="includer", transactional_id="job") as producer:
            producer.init_transactions(CALL_S)
            with producer.transaction():
                assert producer.include([token], CALL_S).rows == 100
        assert len(kafka.records("t", committed=True)) == 100


def kill_worker(daemon: SidecarDaemon) -> None:
    (pid,) = daemon.worker_pids()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid not in daemon.worker_pids() and daemon.worker_pids(), "another worker")


def kill_daemon(daemon: SidecarDaemon) -> None:
    daemon.kill_all()
    daemon.start()


def take_over(daemon: SidecarDaemon) -> None:
    daemon.spawn("--takeover")
    daemon.wait_ready()


def stop_and_start(daemon: SidecarDaemon) -> None:
    daemon.stop()
    daemon.start()


@pytest.mark.parametrize("end", [kill_worker, kill_daemon, take_over, stop_and_start])
def test_sealed_stage_survives(start_daemon: StartDaemon, end: Callable[[SidecarDaemon], None]) -> None:
    with FakeBroker({"t": 2}, transaction_version=2) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.workers": 1})
        with Producer(run_dir=str(daemon.run_dir), client_name="stager") as producer:
            stage = producer.stage("job", 1)
            for number in range(500):
                stage.send("t", b"%d" % number)
            token = stage.seal(CALL_S)
        end(daemon)
        wait_until(lambda: staged(daemon) == 500, "the records are still staged")
        include(daemon, token)
        assert len(kafka.records("t", committed=True)) == 500
        wait_until(lambda: metric(daemon, "kafka_sidecar_records_held") == 0, "nothing is held")
        assert "ALARM" not in daemon.log_path.read_text()
        with pytest.raises(SidecarError, match="was included by a transaction already"):
            include(daemon, token)


def test_stage_that_nobody_includes_is_dropped_in_time(start_daemon: StartDaemon) -> None:
    with FakeBroker({"t": 2}, transaction_version=2) as kafka:
        daemon = start_daemon(
            kafka.bootstrap_servers, settings={"daemon.workers": 1, "daemon.stage_timeout_ms": 1_000}
        )
        with Producer(run_dir=str(daemon.run_dir), client_name="stager") as producer:
            stage = producer.stage("job", 1)
            stage.send("t", b"value")
            token = stage.seal(CALL_S)
        wait_until(lambda: metric(daemon, "kafka_sidecar_stages_expired_total") == 1, "it is dropped")
        with pytest.raises(SidecarError, match=r"daemon\.stage_timeout_ms"):
            include(daemon, token)


def rows_of(daemon: SidecarDaemon) -> tuple[int, int, int]:
    """Rows of the only worker that are in use: lanes, stages, clients."""
    segment = Segment.attach(Path(daemon.info()["segment"]))
    try:
        stages = sum(row.state is not StageRowState.ENDED for row in StageRecords(segment, 0))
        return len(list(LaneRecords(segment, 0))), stages, ClientTable(segment).taken()
    finally:
        segment.close()


def chains_of(daemon: SidecarDaemon) -> int:
    segment = Segment.attach(Path(daemon.info()["segment"]))
    try:
        return len(ChainTable(segment, 0).ids())
    finally:
        segment.close()


def test_nothing_is_left_of_many_stages(start_daemon: StartDaemon, request: pytest.FixtureRequest) -> None:
    """One process, one stage after the other, two hundred topics in turn; 10,000 of them in the long form."""
    count = 10_000 if request.config.getoption("--long") else 1_000
    topics = {f"t-{number}": 1 for number in range(200)}
    with FakeBroker(topics, transaction_version=2) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.workers": 1})
        run_dir = str(daemon.run_dir)
        with (
            Producer(run_dir=run_dir, transactional_id="job") as producer,
            Producer(run_dir=run_dir) as stager,
        ):
            producer.init_transactions(CALL_S)
            tokens: list[bytes] = []
            for number in range(count):
                stage = stager.stage("job", number)
                for each in range(3):
                    stage.send(f"t-{(3 * number + each) % 200}", b"value")
                tokens.append(stage.seal(CALL_S))
                if len(tokens) == 100:
                    with producer.transaction():
                        producer.include(tokens, CALL_S)
                    tokens.clear()
        assert sum(len(kafka.records(topic, committed=True)) for topic in topics) == 3 * count
        wait_until(lambda: rows_of(daemon) == (0, 0, 0), "no lane, stage or client is left")
        assert chains_of(daemon) == 0
        assert staged(daemon) == 0 and metric(daemon, "kafka_sidecar_buffer_pages_taken") == 0
