"""Goal: a job that brings the package along either works or says on the driver why it cannot."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import psutil
import pytest

from client_stub.spark.autostart import HOME_VARIABLE
from sidecar.tools.demo.requirements import requirements
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.reading import iterate_topic
from tests.spark.spark_cluster import CONF, ROOT, JobFailed, SparkCluster, SparkJob
from tests.spark.test_autostart import daemons

PACKAGES = ("client_stub", "pyspark_kafka_sidecar", "sidecar")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_a_wheel_in_py_files_is_refused_on_the_driver(tmp_path: Path) -> None:
    """Its compiled part cannot be loaded from there."""
    wheel = tmp_path / "kafka_sidecar.zip"
    with zipfile.ZipFile(wheel, "w") as archive:
        for package in PACKAGES[:2]:
            for path in (ROOT / package).rglob("*"):
                if path.suffix in {".py", ".so"}:
                    archive.write(path, path.relative_to(ROOT))
    conf = {**CONF, "spark.submit.pyFiles": str(wheel)}
    # As spark-submit does; and before the package that this environment has.
    path = {"PYTHONPATH": f"{wheel}:{ROOT}"}
    arguments = {"rows": 1, "tasks": 1, "options": {"topic": "t"}}
    with pytest.raises(JobFailed) as failed:
        SparkJob("local[1]", "write", conf, arguments, path).result()
    sentences = [line for line in failed.value.output.splitlines() if "RuntimeError: kafka_sidecar: " in line]
    assert sentences
    assert sentences[-1].endswith(
        "kafka_sidecar.zip, and compiled parts cannot be loaded from one: install kafka-sidecar in the environment. A "
        "job of Spark brings one by --archives, and no wheel by --py-files."
    )
    assert "Lost task" not in failed.value.output


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a driver: the environment ``env``, and ``env.tar.gz`` made of it."""
    folder = tmp_path_factory.mktemp("packed")

    def run(*command: str) -> None:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)

    run(sys.executable, "-m", "venv", "env")
    run(
        "env/bin/pip",
        "install",
        "venv-pack",
        "setuptools<81",
        *requirements("daemon"),
        *requirements("arrow"),
    )
    (site,) = folder.glob("env/lib/python*/site-packages")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, site / package, ignore=shutil.ignore_patterns("__pycache__", "*.c"))
    run("env/bin/venv-pack", "-p", "env", "-o", "env.tar.gz")
    return folder


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.parametrize("way", ["--archives", "addArtifacts"])
def test_an_archive_of_an_environment_is_all_that_a_job_needs(
    packed: Path, kafka: KafkaCluster, new_topic: NewTopic, short_dir: Path, way: str
) -> None:
    """Neither a daemon nor the package is on the hosts."""
    topic = new_topic()
    homes = [short_dir / name for name in ("one", "two")]
    options = {
        "topic": topic,
        "sidecar.autostart": "true",
        "sidecar.daemon.idle_timeout_s": "600",
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.buffer.memory": "33554432",
    }
    archive = f"{packed}/env.tar.gz#env"
    conf = {**CONF, "spark.archives": archive} if way == "--archives" else CONF
    python = {"PYSPARK_PYTHON": "./env/bin/python", "PYSPARK_DRIVER_PYTHON": "./env/bin/python"}
    with SparkCluster([{HOME_VARIABLE: str(home), "PYTHONPATH": ""} for home in homes]) as cluster:
        arguments = {"rows": 20_000, "tasks": 8, "options": options}
        arguments["artifact"] = archive if way == "addArtifacts" else None
        SparkJob(cluster.master, "write", conf, arguments, python, packed).result()
        started = [daemon for home in homes for daemon in daemons(home)]
        try:
            for daemon, host, home in zip(started, cluster.hosts, homes, strict=True):
                assert f"its log is {next(home.glob('*/daemon.log'))}." in host.log()
                # An artifact lies in a folder of its session, which is one of Spark's local ones.
                assert any(each.path.startswith(f"{host.folder}/") for each in daemon.memory_maps())
        finally:
            for daemon in started:
                daemon.terminate()
            psutil.wait_procs(started, timeout=30)
    rows = Counter(int(each.value or b"") for each in iterate_topic(kafka.bootstrap_servers, topic))
    assert rows == Counter(range(20_000))
