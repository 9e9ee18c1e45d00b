"""Messages of the controller: a worker that could handle one only in part ends, and its successor starts whole."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from sidecar.common.control import Configure, ControlMessage, Start, UpdateMetadata
from sidecar.common.control_codec import encode_message
from sidecar.common.model import ExitStatus
from sidecar.shm.segment import Segment
from sidecar.worker.worker import Worker
from tests.configs import DEFAULTS
from tests.patience import PATIENCE_S
from tests.worker.manual_worker import EPOCH, KEY


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    made = Segment.create(
        tmp_path / "segment",
        page_bytes=16_384,
        buffer_memory_bytes=1 << 20,
        clients_max=16,
        instance_id=b"test",
    )
    made.prepare_slot(0)
    return made


@pytest.mark.parametrize("kind", [Configure, UpdateMetadata])
def test_a_message_that_is_handled_only_in_part_ends_the_worker(
    segment: Segment, short_dir: Path, monkeypatch: pytest.MonkeyPatch, kind: type[ControlMessage]
) -> None:
    """One that goes on with half of the settings would keep rules that the daemon has withdrawn. With half of the
    metadata, the topics behind the one that failed would wait for their partitions for ever."""
    values = DEFAULTS | {"topics": {}, "clients": {}, "dead_letters.path": str(short_dir / "letters")}
    start = Start(
        worker_index=0,
        worker_epoch=EPOCH,
        slot=0,
        incarnation=5,
        endpoint=f"ipc://{short_dir}/worker.sock",
        instance_key=KEY,
        segment_fd=-1,
        config=values,
        extra={"run_dir": str(short_dir)},
    )
    ours, theirs = socket.socketpair()

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async def run() -> int:
        worker = Worker.claim(asyncio.get_running_loop(), start, segment, theirs)
        worker.adopt()
        worker.open()
        monkeypatch.setattr(worker._rooms.topics, "on_snapshot", fail)
        message: ControlMessage = UpdateMetadata(1, 1, EPOCH, (), (), version=1, is_full=True)
        if kind is Configure:
            message = Configure(2, {name: values[name] for name in values if name != "clients"})
        ours.sendall(encode_message(message))
        return await asyncio.wait_for(worker.run(), PATIENCE_S)

    with ours:
        assert asyncio.run(run()) == ExitStatus.FAILED
    segment.close()
