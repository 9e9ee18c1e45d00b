"""Goal: a worker that cannot start says what failed, and what it does not need for its records does not keep it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path

import pytest

from sidecar.common.control import Ready, Start, Stop
from sidecar.common.control_codec import ControlDecoder, encode_message
from sidecar.common.model import ExitStatus
from sidecar.deadletter.spool_files import OPEN_SUFFIX, SUFFIX, writer_of
from sidecar.shm.accept_log import accept_log_folder
from sidecar.shm.segment import Segment
from sidecar.worker import main
from sidecar.worker.worker import Worker
from tests.configs import DEFAULTS
from tests.patience import PATIENCE_S
from tests.worker.manual_worker import EPOCH, KEY


@pytest.fixture
def start(short_dir: Path) -> Start:
    made = Segment.create(
        short_dir / "segment",
        page_bytes=16_384,
        buffer_memory_bytes=1 << 20,
        clients_max=16,
        instance_id=b"test",
    )
    made.prepare_slot(0)
    fd = os.dup(made.fd)
    made.close()
    return Start(
        worker_index=0,
        worker_epoch=EPOCH,
        slot=0,
        incarnation=5,
        endpoint=f"ipc://{short_dir}/sockets/worker.sock",
        instance_key=KEY,
        segment_fd=fd,
        config=DEFAULTS | {"topics": {}, "clients": {}, "dead_letters.path": str(short_dir / "letters")},
        extra={"run_dir": str(short_dir)},
    )


def fail(start: Start, caplog: pytest.LogCaptureFixture) -> str:
    ours, theirs = socket.socketpair()
    try:
        with ours:
            assert main._run(start, theirs) == ExitStatus.FAILED
    finally:
        os.close(start.segment_fd)
    return caplog.records[-1].getMessage()


def test_a_socket_that_cannot_be_made_is_named(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    sentence = fail(start, caplog)
    assert "its socket" in sentence
    assert "sockets/worker.sock cannot be made (No such file or directory)" in sentence
    assert "pool.path" not in sentence


def test_a_log_of_accepted_records_that_cannot_be_written_is_named(
    start: Start, short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = short_dir / "pool"
    accept_log_folder(str(pool)).write_text("a file in its place")
    start.config.update({"pool.sync": "accept", "pool.path": str(pool)})
    assert f"cannot be written to the disk of pool.path = {pool} (Not a directory)" in fail(start, caplog)


def test_a_mount_of_dead_letters_that_is_away_keeps_no_worker_from_its_records(
    start: Start, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at the folder there does not return: it was made before the worker served anybody."""
    (short_dir / "sockets").mkdir()
    is_back = threading.Event()

    def away(*_: object) -> int:
        assert is_back.wait(PATIENCE_S)
        return 0

    monkeypatch.setattr("sidecar.worker.worker.close_leftovers", away)
    ours, theirs = socket.socketpair()
    segment = Segment.attach(start.segment_fd)

    async def run() -> int:
        worker = Worker.claim(asyncio.get_running_loop(), start, segment, theirs)
        worker.adopt()
        worker.open()
        running = asyncio.ensure_future(worker.run())
        ours.setblocking(False)
        ready, *_ = ControlDecoder().feed(await asyncio.get_running_loop().sock_recv(ours, 4096))
        assert isinstance(ready, Ready)
        is_back.set()
        ours.sendall(encode_message(Stop()))
        return await asyncio.wait_for(running, PATIENCE_S)

    with ours:
        assert asyncio.run(run()) == ExitStatus.OK
    segment.close()
    os.close(start.segment_fd)


def test_dead_letters_that_cannot_be_closed_keep_no_worker_from_its_records(
    start: Start, short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (short_dir / "sockets").mkdir()
    letters = short_dir / "letters"
    closed = letters / f"{writer_of(short_dir, 3)}-1{SUFFIX}"
    closed.mkdir(parents=True)  # so that no file can have its name
    closed.with_name(closed.name + OPEN_SUFFIX).touch()
    ours, theirs = socket.socketpair()
    segment = Segment.attach(start.segment_fd)

    async def run() -> int:
        worker = Worker.claim(asyncio.get_running_loop(), start, segment, theirs)
        worker.adopt()
        worker.open()
        ours.sendall(encode_message(Stop()))
        return await asyncio.wait_for(worker.run(), PATIENCE_S)

    with ours:
        assert asyncio.run(run()) == ExitStatus.OK
    assert "that dead workers had open cannot be closed" in caplog.text
    segment.close()
    os.close(start.segment_fd)
