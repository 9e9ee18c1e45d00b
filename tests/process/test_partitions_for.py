"""Partitions of a topic: answered at once, waited for, or refused; by the stub, on a loop, by the command."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub import AsyncProducer, PartitionInfo, Producer
from client_stub.errors import DaemonUnreachable, MetadataTimeout, ProducerClosed
from sidecar.common.python_child import python_command
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.tcp_access import TcpAccess
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker({"orders": 3}, nodes=2) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def run_dir(kafka: FakeBroker) -> Iterator[Path]:
    with SidecarDaemon(kafka.bootstrap_servers, settings={"daemon.workers": 1}) as daemon:
        yield Path(daemon.run_dir)


def creates_when_asked(kafka: FakeBroker, topic: str) -> threading.Thread:
    """Make the topic once somebody has been answered that it is not there."""

    def create() -> None:
        asked = len(kafka.requests(Api.METADATA))
        wait_until(lambda: len(kafka.requests(Api.METADATA)) > asked + 1, "the cluster to be asked again")
        kafka.create_topic(topic, 2)

    thread = threading.Thread(target=create)
    thread.start()
    return thread


def test_a_caller_whose_patience_ends_learns_that_the_topic_is_missing(kafka: FakeBroker) -> None:
    """Of all causes the one that a first program meets: a name that was misspelt."""
    settings = {"daemon.workers": 1, "max.block.ms": 5_000}  # its drain waits for the record no longer
    with (
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon,
        Producer(run_dir=daemon.run_dir) as producer,
    ):
        record = producer.send("ordres", b"x")
        with pytest.raises(
            TimeoutError, match=r"after 1 s yet: topic ordres is not in Kafka's metadata yet\."
        ):
            record.result(timeout=1)
        with pytest.raises(TimeoutError, match="kafka-sidecar explain ordres"):
            record.result(timeout=0.01)  # who looks often asks nobody
        with pytest.raises(
            TimeoutError,
            match="yet: topic orders has 3 partitions, and partition 9 is not in Kafka's metadata yet",
        ):
            producer.send("orders", b"x", partition=9).result(timeout=1)
        producer.close(0)


def test_over_tcp_and_for_each_call_that_waits_it_learns_the_same(
    kafka: FakeBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also without a timeout: a warning says it meanwhile, here of the records that the flush() has left."""
    access = TcpAccess(tmp_path, ["test"], workers=1)
    settings = {**access.settings, "max.block.ms": 8_000}
    missing = r"topic ordres is not in Kafka's metadata yet\."
    with (
        SidecarDaemon(kafka.bootstrap_servers, settings=settings, config=access.config),
        Producer(access.address, "test", curve_key_file=access.key_file) as producer,
    ):
        record, bulk = (
            producer.send("ordres", b"x"),
            producer.send_many("ordres", [(None, b"y"), (None, b"z")]),
        )
        for call in (lambda: producer.flush(1), lambda: record.result(1), lambda: bulk.result(1)):
            with pytest.raises(TimeoutError, match=missing):
                call()
        with pytest.raises(MetadataTimeout):
            record.result()
        bulk.watch()
    (line,) = [each.getMessage() for each in caplog.records if "have waited" in each.getMessage()]
    assert "3 records for topic ordres have waited " in line and "Create it, or correct the name" in line


@pytest.mark.rule("M5")
def test_partitions_of_a_known_topic_an_unknown_and_a_late_one(kafka: FakeBroker, run_dir: Path) -> None:
    with Producer(run_dir=run_dir) as producer:
        found = producer.partitions_for("orders", timeout=10)
        assert [each.partition for each in found] == [0, 1, 2]
        assert all(isinstance(each, PartitionInfo) and each.topic == "orders" for each in found)
        assert {each.leader for each in found} <= {1, 2}
        assert all(each.leader in each.in_sync_replicas and each.replicas for each in found)
        asked = len(kafka.requests(Api.METADATA))
        assert producer.partitions_for("orders", timeout=0) == found, "known: no time is needed"
        assert len(kafka.requests(Api.METADATA)) == asked
        with pytest.raises(MetadataTimeout, match=r"^Topic missing not present in metadata after 300 ms\."):
            producer.partitions_for("missing", timeout=0.3)
        creator = creates_when_asked(kafka, "late")
        assert len(producer.partitions_for("late", timeout=20)) == 2
        creator.join()
        with pytest.raises(ValueError, match="cannot be negative"):
            producer.partitions_for("orders", timeout=-1)
        with pytest.raises(TypeError, match="topic must be str"):
            producer.partitions_for(7)  # type: ignore[arg-type]
    with pytest.raises(ProducerClosed):
        producer.partitions_for("orders")


@pytest.mark.rule("M5")
def test_partitions_on_a_loop_hold_up_nobody(kafka: FakeBroker, run_dir: Path) -> None:
    async def play() -> None:
        threads = threading.active_count()
        async with AsyncProducer(run_dir=run_dir) as producer:
            missing = asyncio.ensure_future(producer.partitions_for("nowhere", timeout=0.5))
            assert len(await producer.partitions_for("orders")) == 3
            assert not missing.done()
            assert threading.active_count() == threads
            with pytest.raises(MetadataTimeout, match="Topic nowhere not present"):
                await missing
            cancelled = asyncio.ensure_future(producer.partitions_for("nowhere"))
            await asyncio.sleep(0)
            cancelled.cancel()
            assert len(await producer.partitions_for("orders")) == 3

    asyncio.run(play())


def test_partitions_without_a_daemon(tmp_path: Path) -> None:
    with Producer(run_dir=tmp_path) as producer, pytest.raises(DaemonUnreachable, match="No daemon answers"):
        producer.partitions_for("orders", timeout=0.1)


def test_the_command_waits_for_its_topics(kafka: FakeBroker, run_dir: Path) -> None:
    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*python_command("sidecar"), "topics", "--run-dir", str(run_dir), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    creator = creates_when_asked(kafka, "awaited")
    shown = ask("awaited", "orders", "--wait", "20")
    creator.join()
    assert shown.returncode == 0, shown.stderr
    assert "awaited  2 partitions" in shown.stdout and "orders   3 partitions" in shown.stdout
    absent = ask("absent", "--wait", "0.2")
    assert absent.returncode == 1
    assert "Topic absent not present in metadata after 200 ms." in absent.stderr
    assert ask("--wait", "1").returncode == 2


def test_no_topic_is_called_missing_while_kafka_is_away(start_daemon: StartDaemon) -> None:
    """result() said no more than that it is not in the metadata yet, though the daemon knew why."""
    with FakeBroker({"known": 1}) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers)
    with Producer(daemon.run_dir) as producer:
        delivery = producer.send("orders", b"v")

        def why() -> bool:
            with pytest.raises(TimeoutError) as late:
                delivery.result(1.1)
            return "topic orders is not in Kafka's metadata yet: Kafka is not reachable" in str(late.value)

        wait_until(why, "the cause in result()", describe=daemon.log_tail)
        producer.close(0)
