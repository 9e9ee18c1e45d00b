"""One real Spark session (two local tasks) for all tests of the data source."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub.pipeline.packages import PACKAGES
from client_stub.spark.autostart import HOME_VARIABLE
from sidecar.tools.testing.spark_formats import format_jars
from tests.stub.conftest import run_dir  # noqa: F401 (a fixture)
from tests.stub.fake_daemon import FakeDaemon

pyspark = pytest.importorskip("pyspark")

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = [("AA", 20), ("BB", 30), ("AA", 3), ("CC", 99), (None, 50)]
READS_COLUMNS = 1 << 1 | 1 << 2


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # The workers must find the packages also when they are not installed.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Of daemons that tasks start: the JVM hands its environment on to the Python workers.
    os.environ[HOME_VARIABLE] = home = tempfile.mkdtemp(prefix="ks-", dir="/tmp")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests of the data source")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraClassPath", os.pathsep.join(f"{format_jars(name)}/*" for name in PACKAGES))
        .config("spark.sql.warehouse.dir", f"{home}/warehouse")
        .getOrCreate()
    )
    yield session
    session.stop()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def daemon(run_dir: Path) -> Iterator[FakeDaemon]:  # noqa: F811
    fake = FakeDaemon(run_dir, limits={"max_request_size": 1 << 20, "formats": READS_COLUMNS})
    yield fake
    fake.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = "".join(f"{carrier or ''},{delay}\n" for carrier, delay in FLIGHTS)
    (tmp_path / "flights.csv").write_text(rows)
    return tmp_path
