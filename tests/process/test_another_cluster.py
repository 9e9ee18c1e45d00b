"""Goal: a program that was written for another cluster sends nothing to this daemon's, and hears both names at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_stub import errors
from client_stub.compat import confluent, kafka_python
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker

pytestmark = pytest.mark.process


@pytest.fixture
def ours() -> Iterator[FakeBroker]:
    with FakeBroker({"orders": 1}, nodes=2) as broker:
        yield broker


@pytest.fixture
def other() -> Iterator[FakeBroker]:
    with FakeBroker({"orders": 1}) as broker:
        yield broker


def test_the_twins_of_another_cluster_are_refused(
    start_daemon: StartDaemon, ours: FakeBroker, other: FakeBroker
) -> None:
    first, second = ours.bootstrap_servers.split(",")
    daemon = start_daemon(first)
    place = str(daemon.run_dir)
    both = (
        rf"bootstrap\.servers={other.bootstrap_servers}, and this daemon sends to {first}, whose brokers are "
    )
    both += second
    for _ in range(2):  # the second one comes when all is known
        wrong = confluent.Producer({"bootstrap.servers": other.bootstrap_servers, "sidecar.run_dir": place})
        with pytest.raises(confluent.KafkaException, match=both) as raised:
            wrong.produce("orders", b"v")
        assert not raised.value.args[0].retriable()
    wrong_too = kafka_python.KafkaProducer(bootstrap_servers=[other.bootstrap_servers], sidecar_run_dir=place)
    with pytest.raises(errors.DaemonRefused, match=both):
        wrong_too.partitions_for("orders")
    with pytest.raises(errors.DaemonRefused, match=both):
        wrong_too.send("orders", b"v")
    port = second.rpartition(":")[2]
    for number, servers in enumerate(
        (first, second, f"localhost:{port}", f"{other.bootstrap_servers},{first}"), 1
    ):
        right = confluent.Producer({"bootstrap.servers": servers, "acks": "all", "sidecar.run_dir": place})
        right.produce("orders", b"v")
        assert right.flush(30) == 0
        assert len(ours.records("orders")) == number
    assert not other.records("orders")


def test_weaker_acks_than_asked_are_refused(start_daemon: StartDaemon, ours: FakeBroker) -> None:
    daemon = start_daemon(ours.bootstrap_servers, settings={"acks": 1, "enable.idempotence": "false"})
    for acks, is_taken in (("1", True), ("all", False)):
        producer = confluent.Producer({"acks": acks, "sidecar.run_dir": str(daemon.run_dir)})
        if is_taken:
            producer.produce("orders", b"v")
            assert producer.flush(30) == 0
        else:
            with pytest.raises(
                confluent.KafkaException, match="asks for acks=all, and this daemon sends with acks=1"
            ):
                producer.produce("orders", b"v")
    assert len(ours.records("orders")) == 1
