"""Goal: a client of Spark Connect writes as any other session does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.reading import iterate_topic
from tests.spark.cluster_jobs import CONNECT
from tests.spark.spark_cluster import CONF, SparkJob

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(900)]

ROWS = 20_000


def test_batch_stream_and_errors(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, tmp_path: Path
) -> None:
    of_batch, of_stream, daemon = new_topic(), new_topic(), start_daemon(kafka.bootstrap_servers)
    options = {name: {"topic": topic, "sidecar.run_dir": str(daemon.run_dir)}
               for name, topic in (("options", of_batch), ("streamed", of_stream))}  # fmt: skip
    arguments = {"rows": ROWS, "folder": str(tmp_path), **options}
    found = SparkJob(CONNECT, "write_by_connect", CONF, arguments).result()
    assert found["session"] == "pyspark.sql.connect.session"
    assert found["batches"] == 3
    assert "kafka_sidecar: option 'windw' is not known; did you mean 'window'?" in found["refused"]
    for topic, times in ((of_batch, 2), (of_stream, 1)):
        rows = Counter(int(each.value or b"") for each in iterate_topic(kafka.bootstrap_servers, topic))
        assert rows == Counter(dict.fromkeys(range(ROWS), times))
