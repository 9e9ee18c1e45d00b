"""Confluent's wire format: a pipeline against a real schema registry, read back by Confluent's own deserializers."""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from client_stub.pipeline.check import check
from sidecar.tools.testing.schema_registry import SchemaRegistry
from tests.spark.test_datasource import rows_of
from tests.spark.test_pipeline import faults, pipeline, run
from tests.spark.test_pipeline_formats import AVRO, FLIGHT, PROTO, PROTOBUF, message_class
from tests.stub.fake_daemon import FakeDaemon
from tests.tools import needs

pytestmark = [pytest.mark.spark, needs("schema-registry")]

PASSWORD = "hidden word"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture
def client(registry: SchemaRegistry) -> Iterator[SchemaRegistryClient]:
    """Of an empty registry."""
    found = SchemaRegistryClient({"url": registry.url})
    for subject in found.get_subjects():
        found.delete_subject(subject)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def schemas(folder: Path) -> None:
    (folder / "flight.avsc").write_text(json.dumps(FLIGHT))
    (folder / "flight.proto").write_text(PROTO)


def table(url: str, more: str = "") -> dict[str, str]:
    """The change that adds [registry] to the file."""
    return {"[sidecar]": f'[registry]\nurl = "{url}"\n{more}\n[sidecar]'}


def values(daemon: FakeDaemon, topic: str = "late") -> list[bytes]:
    return [record[1] for name, record in rows_of(daemon) if name == topic]


def context() -> SerializationContext:
    return SerializationContext("late", MessageField.VALUE)


@needs("spark-avro")
def test_values_have_the_id_of_a_registered_schema(
    spark: SparkSession,
    daemon: FakeDaemon,
    folder: Path,
    registry: SchemaRegistry,
    client: SchemaRegistryClient,
) -> None:
    """Also one that differs from the file in white space, as other programs register it."""
    number = client.register_schema("late-value", Schema(json.dumps(FLIGHT, indent=2), "AVRO"))
    made = pipeline(folder, daemon, AVRO | table(registry.url), minutes="15")
    text = f"value avro late.Flight (flight.avsc), subject late-value, id {number}"
    made.outputs[0].expressions["value"] = "struct(coalesce(carrier, '?') AS carrier, delay)"
    assert text in check(spark, made)
    assert run(spark, made).ok
    assert {value[:5] for value in values(daemon)} == {b"\0" + number.to_bytes(4)}
    read = AvroDeserializer(client)
    found = [read(value, context()) for value in values(daemon)]
    assert sorted(each["delay"] for each in found) == [20, 30, 50, 99]
    assert {each["carrier"] for each in found} == {"AA", "BB", "CC", "?"}


@needs("spark-avro")
def test_a_schema_that_is_not_there_is_registered_by_a_run_if_it_may_be(
    spark: SparkSession,
    daemon: FakeDaemon,
    folder: Path,
    registry: SchemaRegistry,
    client: SchemaRegistryClient,
) -> None:
    (found,) = faults(spark, pipeline(folder, daemon, AVRO | table(registry.url)))
    assert found == (
        "late.toml:18: value_schema: flight.avsc is not registered for subject late-value, register it: "
        f"jq -Rs '{{schema: .}}' {folder}/flight.avsc | curl --json @- {registry.url}/subjects/late-value/versions, "
        "or set auto_register = true in [registry]"
    )
    made = pipeline(folder, daemon, AVRO | table(registry.url, "auto_register = true"), minutes="90")
    assert "subject late-value, a new id" in check(spark, made)
    assert client.get_subjects() == [], "a check registers nothing"
    assert run(spark, made).ok
    found = client.get_latest_version("late-value")
    assert [value[1:5] for value in values(daemon)] == [found.schema_id.to_bytes(4)]


