"""Goal: any one living address is enough, now and after every broker that was known is gone.

Method: two brokers and a controller of its own, so that either broker may be down; each test leaves both
running. (Kafka: ProducerRebootstrapTest.)
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_stub import Producer
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.kafka_admin import KafkaAdmin
from sidecar.tools.testing.kafka_cluster import KafkaCluster, free_ports
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

from .flow import PATIENCE_S

pytestmark = [pytest.mark.process, pytest.mark.kafka]

A, B = 0, 1


@pytest.fixture(scope="module")
def brokers() -> Iterator[KafkaCluster]:
    with KafkaCluster(2, heap_mb=256, own_controller=True) as cluster:
        yield cluster


def known_brokers(daemon: SidecarDaemon) -> int:
    """Without those that left: status shows them as down for a while."""
    return sum(each["state"] != "down" for each in daemon.info()["brokers"])


def admin_at(cluster: KafkaCluster, index: int) -> KafkaAdmin:
    return KafkaAdmin(cluster.nodes[index].address)


@pytest.mark.rule("S6")
def test_all_known_brokers_are_replaced_twice(brokers: KafkaCluster, start_daemon: StartDaemon) -> None:
    """The list names two dead ports, A and B. A alone is up at first; then only B; then only A."""
    brokers.admin().create_assigned("t", [[1, 2], [2, 1]], {"min.insync.replicas": "1"})
    brokers.kill_node(B)
    admin_at(brokers, A).wait_leaders("t", {0: 1, 1: 1})
    dead = [f"127.0.0.1:{port}" for port in free_ports(2)]
    daemon = start_daemon(
        ",".join([dead[0], brokers.bootstrap_servers, dead[1]]),
        settings={"reconnect.backoff.max.ms": 500},
    )
    sent = 0
    with Producer(run_dir=str(daemon.run_dir)) as producer:

        def send_to_both() -> None:
            nonlocal sent
            deliveries = [
                producer.send("t", value=b"%d" % (sent + number), partition=number % 2)
                for number in range(100)
            ]
            sent += len(deliveries)
            for each in deliveries:
                each.result(timeout=PATIENCE_S)

        send_to_both()
        wait_until(lambda: known_brokers(daemon) == 1, "the workers' first report")
        for comes, goes in ((B, A), (A, B)):
            brokers.restart_node(comes)
            admin_at(brokers, comes).wait_in_sync("t", 2)
            brokers.kill_node(goes)
            send_to_both()
            wait_until(lambda: known_brokers(daemon) == 1, "the dead broker to be dropped", timeout_s=60)
            # One link of each worker at most: those to brokers that left are closed.
            assert metric(daemon, "kafka_sidecar_broker_connections") <= len(daemon.worker_pids())
        wait_until(
            lambda: daemon.info()["state"] == "running", "the workers' next report, without a dead broker"
        )
    brokers.restart_node(B)
    records = read_topic(brokers.bootstrap_servers, "t")
    for partition in range(2):
        numbers = [int(each.value or b"") for each in records if each.partition == partition]
        assert numbers == list(range(partition, sent, 2))


def test_everything_is_down_at_first(brokers: KafkaCluster, start_daemon: StartDaemon) -> None:
    """Records are accepted before any broker was ever seen, and delivered when one comes."""
    brokers.create_topics({"u": 1})
    for index in (A, B):
        brokers.kill_node(index)
    daemon = start_daemon(brokers.bootstrap_servers, settings={"reconnect.backoff.max.ms": 500}, wait=False)
    daemon.wait_published()
    with Producer(run_dir=str(daemon.run_dir)) as producer:
        delivery = producer.send("u", value=b"early")
        wait_until(lambda: "not reachable" in daemon.info()["sentence"], "it to say so", timeout_s=60)
        for index in (A, B):
            brokers.restart_node(index)
        delivery.result(timeout=PATIENCE_S)
    assert [each.value for each in read_topic(brokers.bootstrap_servers, "u")] == [b"early"]
