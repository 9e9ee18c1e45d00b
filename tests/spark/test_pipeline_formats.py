"""Keys and values of a pipeline as JSON, Avro and Protobuf, judged by decoders that are not ours."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastavro
import pyspark
import pytest
from pyspark.sql import SparkSession

from client_stub.pipeline import main
from client_stub.pipeline.check import check
from client_stub.pipeline.protobuf_schema import read_schema
from tests.spark.test_datasource import rows_of
from tests.spark.test_pipeline import bad_ones, faults, pipeline, run
from tests.stub.fake_daemon import FakeDaemon
from tests.tools import needs

pytestmark = pytest.mark.spark

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "namespace": "late",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"]}],
}
AVRO = {
    "to_json(struct(*))": "struct(*)",
    "timestamp =": 'value_format = "avro"\nvalue_schema = "flight.avsc"\ntimestamp =',
}


@pytest.fixture
def schema(folder: Path) -> Path:
    path = folder / "flight.avsc"
    path.write_text(json.dumps(FLIGHT))
    return path


def decoded(value: bytes, schema: dict[str, Any]) -> Any:
    stream = io.BytesIO(value)
    found = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)
    assert stream.read() == b""
    return found


@needs("spark-avro")
def test_values_are_avro_of_the_schema_file(
    spark: SparkSession,
    daemon: FakeDaemon,
    folder: Path,
    schema: Path,
) -> None:
    """A row that the schema does not take is bad."""
    changes = {**AVRO, "[sidecar]": f'bad_rows = {{ path = "{folder}/bad" }}\n[sidecar]'}
    report = run(spark, pipeline(folder, daemon, changes))
    assert report.ok
    found = sorted((record[0], decoded(record[1], FLIGHT)["delay"]) for _, record in rows_of(daemon))
    assert found == [(b"AA", 20), (b"BB", 30), (b"CC", 99)]
    assert [(each["reason"], each["row"]) for each in bad_ones(folder)] == [("value failed", {"delay": 50})]


@needs("spark-avro")
def test_a_key_may_have_a_format_too_and_null_stays_null(
    spark: SparkSession,
    daemon: FakeDaemon,
    folder: Path,
    schema: Path,
) -> None:
    (folder / "key.avsc").write_text('"string"')
    changes = {
        "to_json(struct(*))": "if(carrier = 'CC', null, array(delay))",
        "timestamp =": 'value_format = "json"\nkey_format = "avro"\nkey_schema = "key.avsc"\n'
        "tombstones = true\ntimestamp =",
    }
    assert run(spark, pipeline(folder, daemon, changes)).ok
    found = {record[0] and decoded(record[0], {"type": "string"}): record[1] for _, record in rows_of(daemon)}
    assert found == {"AA": b"[20]", "BB": b"[30]", "CC": None, None: b"[50]"}


@needs("spark-avro")
def test_check_shows_the_schema_and_rows_before_they_are_encoded(
    spark: SparkSession,
    daemon: FakeDaemon,
    folder: Path,
    schema: Path,
) -> None:
    assert check(spark, pipeline(folder, daemon, AVRO)).splitlines()[3:5] == [
        "output late: key string, value avro late.Flight (flight.avsc), timestamp bigint",
        "    key=AA, value=Row(carrier='AA', delay=20), timestamp=20000",
    ]


@needs("spark-avro")
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "value_schema: {schema} cannot be read: No such file or directory, name the schema's file"),
        ('{"type":', "value_schema: {schema} is no schema of Avro: "),
        (
            json.dumps({**FLIGHT, "fields": FLIGHT["fields"][:1]}),
            "value: the type does not fit {schema}: Cannot find field 'delay' in Avro schema, "
                "correct the expression or the schema",
        ),
        (
            json.dumps({**FLIGHT, "fields": [*FLIGHT["fields"][:1], {"name": "delay", "type": "string"}]}),
            "value: the type does not fit {schema}: Cannot convert SQL field 'delay' to Avro field 'delay' because",
        ),
    ],
)  # fmt: skip
def test_check_names_what_is_wrong_with_a_schema(
    spark: SparkSession,
    daemon: FakeDaemon,
    folder: Path,
    schema: Path,
    content: str | None,
    text: str,
) -> None:
    schema.unlink()
    if content is not None:
        schema.write_text(content)
    (found,) = faults(spark, pipeline(folder, daemon, AVRO))
    assert found.partition(": ")[2].startswith(text.replace("{schema}", str(schema)))
    with pytest.raises(Exception, match=r"flight\.avsc"):
        run(spark, pipeline(folder, daemon, AVRO))
    assert daemon.received == []


def test_json_is_made_of_what_has_parts(
    spark: SparkSession,
    daemon: FakeDaemon,
    folder: Path,
) -> None:
    changes = {"to_json(struct(*))": "delay", "timestamp =": 'value_format = "json"\ntimestamp ='}
    (found,) = faults(spark, pipeline(folder, daemon, changes))
    assert found == (
        "late.toml:17: value_format: int cannot be made JSON, only a struct, map, array or variant, "
        "write value = 'struct(*)', or leave it raw"
    )


PROTO = """\
syntax = "proto3";
package late;
message Other { string name = 1; }
message Flight { string carrier = 1; optional int32 delay = 2; }
"""
PROTOBUF = {
    "to_json(struct(*))": "struct(*)",
    "timestamp =": 'value_format = "protobuf"\nvalue_schema = "flight.proto"\nvalue_message = "Flight"\ntimestamp =',
}


def message_class(folder: Path, name: str) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message_factory import GetMessages

    content = read_schema(folder / "flight.proto", None).descriptor_set
    return GetMessages(FileDescriptorSet.FromString(content).file)[name]


@needs("spark-protobuf")
@pytest.mark.parametrize("suffix", ["proto", "desc"])
def test_values_are_protobuf_of_the_schema_file(
    spark: SparkSession, daemon: FakeDaemon, folder: Path, suffix: str
) -> None:
    (folder / "flight.proto").write_text(PROTO)
    found = read_schema(folder / "flight.proto", "Flight")
    (folder / "flight.desc").write_bytes(found.descriptor_set)
    changes = {**PROTOBUF, "timestamp =": PROTOBUF["timestamp ="].replace("flight.proto", f"flight.{suffix}")}
    assert run(spark, pipeline(folder, daemon, changes)).ok
    flight = message_class(folder, "late.Flight")
    sent = [flight.FromString(record[1]) for _, record in rows_of(daemon)]
    assert sorted((each.carrier, each.delay) for each in sent) == [
        ("", 50),
        ("AA", 20),
        ("BB", 30),
        ("CC", 99),
    ]


@needs("spark-protobuf")
def test_check_names_what_does_not_fit_a_message(
    spark: SparkSession, daemon: FakeDaemon, folder: Path
) -> None:
    (folder / "flight.proto").write_text(PROTO.replace("int32", "string"))
    (found,) = faults(spark, pipeline(folder, daemon, PROTOBUF))
    assert found.startswith(f"late.toml:16: value: the type does not fit {folder}/flight.proto: ")
    assert "late.Flight.delay" in found
    (found,) = faults(spark, pipeline(folder, daemon, {**PROTOBUF, "to_json(struct(*))": "delay"}))
    assert found == (
        "late.toml:17: value_format: int is no message of Protobuf, only a struct is, write value = 'struct(*)', "
        "or leave it raw"
    )


@needs("spark-avro")
def test_a_stream_has_formats_too(
    spark: SparkSession, daemon: FakeDaemon, folder: Path, schema: Path
) -> None:
    changes = {**AVRO, "[source]": f'trigger = "available-now"\ncheckpoint = "{folder}/checkpoint"\n[source]'}
    assert run(spark, pipeline(folder, daemon, changes, minutes="60")).ok
    assert [decoded(record[1], FLIGHT) for _, record in rows_of(daemon)] == [{"carrier": "CC", "delay": 99}]


def test_spark_submit_is_told_the_package_that_it_lacks(
    daemon: FakeDaemon, folder: Path, schema: Path
) -> None:
    made = pipeline(folder, daemon, AVRO)
    done = subprocess.run(
        [
            str(Path(pyspark.__file__).parent / "bin/spark-submit"),
            *("--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR"),
            *("--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"),
            *(str(Path(main.__file__)), "check", made.file),
        ],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert (
        f"{made.file}:17: value_format: avro needs a package that this Spark session lacks, start it with --packages "
        "org.apache.spark:spark-avro_2.13:"
    ) in done.stdout, "where spark-submit sends what a program says"
