"""Goal: records that a dead daemon accepted are never overwritten, and the next one says where they are."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from client_stub import Producer
from sidecar.controller.rundir.opening import PoolSize, open_segment
from sidecar.controller.rundir.run_dir import RunDir, RunDirError
from sidecar.controller.rundir.segment_store import SegmentStore, describe
from sidecar.shm.client_table import ClientTable
from sidecar.shm.recovery import describe_undelivered
from sidecar.shm.segment import Segment
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until


def open_store(run_dir: RunDir, path: Path, instance_id: bytes = b"i" * 16) -> SegmentStore:
    return open_segment(
        run_dir,
        PoolSize(4096, 1 << 20, 16),
        sync="none",
        workers=1,
        configured_path=str(path),
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


def test_one_that_the_run_dir_cannot_name_is_not_left_behind(short_dir: Path) -> None:
    """As on a full disk: a segment that no file names would keep its memory until the host's end."""
    run_dir = RunDir(short_dir)
    run_dir.files.segment_json.mkdir()  # which no file can replace
    with pytest.raises(RunDirError, match=r"cannot be written .* would not find"):
        open_store(run_dir, short_dir / "a")
    assert not (short_dir / "a").exists()
    assert not list(short_dir.glob(".segment*")), "nor is half a file"


def test_seats_and_incarnations(short_dir: Path) -> None:
    store = open_store(RunDir(short_dir), short_dir / "a")
    assert store.worker_slots(2) == [0, 1]
    store.prepare(3)
    assert ClientTable(store.segment).take_row(b"c" * 20, "billing", 1, 3, b"s" * 16) is not None
    assert store.worker_slots(2) == [3, 0], "who finds his records there comes first"
    assert store.worker_slots(0) == [3]
    assert store.slot_of(b"c" * 20) == 3
    assert store.slot_of(b"d" * 20) is None
    assert len({store.next_incarnation() for _ in range(5)}) == 5
    store.close()


def leave(store: SegmentStore) -> None:
    """As a crash leaves it: a client's row is in it, the file stays, nobody holds it."""
    store.prepare(0)
    store.segment.slot(0).claim(incarnation=store.next_incarnation())
    assert ClientTable(store.segment).take_row(b"c" * 20, "billing", 1, 0, b"s" * 16) is not None
    store.segment.close()
    os.close(store.fd)


def test_one_with_content_is_taken_as_it_is(short_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_dir = RunDir(short_dir)
    leave(open_store(run_dir, short_dir / "a"))
    again = open_segment(
        run_dir,
        PoolSize(4096, 2 << 20, 17),
        sync="none",
        workers=1,
        configured_path=str(short_dir / "b"),
        instance_id=b"j" * 16,
    )
    assert again.path == short_dir / "a"
    assert again.buffer_memory_bytes == 1 << 20
    assert "not 2097152" in caplog.text
    assert "daemon.clients_max is 16, not 17" in caplog.text
    assert again.next_incarnation() > 1, "no number is used twice"
    again.close()


@pytest.mark.parametrize("damage", ["version", "sizes", "magic"])
def test_one_that_cannot_be_read_is_set_aside(
    short_dir: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    run_dir = RunDir(short_dir)
    leave(open_store(run_dir, short_dir / "a"))
    position, value = {"version": (8, b"\x63"), "sizes": (24, b"\x07\x07"), "magic": (0, b"XX")}[damage]
    with (short_dir / "a").open("r+b") as file:
        file.seek(position)
        file.write(value)
    before = (short_dir / "a").read_bytes()
    store = open_store(run_dir, short_dir / "a")
    (aside,) = short_dir.glob("a.set-aside-*")
    assert aside.read_bytes() == before
    assert str(aside) in caplog.text
    assert store.slot_of(b"c" * 20) is None
    store.close()


def test_describe() -> None:
    assert describe([(0, "a", 1, 10)]) == "1 undelivered record (topic a)"
    rows = [(0, name, 500, 1) for name in "abcde"]
    assert describe(rows) == "2,500 undelivered records (topics a, b, c and 2 more)"


@pytest.mark.process
@pytest.mark.parametrize("victims", ["controller", "worker"])
def test_accepted_records_survive(start_daemon: StartDaemon, victims: str) -> None:
    """Kafka is not there; records are accepted; the daemon or its worker dies by SIGKILL: they are still there."""
    daemon = start_daemon("127.0.0.1:1", wait=False, settings={"daemon.workers": 1})
    daemon.wait_published()
    producer = Producer(run_dir=str(daemon.run_dir))
    try:
        for _ in range(3):
            producer.send("orders", value=b"paid")
        wait_until(
            lambda: metric(daemon, "kafka_sidecar_records_accepted_total") == 3,
            "three records to be accepted",
        )
        segment = Path(daemon.info()["segment"])
        if victims == "worker":
            (pid,) = daemon.worker_pids()
            os.kill(pid, signal.SIGKILL)
        else:
            daemon.kill()
            daemon.spawn()
            wait_until(
                lambda: "3 undelivered records (topic orders)" in daemon.log_tail(),
                "the next daemon to find them",
                describe=daemon.log_tail,
            )
        wait_until(
            lambda: "Took over slot 0 of a dead worker: 3 records" in daemon.log_tail(),
            "the next worker to adopt them",
            describe=daemon.log_tail,
        )
        assert metric(daemon, "kafka_sidecar_records_accepted_total") == 3
        left = Segment.attach(segment)
        assert [(topic, records) for _, topic, records, _ in describe_undelivered(left)] == [("orders", 3)]
        left.close()
    finally:
        producer.close(0)
