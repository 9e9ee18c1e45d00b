"""Goal: a broker that dies and comes back costs time, never a record, a double or the order.

Method: a cluster of its own, and clients that send all the while. The only broker gets SIGKILL and restarts on the
same ports. Then SIGSTOP and SIGCONT let requests time out that were written and perhaps appended.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.forked_clients import ClientReport, collect, enter, start_clients
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.kafka]

DELIVERED = "kafka_sidecar_records_delivered_total"
RECORDS = 30_000
MANY_RECORDS = 150_000
"""Enough that a quick machine is not done before the broker is stopped."""


@pytest.fixture
def own_kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster(light=True, topics={"t": 3}) as cluster:
        yield cluster


def test_broker_killed_and_restarted(
    own_kafka: KafkaCluster, start_daemon: StartDaemon, ledger: Ledger
) -> None:
    daemon = start_daemon(own_kafka.bootstrap_servers)
    clients = start_clients(daemon.run_dir, "t", 3, RECORDS)
    wait_until(lambda: metric(daemon, DELIVERED) > RECORDS // 10, "some records to be delivered")
    own_kafka.kill_node(0)
    own_kafka.restart_node(0)
    _balance(own_kafka, clients_done=collect(clients), ledger=ledger)


def test_broker_stopped_longer_than_a_request_may_take(
    own_kafka: KafkaCluster, start_daemon: StartDaemon, ledger: Ledger
) -> None:
    daemon = start_daemon(own_kafka.bootstrap_servers, settings={"request.timeout.ms": 1_500, "linger.ms": 1})
    clients = start_clients(daemon.run_dir, "t", 3, MANY_RECORDS)
    wait_until(lambda: metric(daemon, DELIVERED) > RECORDS // 10, "some records to be delivered")
    errors_before = metric(daemon, "kafka_sidecar_batches_retried_total")
    own_kafka.nodes[0].signal(signal.SIGSTOP)
    try:
        wait_until(
            lambda: metric(daemon, "kafka_sidecar_batches_retried_total") > errors_before,
            "batches to be tried again after their requests timed out",
        )
    finally:
        own_kafka.nodes[0].signal(signal.SIGCONT)
    _balance(own_kafka, clients_done=collect(clients), ledger=ledger)


def _balance(kafka: KafkaCluster, clients_done: list[ClientReport], ledger: Ledger) -> None:
    assert [report.failed[:3] for report in clients_done] == [[]] * len(clients_done)
    enter(clients_done, ledger)
    ledger.read_all(
        (RecordId.decode(record.value or b""), record.partition)
        for record in read_topic(kafka.bootstrap_servers, "t")
    )
    ledger.check()
