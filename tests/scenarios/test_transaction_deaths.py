"""TX: whoever is killed in a transaction on a real Kafka, it is committed whole, or nothing of it is there.

The judge is confluent-kafka's consumer with isolation.level=read_committed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from client_stub import Producer
from client_stub.errors import SidecarError
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process

CALL_S: Final = 30.0
GONE_S: Final = 5.0
_serial = count(1)


class Judge:
    """Reads topics by another client, committed records only or all."""

    def __init__(self, kafka: KafkaCluster, isolation: str = "read_committed") -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": uuid.uuid4().hex,
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )

    def values(self, topic: str, *, wanted: int) -> list[bytes]:
        """All committed records, read to the last stable offset of each partition, ``wanted`` at least."""
        partitions = self._consumer.list_topics(topic, timeout=CALL_S).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        found: list[bytes] = []
        at_end: set[int | None] = set()

        def is_read() -> bool:
            for message in self._consumer.consume(10_000, timeout=0.5):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    at_end.add(message.partition())
                    continue
                at_end.discard(message.partition())
                value = message.value()
                assert isinstance(value, bytes)
                found.append(value)
            return len(found) >= wanted and len(at_end) == len(partitions)

        wait_until(is_read, f"{wanted} committed records of {topic}")
        return found

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def judge(kafka: KafkaCluster) -> Iterator[Judge]:
    judge = Judge(kafka)
    yield judge
    judge.close()


@pytest.fixture(scope="module")
def module_daemon(kafka: KafkaCluster) -> Iterator[SidecarDaemon]:
    settings = {"daemon.workers": 1, "linger.ms": 5}
    with SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon:
        yield daemon


@pytest.fixture
def make_producer(module_daemon: SidecarDaemon) -> Iterator[Callable[..., Producer]]:
    made: list[Producer] = []

    def make(name: str | None = None) -> Producer:
        producer = Producer(
            run_dir=str(module_daemon.run_dir),
            client_name="deaths",
            transactional_id=name or f"deaths-{next(_serial)}",
        )
        made.append(producer)
        producer.init_transactions(CALL_S)
        return producer

    yield make
    for producer in made:
        producer.close(0)


def kill_worker(daemon: SidecarDaemon) -> None:
    (pid,) = daemon.worker_pids()
    os.kill(pid, signal.SIGKILL)


def balanced(daemon: SidecarDaemon) -> None:
    def is_balanced() -> bool:
        accepted, delivered, failed, dead, aborted, held = (
            metric(daemon, f"kafka_sidecar_records_{name}")
            for name in (
                "accepted_total",
                "delivered_total",
                "failed_total",
                "dead_lettered_total",
                "aborted_total",
                "held",
            )
        )
        return held == 0 and accepted == delivered + failed + dead + aborted and dead == 0

    wait_until(is_balanced, "a ledger that balances, with nothing held and no dead letter")


def test_transactions_are_whole_for_a_reader_of_committed_records(
    make_producer: Callable[..., Producer], new_topic: NewTopic, judge: Judge
) -> None:
    topic = new_topic(3)
    producer = make_producer()
    wanted = []
    for number in range(6):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, each) for each in range(50)]
        for value in values:
            producer.send(topic, value)
        if number % 3 == 2:
            producer.abort_transaction(CALL_S)
        else:
            producer.commit_transaction(CALL_S)
            wanted += values
    assert Counter(judge.values(topic, wanted=len(wanted))) == Counter(wanted)


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_continues_after_the_death_of_its_worker(
    module_daemon: SidecarDaemon,
    make_producer: Callable[..., Producer],
    new_topic: NewTopic,
    judge: Judge,
    is_commit: bool,
) -> None:
    """Records were acknowledged before the death, others are sent after it, to the same partitions: their sequences
    continue where the broker has them.
    """
    topic = new_topic(3)
    producer = make_producer()
    for value in (b"0-a", b"0-b"):
        producer.begin_transaction()
        producer.send(topic, value)
        producer.commit_transaction(CALL_S)
    producer.begin_transaction()
    first = [b"first-%d" % number for number in range(90)]
    for number, value in enumerate(first):
        producer.send(topic, value, partition=number % 3)
    producer.flush(CALL_S)
    kill_worker(module_daemon)
    second = [b"second-%d" % number for number in range(90)]
    for number, value in enumerate(second):
        producer.send(topic, value, partition=number % 3)
    if is_commit:
        producer.commit_transaction(CALL_S)
    else:
        producer.abort_transaction(CALL_S)
    producer.begin_transaction()
    producer.send(topic, b"last")
    producer.commit_transaction(CALL_S)
    wanted = [b"0-a", b"0-b", *(first + second if is_commit else []), b"last"]
    assert Counter(judge.values(topic, wanted=len(wanted))) == Counter(wanted)
    balanced(module_daemon)


def test_workers_die_under_many_transactions(
    module_daemon: SidecarDaemon,
    make_producer: Callable[..., Producer],
    new_topic: NewTopic,
    judge: Judge,
) -> None:
    """A transaction that cannot be continued is aborted, and says so: it is sent again by its program."""
    topic = new_topic(2)
    producer = make_producer()
    wanted: list[bytes] = []
    aborted = 0
    for number in range(12):
        values = [b"%d-%d" % (number, each) for each in range(40)]
        for _ in range(5):
            try:
                producer.begin_transaction()
                for each, value in enumerate(values):
                    producer.send(topic, value)
                    if each == 7 * number % 40 and number % 3 == 1:
                        kill_worker(module_daemon)
                producer.commit_transaction(CALL_S)
                wanted += values
                break
            except SidecarError as error:
                assert error.abortable, error
                producer.abort_transaction(CALL_S)
                aborted += 1
        else:
            raise AssertionError("five times in vain")
    assert Counter(judge.values(topic, wanted=len(wanted))) == Counter(wanted)
    assert aborted <= 4, "only at a death"
    balanced(module_daemon)


def test_a_transaction_survives_a_daemon_and_a_takeover(
    kafka: KafkaCluster,
    start_daemon: StartDaemon,
    new_topic: NewTopic,
    judge: Judge,
) -> None:
    topic = new_topic(3)
    daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.workers": 1})
    wanted: list[bytes] = []
    with Producer(run_dir=str(daemon.run_dir), client_name="deaths", transactional_id="survives") as producer:
        producer.init_transactions(CALL_S)
        for end in (daemon.kill_all, None):
            producer.begin_transaction()
            values = [b"%d-%d" % (len(wanted), number) for number in range(60)]
            for number, value in enumerate(values[:30]):
                producer.send(topic, value, partition=number % 3)
            producer.flush(CALL_S)
            if end is not None:
                end()
                daemon.start()
            else:
                daemon.spawn("--takeover")
                daemon.wait_ready()
            for number, value in enumerate(values[30:]):
                producer.send(topic, value, partition=number % 3)
            producer.commit_transaction(CALL_S)
            wanted += values
        assert Counter(judge.values(topic, wanted=len(wanted))) == Counter(wanted)
        balanced(daemon)


CLIENT: Final = """
import sys
from client_stub import Producer
run_dir, topic, name = sys.argv[1:4]
producer = Producer(run_dir=run_dir, client_name="killed", transactional_id=name)
producer.init_transactions(30)
producer.begin_transaction()
for number in range(100):
    producer.send(topic, b"killed-%d" % number)
