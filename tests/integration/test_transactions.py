"""Goal: transactions on a real Kafka, as its own clients see them with read_committed; the four programs of
docs/transactions.md; the twins; `kafka-sidecar txn`.
"""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import confluent_kafka
import kafka as kafka_python_library
import pytest
from click.testing import CliRunner, Result

from client_stub import Producer
from client_stub.compat import confluent, kafka_python
from client_stub.errors import TransactionError
from sidecar.cli.main import cli
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic

pytestmark = [pytest.mark.process, pytest.mark.kafka]

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0


@pytest.fixture(scope="module")
def daemon(kafka: KafkaCluster) -> Iterator[SidecarDaemon]:
    with SidecarDaemon(kafka.bootstrap_servers, settings={"daemon.workers": 1}) as daemon:
        yield daemon


@pytest.fixture(autouse=True)
def of_this_daemon(daemon: SidecarDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_SIDECAR_RUN_DIR", str(daemon.run_dir))


def read(kafka: KafkaCluster, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """All values that confluent-kafka's consumer reads up to the end that it is told."""
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    partitions = reader.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    reader.assign(
        [confluent_kafka.TopicPartition(topic, each, confluent_kafka.OFFSET_BEGINNING) for each in partitions]
    )
    values: list[bytes] = []
    left = len(partitions)
    while left:
        message = reader.poll(WAIT_S)
        assert message is not None, f"{left} partitions of {topic} have no end"
        if message.error() is None:
            values.append(message.value())
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            left -= 1
    reader.close()
    return values


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / "transactions" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_transactions_are_read_whole_and_aborted_ones_not(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=3)
    with Producer(transactional_id=topic) as producer:
        producer.init_transactions(WAIT_S)
        for number in range(6):
            producer.begin_transaction()
            sent = [producer.send(topic, b"%d" % number, key=b"%d" % key) for key in range(20)]
            if number % 2:
                for each in sent:
                    each.result(WAIT_S)
                producer.abort_transaction(WAIT_S)
            else:
                producer.commit_transaction(WAIT_S)
                assert all(each.done() for each in sent), "a commit has waited for all"
    assert sorted(read(kafka, topic)) == sorted(b"%d" % number for number in (0, 2, 4) for _ in range(20))
    assert len(read(kafka, topic, "read_uncommitted")) == 120


def test_transaction_without_records_ends_at_once(new_topic: NewTopic) -> None:
    with Producer(transactional_id=new_topic()) as producer:
        producer.init_transactions(WAIT_S)
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            end(WAIT_S)


def test_copy_job_continues_where_its_last_transaction_ended(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    source, target = new_topic(partitions=2), new_topic(partitions=2)
    copy = example("copy_job").copy
    for part in range(2):
        with Producer(transactional_id=f"fill-{source}") as producer, producer.transaction():
            producer.send_many(source, [(None, b"r%d-%d" % (part, number)) for number in range(1_200)])
        assert copy(kafka.bootstrap_servers, source, target) == 1_200
    assert sorted(read(kafka, target)) == sorted(
        b"R%d-%d" % (part, number) for part in range(2) for number in range(1_200)
    )


def test_outbox_sends_each_row_once(kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    topic, database = new_topic(partitions=1), str(tmp_path / "service.db")
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY, key BLOB, value BLOB)")
    relay = example("outbox").relay
    for part in range(2):
        with sqlite3.connect(database) as connection:
            connection.executemany(
                "INSERT INTO outbox (key, value) VALUES (?, ?)",
                [(b"k", b"%d" % (1_500 * part + number)) for number in range(1_500)],
            )
        assert relay(kafka.bootstrap_servers, database, topic) == 1_500
    assert relay(kafka.bootstrap_servers, database, topic) == 0
    assert read(kafka, topic) == [b"%d" % number for number in range(3_000)]


def test_batch_import_is_whole_or_nothing(kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic(partitions=1)
    load = example("batch_import").load
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"a line\n" * 20_000 + b"x" * (2 << 20) + b"\n")
    with pytest.raises(Exception, match=r"max\.request\.size"):
        load(str(broken), topic)
    whole = tmp_path / "whole.txt"
    whole.write_bytes(b"".join(b"%d\n" % number for number in range(20_000)))
    assert load(str(whole), topic) == 20_000
    assert read(kafka, topic) == [b"%d" % number for number in range(20_000)]


@pytest.mark.parametrize("kind", ["confluent", "kafka_python"])
def test_abort_takes_the_consumer_back(
    kafka: KafkaCluster, new_topic: NewTopic, daemon: SidecarDaemon, kind: str
) -> None:
    source, target, group = new_topic(partitions=1), new_topic(partitions=1), uuid.uuid4().hex
    with Producer(transactional_id=f"fill-{source}") as producer, producer.transaction():
        producer.send_many(source, [(None, b"%d" % number) for number in range(100)])
    reader, values_of = _reader(kind, kafka, source, group)
    with Producer(transactional_id=f"copy-{source}") as producer:
        with producer.transaction(reader):
            for value in values_of(40):
                producer.send(target, value)
        with pytest.raises(ZeroDivisionError), producer.transaction(reader):
            for value in values_of(30):
                producer.send(target, value)
            raise ZeroDivisionError
        with producer.transaction(reader):
            for value in values_of(60):
                producer.send(target, value)
    reader.close()
    assert read(kafka, target) == [b"%d" % number for number in range(100)]


def _reader(kind: str, kafka: KafkaCluster, topic: str, group: str) -> tuple[Any, Any]:
    """A consumer, and a function that reads so many values."""
    if kind == "confluent":
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([topic])

        def values_of(count: int) -> list[bytes]:
            values: list[bytes] = []
            while len(values) < count:
                values += [each.value() for each in consumer.consume(count - len(values), timeout=WAIT_S)]
            return values

        return consumer, values_of
    theirs = kafka_python_library.KafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )

    def read_values(count: int) -> list[bytes]:
        values: list[bytes] = []
        while len(values) < count:
            for records in theirs.poll(timeout_ms=1_000, max_records=count - len(values)).values():
                values += [each.value for each in records]
        return values

    return theirs, read_values


def test_consumer_that_commits_by_itself_is_refused(kafka: KafkaCluster, daemon: SidecarDaemon) -> None:
    reader = kafka_python_library.KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id="g")
    with Producer(transactional_id="never") as producer:
        with pytest.raises(ValueError, match="enable_auto_commit=False"), producer.transaction(reader):
            pass
        with pytest.raises(TypeError, match="send_offsets_to_transaction"), producer.transaction(object()):
            pass
    reader.close()


@pytest.mark.parametrize("module", [confluent_kafka, confluent], ids=["theirs", "twin"])
def test_program_for_confluent_commits_and_aborts(
    kafka: KafkaCluster, new_topic: NewTopic, daemon: SidecarDaemon, module: Any
) -> None:
    topic = new_topic(partitions=1)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic}
    if module is confluent:
        settings["sidecar.run_dir"] = str(daemon.run_dir)
    producer = module.Producer(settings)
    with pytest.raises(module.KafkaException) as caught:
        producer.begin_transaction()
    assert caught.value.args[0].code() == module.KafkaError._STATE
    producer.init_transactions(WAIT_S)
    for number in range(4):
        producer.begin_transaction()
        for _ in range(10):
            producer.produce(topic, b"%d" % number)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(WAIT_S)
    with pytest.raises(module.KafkaException) as caught:
        producer.commit_transaction(WAIT_S)
    error = caught.value.args[0]
    assert (error.code(), error.fatal(), error.txn_requires_abort()) == (
        module.KafkaError._STATE,
        False,
        False,
    )
    assert read(kafka, topic) == [b"0"] * 10 + [b"2"] * 10


