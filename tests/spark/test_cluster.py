"""Goal: on a cluster of several hosts every row lands, whatever happens to an executor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import iterate_topic
from tests.spark.spark_cluster import ADDRESSES, JobFailed, SparkCluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 40_000


@pytest.fixture(scope="module")
def daemons(kafka: KafkaCluster) -> Iterator[list[SidecarDaemon]]:
    """One for each host."""
    settings = {"daemon.workers": 1, "buffer.memory": 32 << 20}
    with (
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as first,
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as second,
    ):
        yield [first, second]


@pytest.fixture(scope="module")
def cluster(daemons: list[SidecarDaemon]) -> Iterator[SparkCluster]:
    with SparkCluster.with_run_dirs([each.run_dir for each in daemons]) as started:
        yield started


def counts(kafka: KafkaCluster, topic: str) -> Counter[int]:
    """How often each row is in the topic."""
    return Counter(int(record.value or b"") for record in iterate_topic(kafka.bootstrap_servers, topic))


def accepted_by(daemon: SidecarDaemon) -> int:
    return int(metric(daemon, "kafka_sidecar_records_accepted_total"))


def test_batch_and_stream_land_whole_by_both_hosts(
    cluster: SparkCluster,
    daemons: list[SidecarDaemon],
    kafka: KafkaCluster,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    of_batch, of_stream = new_topic(), new_topic()
    options = {"options": {"topic": of_batch}, "streamed": {"topic": of_stream}}
    found = cluster.run_job("write_and_stream", rows=ROWS, folder=str(tmp_path), files=3, **options)
    assert found == {"hosts": list(ADDRESSES), "batches": 3}
    for topic in (of_batch, of_stream):
        assert counts(kafka, topic) == Counter(range(ROWS))
    assert sum(accepted_by(each) for each in daemons) == 2 * ROWS
    assert all(accepted_by(each) for each in daemons)


def test_a_host_without_a_daemon_is_named_on_the_driver(
    cluster: SparkCluster, daemons: list[SidecarDaemon], new_topic: NewTopic
) -> None:
    daemons[1].stop()
    try:
        with pytest.raises(JobFailed) as failed:
            once = {"spark.task.maxFailures": "1"}
            cluster.run_job("write", conf=once, rows=100, tasks=4, options={"topic": new_topic()})
    finally:
        daemons[1].start()
    assert re.fullmatch(
        rf"RuntimeError: kafka_sidecar: No kafka-sidecar daemon at {daemons[1].run_dir}/control.sock on host \S+: the "
        r"socket does not exist \(waited 5 s\).* Each executor host needs a daemon; option sidecar.run_dir .*",
        str(failed.value),
    ), failed.value