@needs("spark-avro")
def test_a_schema_that_the_subject_does_not_take(
    spark: SparkSession,
    daemon: FakeDaemon,
    folder: Path,
    registry: SchemaRegistry,
    client: SchemaRegistryClient,
) -> None:
    fields = [{"name": "carrier", "type": "int"}, {"name": "delay", "type": "int"}]
    client.register_schema("late-value", Schema(json.dumps({**FLIGHT, "fields": fields}), "AVRO"))
    client.set_compatibility("late-value", "BACKWARD")
    for more in ("", "auto_register = true"):
        made = pipeline(folder, daemon, AVRO | table(registry.url, more))
        (found,) = faults(spark, made)
        assert found == (
            "late.toml:18: value_schema: flight.avsc is not compatible with the latest version of subject late-value, "
            "correct the schema, or change the subject's compatibility"
        )
    with pytest.raises(Exception, match="is not compatible"):
        run(spark, made)
    assert (len(client.get_versions("late-value")), daemon.received) == (1, [])


@needs("spark-avro")
@pytest.mark.parametrize(
    ("strategy", "subject"), [("record", "late.Flight"), ("topic-record", "late-late.Flight")]
)
def test_names_of_subjects(
    spark: SparkSession,
    daemon: FakeDaemon,
    folder: Path,
    registry: SchemaRegistry,
    client: SchemaRegistryClient,
    strategy: str,
    subject: str,
) -> None:
    client.register_schema(subject, Schema(json.dumps(FLIGHT), "AVRO"))
    made = pipeline(folder, daemon, AVRO | table(registry.url, f'subject = "{strategy}"'))
    assert f"subject {subject}, id " in check(spark, made)


@needs("spark-avro")
def test_without_a_file_the_latest_schema_is_taken(
    spark: SparkSession,
    daemon: FakeDaemon,
    folder: Path,
    registry: SchemaRegistry,
    client: SchemaRegistryClient,
) -> None:
    changes = {each: text.replace('value_schema = "flight.avsc"\n', "") for each, text in AVRO.items()}
    made = pipeline(folder, daemon, changes | table(registry.url))
    (found,) = faults(spark, made)
    assert f"value_schema: {registry.url} has no subject late-value, name a schema file" in found
    client.register_schema("late-value", Schema(json.dumps(FLIGHT), "AVRO"))
    assert "value avro late.Flight, subject late-value, id " in check(spark, made)


@needs("spark-avro")
def test_a_key_has_a_subject_of_its_own(
    spark: SparkSession,
    daemon: FakeDaemon,
    folder: Path,
    registry: SchemaRegistry,
    client: SchemaRegistryClient,
) -> None:
    number = client.register_schema("late-key", Schema('"string"', "AVRO"))
    changes = {"timestamp =": 'key_format = "avro"\ntimestamp ='} | table(registry.url)
    made = pipeline(folder, daemon, changes, minutes="90")
    assert f"key avro string, subject late-key, id {number}" in check(spark, made)
    assert run(spark, made).ok
    assert [record[0] for _, record in rows_of(daemon)] == [b"\0" + number.to_bytes(4) + b"\4CC"]


@needs("spark-protobuf")
@pytest.mark.parametrize(("message", "indexes"), [("Flight", b"\2\2"), ("First", b"\0")])
def test_values_of_protobuf_have_the_path_to_their_message(
    spark: SparkSession,
    daemon: FakeDaemon,
    folder: Path,
    registry: SchemaRegistry,
    client: SchemaRegistryClient,
    message: str,
    indexes: bytes,
) -> None:
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

    (folder / "flight.proto").write_text(
        PROTO.replace("message Other { string name", "message First { string carrier")
    )
    changes = {each: text.replace('"Flight"', f'"{message}"') for each, text in PROTOBUF.items()}
    changes["to_json(struct(*))"] = "struct(carrier)"
    made = pipeline(folder, daemon, changes | table(registry.url, "auto_register = true"))
    assert run(spark, made).ok
    number = client.get_latest_version("late-value").schema_id
    assert {value[: 5 + len(indexes)] for value in values(daemon)} == {b"\0" + number.to_bytes(4) + indexes}
    # Without the registry, which gives no schema as a descriptor: the deserializer would ask for it.
    read = ProtobufDeserializer(message_class(folder, f"late.{message}"), {"use.deprecated.format": False})
    assert sorted(read(value, context()).carrier for value in values(daemon)) == ["", "AA", "BB", "CC"]


