"""Goal: a SIGKILLed client's accepted records are delivered, and its place in the client table is free again.

Method: clients are forked and killed one after another while they send; a librdkafka reader looks what is there.
"""

from __future__ import annotations

import collections

import pytest

from sidecar.shm.client_table import ClientTable
from sidecar.shm.segment import Segment
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.killed_clients import client_name, run_killed_clients
from sidecar.tools.testing.ledger import RecordId
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.kafka]

CLIENTS_MAX = 64


def rows_in_use(daemon: SidecarDaemon) -> int:
    segment = Segment.attach(daemon.info()["segment"])
    try:
        return sum(1 for _ in ClientTable(segment).rows())
    finally:
        segment.close()


@pytest.mark.parametrize(
    "clients", [pytest.param(200, id="200"), pytest.param(2_000, id="2000", marks=pytest.mark.long)]
)
def test_killed_clients_never_exhaust_the_table(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, clients: int
) -> None:
    """Each finds its place although a grace would keep the rows of those before it for an hour."""
    daemon = start_daemon(
        kafka.bootstrap_servers,
        settings={"daemon.clients_max": CLIENTS_MAX, "daemon.client_grace_s": 3600},
    )
    topic = new_topic(partitions=3)
    found = run_killed_clients(daemon.run_dir, topic, clients, timeout_s=1_800)
    assert found == (clients, 0)

    # Their accepted records are delivered, and nobody's row is left.
    wait_until(
        lambda: rows_in_use(daemon) == 0,
        "all rows to be free",
        describe=lambda: f"{rows_in_use(daemon)} are not. {daemon.log_tail()}",
    )
    accepted, delivered = (
        metric(daemon, f"kafka_sidecar_records_{what}_total") for what in ("accepted", "delivered")
    )
    numbers: dict[str, list[int]] = collections.defaultdict(list)
    records = read_topic(kafka.bootstrap_servers, topic)
    for record in records:
        name, number = RecordId.decode(record.value or b"")
        numbers[name].append(number)
    assert len(records) == accepted == delivered
    # Of each: what it was told, and a prefix of what it sent, once.
    assert set(numbers) == {client_name(number) for number in range(clients)}
    wrong = [name for name, there in numbers.items() if sorted(there) != list(range(len(there)))]
    assert not wrong