@pytest.mark.parametrize("of", [kafka_python_library, kafka_python], ids=["theirs", "twin"])
def test_program_for_kafka_python_commits_and_aborts(
    kafka: KafkaCluster, new_topic: NewTopic, daemon: SidecarDaemon, of: Any
) -> None:
    topic = new_topic(partitions=1)
    settings: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "transactional_id": topic}
    if of is kafka_python:
        settings["sidecar_run_dir"] = str(daemon.run_dir)
    producer = of.KafkaProducer(**settings)
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        for _ in range(10):
            producer.send(topic, b"%d" % number)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.send_offsets_to_transaction(
                {kafka_python_library.TopicPartition(topic, 0): _offset(number)}, f"of-{topic}"
            )
            producer.commit_transaction()
    producer.close()
    assert read(kafka, topic) == [b"0"] * 10 + [b"2"] * 10
    reader = kafka_python_library.KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, group_id=f"of-{topic}"
    )
    assert reader.committed(kafka_python_library.TopicPartition(topic, 0)) == 2
    reader.close()


def _offset(number: int) -> Any:
    from kafka.structs import OffsetAndMetadata

    return OffsetAndMetadata(number, "", -1)


def txn(daemon: SidecarDaemon, *words: str) -> Result:
    return CliRunner().invoke(cli, ["txn", *words, "--run-dir", str(daemon.run_dir)])


