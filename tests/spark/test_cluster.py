"""Goal: on a cluster of several hosts every row lands, whatever happens to an executor."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import end_offsets, iterate_topic
from sidecar.tools.testing.waiting import wait_until
from tests.spark.spark_cluster import ADDRESSES, JOB_S, JobFailed, SparkCluster, SparkJob

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(900)]

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


PACED_ROWS = 600
"""Of one file and so of one micro-batch; they take 0.3 s and more."""
VICTIMS = ("executor", "daemon", "driver")


class Killed:
    """A stream whose driver, executors and daemons are killed in turn, and started again as their keepers would."""

    def __init__(
        self, cluster: SparkCluster, daemons: list[SidecarDaemon], arguments: dict[str, object]
    ) -> None:
        self._cluster = cluster
        self._daemons = daemons
        self._arguments = arguments
        self.job = self._start()

    def _start(self) -> SparkJob:
        conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": "50", "spark.task.maxFailures": "8"}
        return self._cluster.start_job("paced_stream", conf=conf, **self._arguments)

    def kill(self, number: int) -> None:
        victim = VICTIMS[number % len(VICTIMS)]
        one = number // len(VICTIMS) % 2
        if victim == "executor":
            for executor in self._cluster.hosts[one].executors():
                executor.kill()
        elif victim == "daemon":
            self._daemons[one].kill_all()
            self._daemons[one].start()
        else:
            self.job.kill()
            self.job = self._start()

    def finish(self) -> None:
        """A query that its kills have ended begins again where its checkpoint is."""
        for _ in range(3):
            try:
                self.job.result()
            except JobFailed:
                self.job = self._start()
            else:
                return
        self.job.result()


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
def test_kills_lose_no_row_and_double_those_of_their_own_micro_batches(
    cluster: SparkCluster,
    daemons: list[SidecarDaemon],
    kafka: KafkaCluster,
    new_topic: NewTopic,
    tmp_path: Path,
    kills: int,
) -> None:
    topic = new_topic()
    files = kills * 4
    for number in range(files):
        write_rows(tmp_path / "rows", number)
    arguments = {"folder": str(tmp_path), "source": str(tmp_path / "rows"), "options": {"topic": topic}}
    stream = Killed(cluster, daemons, arguments)

    def sent() -> int:
        return sum(end_offsets(kafka.bootstrap_servers, topic).values())

    for number in range(kills):
        # In the middle of a micro-batch further on.
        reached = sent() + PACED_ROWS + PACED_ROWS // 4
        wait_until(
            lambda: sent() >= reached or stream.job.has_ended(),  # noqa: B023
            "rows of the stream",
            timeout_s=JOB_S,
        )
        stream.kill(number)
    stream.finish()

    found = counts(kafka, topic)
    assert sorted(found) == list(range(files * PACED_ROWS))
    doubled = {number // PACED_ROWS for number, count in found.items() if count > 1}
    assert len(doubled) <= kills, f"rows of the micro-batches {sorted(doubled)} are there more than once"


def write_rows(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    values = [str(each) for each in range(number * PACED_ROWS, (number + 1) * PACED_ROWS)]
    pq.write_table(pa.table({"key": values, "value": values}), folder / f"{number:05}.parquet")
    # The source takes older files first.
    os.utime(folder / f"{number:05}.parquet", (number, number))


@pytest.mark.long
def test_the_loser_of_a_speculation_doubles_no_more_than_the_report_says(
    cluster: SparkCluster, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, rows, tasks = new_topic(), 200_000, 4
    conf = {
        "spark.speculation": "true",
        "spark.speculation.minTaskRuntime": "1s",
        "spark.speculation.quantile": "0.5",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    }
    options = {"topic": topic, "sidecar.report": str(tmp_path)}
    cluster.run_job("write_with_straggler", conf=conf, rows=rows, tasks=tasks, options=options)
    found = counts(kafka, topic)
    assert sorted(found) == list(range(rows))
    report = json.loads((tmp_path / "commit.json").read_text())
    doubled = sum(found.values()) - rows
    assert 0 < doubled <= report["duplicates"] == rows // tasks
    assert all(number < rows // tasks for number, count in found.items() if count > 1), "of task 0 alone"


@pytest.mark.long
def test_executors_come_and_go_by_dynamic_allocation(
    cluster: SparkCluster, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic()
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    }
    found = cluster.run_job("write_twice", conf=conf, rows=ROWS, tasks=8, options={"topic": topic})
    assert set(found["hosts"]) <= set(ADDRESSES)
    assert counts(kafka, topic) == Counter(dict.fromkeys(range(ROWS), 2))
