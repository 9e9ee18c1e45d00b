"""Goal: a connection over tcp:// that goes silent without an end is given up; its records go on by another.

Method: relays stand before the daemon's ports. The open connections stay, and no byte passes them any more: as behind
a proxy whose other side is gone. TCP's own timers see a peer that answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub import Producer
from client_stub.contract.tcp import KEY_FILE_VARIABLE
from client_stub.contract.wire import Persistence
from client_stub.errors import DaemonLost
from client_stub.session import attachment
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from tests.process.test_tcp_keys import Relayed

pytestmark = pytest.mark.process

PING_MS = 300.0
"""In place of 10 s; all of the rest is as it is."""


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relayed]:
    access = Relayed(tmp_path)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(access.key_file))
    monkeypatch.setattr(attachment, "PING_INTERVAL_MS", PING_MS)
    for relay in access.relays:
        relay.start()
    yield access
    for relay in access.relays:
        relay.stop()


@pytest.fixture
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker({"orders": 1}) as kafka:
        yield kafka


@pytest.mark.parametrize("drops", [True, False], ids=["taken-and-forgotten", "not-read"])
def test_records_continue_by_a_new_connection(
    kafka: FakeBroker, start_daemon: StartDaemon, access: Relayed, drops: bool
) -> None:
    """Each record is there once: also those of which the daemon's word was lost."""
    start_daemon(kafka.bootstrap_servers, settings=access.settings, config=access.config)
    sent = [b"before"]
    with Producer(access.address, "billing") as producer:
        producer.send("orders", b"before").result(30)
        for turn in range(3):
            for relay in access.relays:
                relay.silence(drops=drops)
            # More than all buffers on the way hold, where nobody reads them.
            values = [b"%d %d " % (turn, each) + bytes(100_000) for each in range(60)]
            bulk = producer.send_many("orders", [(None, value) for value in values])
            sent += values
            assert bulk.result(60) == len(values)
    assert [record.value for record in kafka.records("orders")] == sent


def test_a_slow_line_is_not_taken_for_a_dead_one(
    kafka: FakeBroker, start_daemon: StartDaemon, access: Relayed
) -> None:
    """A submission is under way for longer than it takes to give up a silent daemon, and nothing answers meanwhile."""
    start_daemon(kafka.bootstrap_servers, settings=access.settings, config=access.config)
    for relay in access.relays:
        relay.slow_down(400_000)
    with Producer(access.address, "billing") as producer:
        assert producer.send("orders", b"before").result(30).offset >= 0
        connections = sum(len(relay.accepted_s) for relay in access.relays)
        assert producer.send("orders", bytes(1_000_000)).result(60).offset >= 0
        assert sum(len(relay.accepted_s) for relay in access.relays) == connections


def test_records_fail_when_the_daemon_does_not_come_back(
    kafka: FakeBroker, start_daemon: StartDaemon, access: Relayed
) -> None:
    """After delivery_timeout_ms, counted from when the silence was seen."""
    start_daemon(kafka.bootstrap_servers, settings=access.settings, config=access.config)
    producer = Producer(
        access.address,
        "billing",
        delivery_timeout_ms=1_000,
        connect_timeout_ms=10_000,
        on_error=lambda *_: None,
    )
    producer.send("orders", b"before").result(30)
    for relay in access.relays:
        relay.silence(drops=True)
    delivery = producer.send("orders", b"x")
    for relay in access.relays:
        relay.refuse(cuts=False)
    with pytest.raises(DaemonLost, match="No daemon for 1000 ms") as failed:
        delivery.result(60)
    assert failed.value.persistence is Persistence.POSSIBLY_PERSISTED
    producer.close(0)
