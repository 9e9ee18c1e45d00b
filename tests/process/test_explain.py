"""Goal: ``kafka-sidecar explain`` says what waits on what, of a real daemon in each of the states an operator meets."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from client_stub import Producer
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process
SECRET = b"record content that nobody may see"


@pytest.fixture
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker({"orders": 1, "clicks": 1}, nodes=2) as kafka:
        yield kafka


def explained(daemon: SidecarDaemon, *words: str) -> dict[str, Any]:
    shown = daemon.command("explain", "--json", *words)
    assert SECRET.decode() not in shown.stdout
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def waits(daemon: SidecarDaemon, cause: str, *words: str) -> dict[str, Any]:
    """The row of this cause, once it is there."""

    def find() -> dict[str, Any] | None:
        return next((row for row in explained(daemon, *words)["waiting"] if row["cause"] == cause), None)

    wait_until(lambda: find() is not None, f"a wait for {cause}")
    row = find()
    assert row is not None
    return row


def text(daemon: SidecarDaemon, *words: str) -> str:
    return daemon.command("explain", *words).stdout


def test_a_topic_that_is_missing_and_linger(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(kafka.bootstrap_servers, settings={"linger.ms": 60_000})
    assert text(daemon) == "Nothing waits.\n"
    with Producer(daemon.run_dir, client_name="billing", on_error=lambda *_: None) as producer:
        producer.send("missing", SECRET)
        row = waits(daemon, "unknown_topic", "missing")
        assert (row["topic"], row["submissions"], "partition" in row) == ("missing", 1, False)
        assert 0 < row["left_seconds"] <= 60, "max.block.ms"
        producer.send("orders", SECRET)
        row = waits(daemon, "linger", "orders-0")
        assert (row["partition"], row["records"]) == (0, 1)
        assert 60 < row["left_seconds"] <= 120, "delivery.timeout.ms"
        assert "orders-0  linger  1 record" in text(daemon, "orders")
        (client,) = explained(daemon, "billing")["clients"]
        assert (client["client"], client["records"], client["pid"]) == ("billing", 2, os.getpid())
        assert {row["topic"] for row in explained(daemon, "billing")["waiting"]} == {"missing", "orders"}
        nobody = daemon.command("explain", "nobody")
        assert nobody.returncode == 1 and "No worker knows" in nobody.stderr
        whole, empty = (
            [line.split()[:2] for line in text(daemon, *words).splitlines()] for words in ((), ("",))
        )
        assert empty == whole, "an empty name is no name"
        odd = daemon.command("explain", os.fsdecode(b"\xff"))
        assert (odd.returncode, odd.stderr) == (
            2,
            "The name '\\udcff' is not UTF-8, as all names are here.\n",
        )
        producer.close(0)


def test_no_answer_no_broker_no_leader_and_a_quota(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(kafka.bootstrap_servers, settings={"metadata.max.age.ms": 500})
    with Producer(daemon.run_dir, client_name="billing", on_error=lambda *_: None) as producer:
        rule = kafka.add(on(Api.PRODUCE, topic="orders").hold())
        producer.send("orders", SECRET)
        row = waits(daemon, "unanswered", "orders")
        assert row["broker"] == 1 and "broker 1 has not answered yet" in row["text"]
        rule.remove()
        rule.release()
        producer.flush(30)

        kafka.throttle_ms = 5_000
        producer.send("orders", SECRET)
        producer.flush(30)
        producer.send("orders", SECRET)
        row = waits(daemon, "throttled", "orders")
        assert "asked for silence (a quota)" in row["text"]
        kafka.throttle_ms = 0

        kafka.move_leader("clicks", 0, -1)
        wait_until(
            lambda: "no leader" in daemon.command("topics", "clicks").stdout, "metadata without a leader"
        )
        producer.send("clicks", SECRET)
        row = waits(daemon, "no_leader", "clicks-0")
        assert "broker" not in row and "has no leader" in row["text"]
        kafka.move_leader("clicks", 0, 2)
        producer.flush(60)

        kafka.stop_listening(2)
        kafka.disconnect(2)
        producer.send("clicks", SECRET)
        row = waits(daemon, "broker", "clicks")
        assert row["broker"] == 2 and "refused" in row["last_error"].lower()
        kafka.listen_again(2)
        producer.flush(60)
    assert text(daemon) == "Nothing waits.\n"


def test_a_pool_that_is_full_and_the_errors(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(
        kafka.bootstrap_servers,
        settings={"buffer.memory": 4 << 20, "daemon.workers": 1, "max.block.ms": 2000},
    )
    rule = kafka.add(on(Api.PRODUCE, topic="orders").hold())
    with Producer(daemon.run_dir, client_name="bulk", on_error=lambda *_: None) as producer:
        producer.send("missing", SECRET)
        for _ in range(400):
            producer.send("orders", bytes(10_000))
        row = waits(daemon, "share", "orders")
        assert row["client"] == "bulk" and row["text"]
        assert "orders of client bulk  share" in text(daemon, "bulk")
        (client,) = explained(daemon, "bulk")["clients"]
        assert client["held_streams"] == 1
        wait_until(lambda: explained(daemon, "missing")["failures"], "the error")
        assert "METADATA_TIMEOUT" in text(daemon, "missing")
        rule.remove()
        rule.release()
        producer.flush(60)


def test_topics_are_sorted_and_say_which_partitions_lack_replicas(start_daemon: StartDaemon) -> None:
    def edit(entity: Any) -> Any:
        """Three replicas each; partition 1 has two of them in sync. The cluster names the last partition first."""
        topics = []
        for topic in entity.topics:
            partitions = [
                dataclasses.replace(each, replica_nodes=(1, 2, 3), isr_nodes=isr)
                for each, isr in zip(topic.partitions, ((1, 2, 3), (1, 2), (1, 2, 3)), strict=False)
            ]
            topics.append(dataclasses.replace(topic, partitions=tuple(reversed(partitions))))
        return dataclasses.replace(entity, topics=tuple(reversed(topics)))

    with FakeBroker({"b": 3, "a": 1}) as kafka:
        kafka.add(on(Api.METADATA, times=ALWAYS).edit_answer(edit))
        daemon = start_daemon(kafka.bootstrap_servers)
        assert daemon.command("topics").stdout.splitlines() == [
            "a  1 partition",
            "b  3 partitions, under-replicated: 1",
        ]
        assert daemon.command("topics", "b").stdout.splitlines() == [
            "b  3 partitions, under-replicated: 1",
            "    0: leader 1, in sync [1, 2, 3]",
            "    1: leader 1, in sync [1, 2] of [1, 2, 3]",
            "    2: leader 1, in sync [1, 2, 3]",
        ]
        shown = json.loads(daemon.command("topics", "--json").stdout)
        assert list(shown) == ["a", "b"]
        assert [each["under_replicated"] for each in shown["b"]["partitions"]] == [False, True, False]


def test_a_daemon_that_hangs(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(kafka.bootstrap_servers)
    with Producer(daemon.run_dir, client_name="billing", on_error=lambda *_: None) as producer:
        rule = kafka.add(on(Api.PRODUCE, topic="orders").hold())
        producer.send("orders", SECRET)
        wait_until(lambda: daemon.info().get("oldest_held"), "the report of it")
        assert daemon.process is not None
        os.kill(daemon.process.pid, signal.SIGSTOP)
        try:
            shown = daemon.command("explain", "orders", "--timeout", "1")
        finally:
            os.kill(daemon.process.pid, signal.SIGCONT)
        assert shown.returncode == 75
        assert shown.stdout.startswith("The daemon does not answer.")
        assert f"is stopped: `kill -CONT {daemon.process.pid}` lets it continue." in shown.stderr
        assert "orders-0  unanswered" in shown.stdout and "in the journal now" in shown.stdout
        rule.remove()
        rule.release()
        producer.flush(30)


def test_a_worker_that_hangs_is_named(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.heartbeat_timeout_s": 60})
    wait_until(lambda: len(daemon.ready_pids()) == 2, "both workers")  # one that is not ready is not asked
    pid = daemon.worker_pids()[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "worker 1 did not answer in time" in text(daemon)
    finally:
        os.kill(pid, signal.SIGCONT)
