"""The packages of Spark that a session is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_stub.pipeline.file import Pipeline, read_pipeline
from client_stub.pipeline.packages import package_of, with_packages
from tests.stub.pipeline.test_file import ENVIRONMENT, WHOLE

pyspark = pytest.importorskip("pyspark")
SETTING = "spark.jars.packages"


@pytest.fixture
def avro(tmp_path: Path) -> Pipeline:
    (tmp_path / "late.toml").write_text(f'{WHOLE}value_format = "avro"\nvalue_schema = "late.avsc"\n')
    return read_pipeline(tmp_path / "late.toml", {}, ENVIRONMENT)


def test_a_format_brings_its_package(avro: Pipeline) -> None:
    assert with_packages(avro, {"a": "b"}, {}) == {"a": "b", SETTING: package_of("avro")}
    assert with_packages(avro, {SETTING: "x:y:1"}, {}) == {SETTING: f"x:y:1,{package_of('avro')}"}
    avro.outputs[0].formats.clear()
    assert with_packages(avro, {}, {}) == {}
    avro.source.format = "avro"
    assert with_packages(avro, {}, {}) == {SETTING: package_of("avro")}


def test_a_package_that_is_there_is_not_fetched(avro: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "spark-avro_2.13-4.2.0.jar").touch()
    for settings in (
        {"spark.driver.extraClassPath": f"/nothing:{tmp_path}/*"},
        {"spark.jars": f"{tmp_path}/spark-avro_2.13-4.2.0.jar"},
        {SETTING: "org.apache.spark:spark-avro_2.13:4.1.0"},
    ):
        assert with_packages(avro, settings, {}) == settings
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/spark-avro_2.13-4.2.0.jar").touch()
    assert with_packages(avro, {}, {"SPARK_HOME": str(tmp_path)}) == {}
    assert with_packages(avro, {}, {"PYSPARK_SUBMIT_ARGS": f"--packages {package_of('avro')}"}) == {}


def test_spark_submit_has_started_the_session(avro: Pipeline) -> None:
    assert with_packages(avro, {}, {"PYSPARK_GATEWAY_PORT": "1"}) == {}


@pytest.mark.parametrize(
    ("spark", "package"),
    [("4.0.1", "4.0.1"), ("4.2.0", "4.2.0"), ("4.3.0", "4.2.0"), ("4.10.0", "4.2.0"), ("4.1.0.dev1", "4.1.0.dev1")],
)  # fmt: skip
def test_the_version_is_that_of_spark_or_the_newest(
    monkeypatch: pytest.MonkeyPatch, spark: str, package: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", spark)
    assert package_of("avro") == f"org.apache.spark:spark-avro_2.13:{package}"
