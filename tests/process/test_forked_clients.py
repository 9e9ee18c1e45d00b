"""Goal: many forked processes share the daemon and every record of each arrives once and in its order.

Method: a pre-forking parent with an open producer and records in flight forks 8 clients, some of which go on
with the inherited producer. A librdkafka reader fills the ledger, which knows what each client was told.
"""

from __future__ import annotations

import pytest

from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.forked_clients import collect, enter, start_clients
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.reading import read_topic

pytestmark = [pytest.mark.process, pytest.mark.kafka]

CLIENTS = 8


def read_into(ledger: Ledger, kafka: KafkaCluster, topic: str) -> None:
    ledger.read_all(
        (RecordId.decode(record.value or b""), record.partition)
        for record in read_topic(kafka.bootstrap_servers, topic)
    )


@pytest.mark.parametrize(
    "records", [pytest.param(20_000, id="20k"), pytest.param(200_000, id="200k", marks=pytest.mark.long)]
)
def test_forked_clients_keep_their_order(
    daemon: SidecarDaemon, kafka: KafkaCluster, new_topic: NewTopic, ledger: Ledger, records: int
) -> None:
    topic = new_topic(partitions=6)
    reports = collect(start_clients(daemon.run_dir, topic, CLIENTS, records), timeout_s=600)
    assert sorted(report.name for report in reports) == [*(f"client-{i}" for i in range(CLIENTS)), "parent"]
    assert [report.failed[:3] for report in reports] == [[]] * (CLIENTS + 1)
    enter(reports, ledger)
    read_into(ledger, kafka, topic)
    ledger.check()
