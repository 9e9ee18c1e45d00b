"""Goal: a connection that is lost before its first frame is a lost connection like any other."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from client_stub import Producer, transport
from client_stub.transport import Transport
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon


class LostAtOnce(transport._Link):
    """As when the io thread is not scheduled between connect and send: libzmq has seen the refusal by then."""

    made = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        type(self).made += 1
        assert self.monitor.poll(5_000), "the refusal was not seen"


@pytest.fixture
def lost_at_once(monkeypatch: pytest.MonkeyPatch) -> type[LostAtOnce]:
    LostAtOnce.made = 0
    monkeypatch.setattr(transport, "_Link", LostAtOnce)
    return LostAtOnce


@pytest.mark.parametrize("which", ["control", "worker"])
def test_nobody_listens_and_libzmq_knows_it_first(
    run_dir: Path, lost_at_once: type[LostAtOnce], which: str
) -> None:
    wire = Transport(str(run_dir / "control.sock"))
    try:
        if which == "control":
            wire.open_control([b"hello"])
        else:
            wire.open_worker(str(run_dir / "worker.sock"), [b"attach"])
        (kind, (reason, *_)), *_ = wire.poll(5_000)
        assert (kind, reason) == ("lost", f"{which} connection: nobody listens there".encode())
    finally:
        wire.close(None)


def test_the_producer_outlives_it(
    run_dir: Path, lost_at_once: type[LostAtOnce], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks again, and finds the daemon once there is one."""
    with Producer(run_dir, "early", connect_timeout_ms=20_000) as producer:
        sent = threading.Thread(target=lambda: producer.send("topic", b"value"))
        sent.start()
        eventually(lambda: lost_at_once.made >= 2)
        monkeypatch.undo()
        daemon = FakeDaemon(run_dir)
        try:
            sent.join(20)
            producer.flush(timeout=20)
        finally:
            daemon.stop()