producer.flush(30)
print("sent", flush=True)
sys.stdin.read()
"""


def test_the_transaction_of_a_killed_client_is_aborted_at_once(
    module_daemon: SidecarDaemon,
    make_producer: Callable[..., Producer],
    new_topic: NewTopic,
    judge: Judge,
) -> None:
    """Readers of its partitions wait for its end, not for its timeout."""
    topic, name = new_topic(1), f"killed-{next(_serial)}"
    words = [sys.executable, "-c", CLIENT, str(module_daemon.run_dir), topic, name]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"sent\n"
        other = make_producer()
        other.begin_transaction()
        other.send(topic, b"other")
        other.commit_transaction(CALL_S)
        client.kill()
    assert judge.values(topic, wanted=1) == [b"other"]
    again = make_producer(name)
    again.begin_transaction()
    again.send(topic, b"again")
    again.commit_transaction(CALL_S)
    assert Counter(judge.values(topic, wanted=2)) == Counter([b"other", b"again"])
    balanced(module_daemon)


def test_after_a_crash_of_the_host_nothing_of_an_open_transaction_is_sent(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, judge: Judge
) -> None:
    """With pool.sync = accept other accepted records come back from the disk; those of the transaction must not, as
    nothing would say where they belong.
    """
    topic = new_topic(1)
    with tempfile.TemporaryDirectory(prefix="ks-pool-", dir="/var/tmp") as folder:
        pool = Path(folder) / "pool"
        settings = {"daemon.workers": 1, "pool.path": str(pool), "pool.sync": "accept", "linger.ms": 60_000}
        daemon = start_daemon(kafka.bootstrap_servers, settings=settings)
        run_dir = str(daemon.run_dir)
        open_one = Producer(run_dir=run_dir, client_name="crash", transactional_id="crash")
        plain = Producer(run_dir=run_dir, client_name="plain")
        open_one.init_transactions(CALL_S)
        open_one.begin_transaction()
        open_one.send(topic, b"of the open transaction")
        plain.send(topic, b"plain")
        wait_until(lambda: metric(daemon, "kafka_sidecar_records_accepted_total") == 2, "both are accepted")
        daemon.kill_all()
        open_one.close(0)
        plain.close(0)
        for name in ("segment.json", "daemon.json"):
            (daemon.run_dir / name).unlink(missing_ok=True)
        pool.unlink()
        daemon.use(**{"linger.ms": 5})
        daemon.start()
        assert judge.values(topic, wanted=1) == [b"plain"]
        assert "ALARM" not in daemon.log_path.read_text()
        balanced(daemon)
