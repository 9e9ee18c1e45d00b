"""Goal: the failures that depend on how a cluster behaves are seen on a real one, too.

Method: three brokers, one daemon with two workers. A quota is set. Then a broker stands still, is silent, and is
fenced by the cluster; it leaves a partition without a leader and another with too few replicas. Then it goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from client_stub import Producer
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.kafka_cluster import KafkaCluster

from .failures import Failure, Harness, broker, wait_shown
from .page_reader import PageReader

pytestmark = [pytest.mark.process, pytest.mark.kafka, pytest.mark.long]

SEEN_S = 20.0
WELL = {"up", "known"}
FENCED_S = 60.0
"""The cluster takes its session timeout to notice, and the replicas' lag to act."""

QUOTA = Failure(
    "quota",
    lambda _: None,
    r"note .*throttles: [\d,]+ ms\..*quota",
    lambda page: max(each["throttle_ms"] for each in page["brokers"]) > 0,
    ("broker_throttle_seconds", 'broker="1"', lambda value: value > 0),
    r"WARNING .*throttles this daemon: it asked for \d+ ms",
    r"throttles: [\d,]+ ms\..*quota",
)
HUNG = Failure(
    "broker hung",
    lambda _: None,
    r"degraded: (?s:.)*broker 2  silent",
    lambda page: page["state"] == "degraded" and broker(page, 2)["state"] == "silent",
    ("broker_up", 'broker="2"', lambda value: value == 0),
    r"WARNING .*Broker 2 \(.*\) is silent",
    r"Broker 2 .* has been silent for",
)
NO_LEADER = Failure(
    "leader missing",
    lambda _: None,
    r"degraded: (?s:.)*[Oo]ldest held record (?:\d+ min )?\d+ s, alone-0, no leader",
    lambda page: page["oldest_held"]["cause"] == "no_leader" and broker(page, 2)["state"] == "down",
    ("oldest_held_record_seconds", 'cause="no_leader"', lambda value: value >= 5),
    r"WARNING .*Oldest held record (?:\d+ min )?\d+ s, alone-0, no leader",
    r"ldest held record (?:\d+ min )?\d+ s, alone-0, no leader",
)
MIN_ISR = Failure(
    "min ISR",
    lambda _: None,
    r"degraded: (?s:.)*strict-0, broker 1 refuses: NOT_ENOUGH_REPLICAS",
    lambda page: "NOT_ENOUGH_REPLICAS" in page["oldest_held"]["reason"],
    ("oldest_held_record_seconds", 'cause="refused"', lambda value: value >= 5),
    r"WARNING .*strict-0, broker 1 refuses: NOT_ENOUGH_REPLICAS",
    r"strict-0, broker 1 refuses: NOT_ENOUGH_REPLICAS",
)
BACK = Failure(
    "all is well again",
    lambda _: None,
    r"^running for",
    lambda page: page["state"] == "running" and all(each["state"] in WELL for each in page["brokers"]),
    ("broker_up", 'broker="2"', lambda value: value == 1),
    r"Broker 2 \([^)]*\) is (silent|down)(?s:.)* WARNING .*: Broker 2 \([^)]*\) is up again after \d.* s\.$",
    r"\b2\s+[\w.]+:\d+\s+up\b",  # a tab in the page's table
)


@pytest.fixture
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster(3, heap_mb=256, own_controller=True) as cluster:
        admin = cluster.admin()
        admin.create_assigned("plain", [[1]])
        admin.create_assigned("alone", [[2]])
        admin.create_assigned("strict", [[1, 2]], {"min.insync.replicas": "2"})
        yield cluster


def test_a_quota_and_a_stopped_broker(kafka: KafkaCluster) -> None:
    with contextlib.ExitStack() as closing, FakeBroker() as unused, PageReader() as reader:
        daemon = SidecarDaemon(kafka.bootstrap_servers, settings={"client.id": "metered", "linger.ms": 1})
        closing.callback(daemon.remove)
        daemon.start()
        harness = Harness(unused, daemon, closing)
        producer = Producer(daemon.run_dir, client_name="web", on_error=lambda *_: None)
        closing.callback(producer.close, 0)

        for topic in ("plain", "alone", "strict"):
            assert producer.send(topic, b"known").result(30).offset >= 0

        kafka.set_quota("metered", 20_000)
        producer.send_many("plain", [(None, b"x" * 1_000)] * 400)
        wait_shown(harness, QUOTA, reader=reader, timeout_s=SEEN_S)
        kafka.set_quota("metered", None)
        assert producer.flush(60) == 0

        harness.begin(HUNG)
        kafka.pause_node(1)
        alone = producer.send("alone", b"x")
        wait_shown(harness, HUNG, reader=reader, timeout_s=SEEN_S)
        wait_shown(harness, NO_LEADER, reader=reader, timeout_s=FENCED_S)
        assert daemon.command("status").returncode == 0, "the other brokers take records"
        kafka.resume_node(1)
        wait_shown(harness, BACK, reader=reader, timeout_s=FENCED_S)
        assert alone.result(60).offset >= 0

        harness.begin(MIN_ISR)
        kafka.kill_node(1)
        strict = producer.send("strict", b"x")
        wait_shown(harness, MIN_ISR, reader=reader, timeout_s=FENCED_S)
        kafka.restart_node(1)
        assert strict.result(90).offset >= 0