def test_command_lists_shows_and_aborts_an_open_transaction(
    daemon: SidecarDaemon, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=1)
    with Producer(transactional_id=topic) as producer:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.send(topic, b"x").result(WAIT_S)
        listed = json.loads(txn(daemon, "list", "--json").stdout)["transactions"]
        (mine,) = [each for each in listed if each["transactional_id"] == topic]
        assert mine["state"] == "Ongoing" and mine["partitions"] == [{"topic": topic, "partition": 0}]
        assert f"{topic}-0" in txn(daemon, "list").stdout
        assert "Ongoing" in txn(daemon, "show", topic).stdout
        aborted = txn(daemon, "abort", topic)
        assert aborted.exit_code == 0 and aborted.stdout.startswith(f"Aborted: the transaction of {topic}")
        with pytest.raises(TransactionError) as caught:
            producer.commit_transaction(WAIT_S)
        assert caught.value.fatal
    unknown = txn(daemon, "show", "nobody")
    assert unknown.exit_code == 1 and "TRANSACTIONAL_ID_NOT_FOUND" in unknown.stderr


def test_command_lists_shows_and_drops_stages(daemon: SidecarDaemon, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=1)
    with Producer(client_name="filler") as stager:
        tokens = []
        for number in (1, 2, 3):
            with stager.stage(topic, number, owner="run-1") as stage:
                stage.send_many(topic, [(None, b"x")] * 100)
                tokens.append(stage.seal(WAIT_S))
        open_one = stager.stage(topic, 4, owner="run-2")
        open_one.send(topic, b"y")
        open_one._engine.flush(WAIT_S, "accepted")
        listed = json.loads(txn(daemon, "list", "--json").stdout)["stages"]
        mine = {each["number"]: each for each in listed if each["transactional_id"] == topic}
        assert {number: each["state"] for number, each in mine.items()} == {
            **dict.fromkeys((1, 2, 3), "sealed"),
            4: "open",
        }
        assert (mine[1]["owner"], mine[1]["client"], mine[1]["records"]) == ("run-1", "filler", 100)
        assert mine[1]["token"] == tokens[0].decode() and mine[1]["left_seconds"] > 3_000
        for words in (("list",), ("show", topic)):
            shown = txn(daemon, *words).stdout
            assert "run-1" in shown and "sealed" in shown and "open" in shown and "filler" in shown
        assert "the cluster does not know it" in txn(daemon, "show", topic).stdout
        explained = CliRunner().invoke(cli, ["explain", topic, "--run-dir", str(daemon.run_dir)])
        assert explained.stdout.count("it waits for include()") == 3
        assert explained.stdout.count("filler fills it") == 1
        dropped = txn(daemon, "drop", topic, "--token", tokens[2].decode())
        assert dropped.stdout == f"1 stage of {topic} dropped.\n"
        assert json.loads(txn(daemon, "drop", topic, "--up-to", "1", "--json").stdout)["dropped"] == 1
        assert txn(daemon, "drop", topic, "--all").stdout == f"2 stages of {topic} dropped.\n"
        with pytest.raises(TransactionError, match=r"Stage 4 of .* was dropped by"):
            open_one.seal(WAIT_S)
        open_one.drop(WAIT_S)
    assert topic not in txn(daemon, "list").stdout


def test_pool_of_processes_fills_one_transaction(
    kafka: KafkaCluster, new_topic: NewTopic, daemon: SidecarDaemon, tmp_path: Path
) -> None:
    """As a program: the processes of a pool import it by its file."""
    topic = new_topic(partitions=3)
    files = []
    for number in range(6):
        files.append(tmp_path / f"part-{number}.txt")
        files[-1].write_bytes(b"".join(b"%d-%d\n" % (number, row) for row in range(12_000)))
    whole = run_pool_import(topic, *files)
    assert whole.stdout == "72000 lines imported\n", whole.stderr
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"line\n" * 500 + bytes(2 << 20) + b"\n")
    failed = run_pool_import(topic, *files[:2], broken)
    assert failed.returncode != 0 and "max.request.size" in failed.stderr
    wanted = sorted(b"%d-%d" % (number, row) for number in range(6) for row in range(12_000))
    for isolation in ("read_committed", "read_uncommitted"):
        assert sorted(read(kafka, topic, isolation)) == wanted


def run_pool_import(topic: str, *files: Path) -> subprocess.CompletedProcess[str]:
    program = ROOT / "examples" / "transactions" / "pool_import.py"
    return subprocess.run(
        [sys.executable, str(program), topic, *map(str, files)],
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