class _Guard(BaseHTTPRequestHandler):
    """What often is in front of a registry: it lets those in that know the password."""

    server: _GuardServer

    def log_message(self, format: str, *args: Any) -> None: ...

    def _pass_on(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        if self.headers.get("Authorization") not in self.server.accepted:
            self._answer(401, b'{"error_code": 401, "message": "Unauthorized"}')
            return
        request = urllib.request.Request(
            self.server.target + self.path,
            body,
            {"Content-Type": self.headers.get("Content-Type") or "application/json"},
            method=self.command,
        )
        try:
            with urllib.request.urlopen(request) as answer:
                self._answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            self._answer(error.code, error.read())

    do_GET = do_POST = _pass_on

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _GuardServer(ThreadingHTTPServer):
    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Guard)
        self.target = target
        login = base64.b64encode(f"reader:{PASSWORD}".encode()).decode()
        self.accepted = (f"Basic {login}", f"Bearer {PASSWORD}")
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def guard(registry: SchemaRegistry) -> Iterator[_GuardServer]:
    server = _GuardServer(registry.url)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@needs("spark-avro")
def test_a_login_is_of_the_driver_alone(
    spark: SparkSession,
    daemon: FakeDaemon,
    folder: Path,
    client: SchemaRegistryClient,
    guard: _GuardServer,
) -> None:
    client.register_schema("late-value", Schema(json.dumps(FLIGHT), "AVRO"))
    secret = folder / "password"
    for more, text in (("", f"{PASSWORD}\n"), ("", "wrong")):
        secret.write_text(text)
        secret.chmod(0o600)
        login = f'user = "reader"\npassword_file = "{secret}"{more}'
        made = pipeline(folder, daemon, AVRO | table(guard.url, login), minutes="90")
        if text == "wrong":
            (found,) = faults(spark, made)
            assert found == (
                f"late.toml:21: the registry {guard.url} refuses the login (401), set user and password_file, or "
                "token_file, to those of an account that may read it"
            )
        else:
            assert "subject late-value, id " in check(spark, made)
            assert run(spark, made).ok
    settings = "\n".join(f"{name}={value}" for name, value in spark.sparkContext.getConf().getAll())
    assert PASSWORD not in settings + repr(made)


@needs("spark-avro")
def test_a_token_lets_in(
    spark: SparkSession, daemon: FakeDaemon, folder: Path, client: SchemaRegistryClient, guard: _GuardServer
) -> None:
    client.register_schema("late-value", Schema(json.dumps(FLIGHT), "AVRO"))
    (folder / "token").write_text(PASSWORD)
    made = pipeline(folder, daemon, AVRO | table(guard.url, f'token_file = "{folder}/token"'))
    assert "subject late-value, id " in check(spark, made)


@needs("spark-avro")
def test_a_registry_that_is_away_is_one_fault_of_all(
    spark: SparkSession, daemon: FakeDaemon, folder: Path
) -> None:
    changes = AVRO | table("http://127.0.0.1:9")
    first = "[[output]]\ntopic = 'x'\nvalue = 'nothing'\n[[output]]\ntopic = 'y'\nvalue = 'struct(*)'\n"
    changes["[[output]]"] = f"{first}value_format = 'avro'\nvalue_schema = 'flight.avsc'\n[[output]]"
    found = faults(spark, pipeline(folder, daemon, changes))
    assert len(found) == 2
    assert "UNRESOLVED_COLUMN" in found[0]
    assert found[1].partition(": ")[2] == (
        "the registry http://127.0.0.1:9 cannot be reached: [Errno 111] Connection refused, start it, or correct url"
    )
