"""Goal: records that a dead daemon accepted are never overwritten, and the next one says where they are."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from client_stub import Producer
from sidecar.common.model import ExitStatus
from sidecar.controller.run_dir import RunDir, RunDirError
from sidecar.controller.segment_store import SegmentStore, describe
from sidecar.shm.segment import Segment, describe_undelivered
from sidecar.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.testing.metrics import metric
from sidecar.testing.waiting import wait_until


def open_store(run_dir: RunDir, path: Path, instance_id: bytes = b"i" * 16) -> SegmentStore:
    return SegmentStore.open(
        run_dir,
        configured_path=str(path),
        page_bytes=4096,
        buffer_memory_bytes=1 << 20,
        clients_max=16,
        instance_id=instance_id,
    )


def test_an_empty_one_of_the_dead_is_replaced(short_dir: Path) -> None:
    run_dir = RunDir(short_dir)
    store = open_store(run_dir, short_dir / "a")
    store.segment.close()  # as a crash leaves it: the file stays, nobody holds it
    os.close(store.fd)
    again = open_store(run_dir, short_dir / "b")
    assert not (short_dir / "a").exists(), "found by segment.json, although pool.path has changed"
    assert again.close() == ""
    assert not (short_dir / "b").exists()


def test_one_in_use_is_refused(short_dir: Path) -> None:
    store = open_store(RunDir(short_dir), short_dir / "a")
    with pytest.raises(RunDirError, match=r"in use by another daemon.*pool\.path"):
        open_store(RunDir(short_dir / "other"), short_dir / "a")
    store.close()


def test_a_foreign_file_is_left_alone(short_dir: Path) -> None:
    (short_dir / "a").write_bytes(b"precious" * 1000)
    with pytest.raises(RunDirError, match="Nothing is overwritten"):
        open_store(RunDir(short_dir), short_dir / "a")
    assert (short_dir / "a").read_bytes() == b"precious" * 1000


def test_an_unfinished_one_is_replaced(short_dir: Path) -> None:
    (short_dir / "a").write_bytes(bytes(8192))
    assert open_store(RunDir(short_dir), short_dir / "a").close() == ""


def test_no_room_names_the_remedy(short_dir: Path) -> None:
    with pytest.raises(RunDirError, match=r"cannot be made: .*\.$"):
        open_store(RunDir(short_dir), short_dir / "missing" / "a")


def test_slots_are_given_out_and_held(short_dir: Path) -> None:
    store = open_store(RunDir(short_dir), short_dir / "a")
    assert store.take_slot(set()) == 0
    assert store.take_slot({0, 1}) == 2
    assert store.slot_died(0) is False
    assert store.take_slot({2}) == 0
    assert len({store.next_incarnation() for _ in range(5)}) == 5
    store.close()


def test_describe() -> None:
    assert describe([(0, "a", 1, 10)]) == "1 undelivered record (topic a)"
    rows = [(0, name, 500, 1) for name in "abcde"]
    assert describe(rows) == "2,500 undelivered records (topics a, b, c and 2 more)"


@pytest.mark.process
@pytest.mark.parametrize("victims", ["controller", "worker"])
def test_accepted_records_survive_and_are_named(start_daemon: StartDaemon, victims: str) -> None:
    """Kafka is not there; records are accepted; the daemon or its worker dies by SIGKILL."""
    daemon = start_daemon("127.0.0.1:1", wait=False, settings={"daemon.workers": 1})
    wait_until((daemon.run_dir / "control.sock").exists, "the control socket", describe=daemon.log_tail)
    producer = Producer(run_dir=str(daemon.run_dir))
    try:
        for _ in range(3):
            producer.send("orders", value=b"paid")
        wait_until(
            lambda: metric(daemon, "kafka_sidecar_records_accepted_total") == 3,
            "three records to be accepted",
        )
        if victims == "worker":
            (pid,) = daemon.worker_pids()
            os.kill(pid, signal.SIGKILL)
            held = wait_until(lambda: daemon.status()["held_slots"], "the slot to be held")
            assert held == [0]
            assert "slots 0 keep records of dead workers" in daemon.command("status").stdout
        daemon.kill()
    finally:
        producer.close(0)
    segment = Path(RunDir(daemon.run_dir).segment_json.read_text().split('"')[3])
    again = SidecarDaemon("127.0.0.1:1", run_dir=daemon.run_dir)
    again.log_path = Path(f"{daemon.run_dir}.again.log")
    try:
        again.spawn()
        assert again.process is not None
        assert again.process.wait(20) == ExitStatus.FAILED
        log = again.log_tail()
        assert "3 undelivered records (topic orders)" in log
        assert str(segment) in log
        assert "Traceback" not in log
        left = Segment.attach(segment)
        assert [(topic, records) for _, topic, records, _ in describe_undelivered(left)] == [("orders", 3)]
        left.close()
    finally:
        again.kill()
        again.log_path.unlink(missing_ok=True)
        segment.unlink(missing_ok=True)
