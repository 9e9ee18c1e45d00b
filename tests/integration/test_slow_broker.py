"""Goal: a broker that stops answering gets no more keyless records while others can take them (KIP-794)."""

from __future__ import annotations

import pytest

from client_stub import Producer
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import ConditionTimeout, wait_until

pytestmark = [pytest.mark.process, pytest.mark.kafka]

TIMEOUT_S = 60
PROBES = 1_500
VALUE = bytes(1_000)


def test_keyless_records_avoid_a_broker_that_hangs_and_none_is_lost(start_daemon: StartDaemon) -> None:
    """Paused, not dead: it leads its partitions all the while, as the two controllers cannot agree without it."""
    with KafkaCluster(2) as kafka:
        kafka.create_topics({"t": 8}, replication_factor=1)
        daemon = start_daemon(
            kafka.bootstrap_servers,
            settings={
                "partitioner.availability.timeout.ms": 100,
                "batch.size": 2_000,
                "daemon.batch_growth_bytes": 0,
                "daemon.workers": 1,
            },
        )
        with Producer(run_dir=str(daemon.run_dir), client_name="probe") as producer:
            waiting = [producer.send("t", value=VALUE) for _ in range(100)]
            for delivery in waiting:
                delivery.result(timeout=TIMEOUT_S)
            kafka.pause_node(1)
            stuck = [producer.send("t", value=VALUE) for _ in range(400)]

            def all_are_delivered_elsewhere() -> bool:
                """A round in which not one record went to the broker that hangs."""
                probes = [producer.send("t", value=VALUE) for _ in range(PROBES)]
                stuck.extend(probes)
                try:
                    wait_until(lambda: all(probe.done() for probe in probes), "this round", timeout_s=5.0)
                except ConditionTimeout:
                    return False
                return True

            wait_until(all_are_delivered_elsewhere, "a round without the broker that hangs")
            assert not all(delivery.done() for delivery in stuck), "the broker does not hang"
            kafka.resume_node(1)
            for delivery in stuck:
                delivery.result(timeout=TIMEOUT_S)
            total = len(stuck) + 100
            again = [producer.send("t", value=VALUE) for _ in range(PROBES)]
            partitions = {delivery.result(timeout=TIMEOUT_S).partition for delivery in again}
        assert partitions == set(range(8)), "it gets records again"
        assert len(read_topic(kafka.bootstrap_servers, "t")) == total + PROBES
