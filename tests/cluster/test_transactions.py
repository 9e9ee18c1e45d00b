"""TX on real brokers: the oldest and the newest Kafka that we speak for, and each transaction.version.

Two consumers that we did not write read back, with isolation.level=read_committed. Version 0 on a 4.x broker is the
trap: it offers the requests of version 2, and never ends a transaction that uses them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import count
from typing import Final

import pytest
from kafka import KafkaConsumer, TopicPartition

from client_stub import Producer
from client_stub.errors import ProducerFenced, SidecarError, TransactionError
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.waiting import wait_until
from tests.cluster.real_bed import CALL_S, CONNECT_MS, RealBed

pytestmark = [pytest.mark.process, pytest.mark.kafka, pytest.mark.unmeasured]

_serial = count(1)


def test_tx_01_committed_records_are_read_and_aborted_ones_are_not(real: RealBed) -> None:
    topic, partitions = real.topic(4), 4
    kept: list[bytes] = []
    sent = 0
    with real.producer() as producer:
        producer.init_transactions(CALL_S)
        for number in range(9):
            commit = number % 3 != 1
            values = [b"%d-%d" % (number, index) for index in range(100)]
            producer.begin_transaction()
            for index, value in enumerate(values):
                producer.send(topic, value, partition=index % partitions)
            producer.flush(CALL_S)
            (producer.commit_transaction if commit else producer.abort_transaction)(CALL_S)
            kept += values if commit else []
            sent += len(values)
    assert sorted(real.read(topic, partitions)) == sorted(kept)
    assert sorted(real.read_by_kafka_python(topic, partitions)) == sorted(kept)
    assert len(real.read(topic, partitions, committed=False)) == sent


@pytest.mark.parametrize("other_daemon", [False, True], ids=["same-daemon", "other-daemon"])
def test_tx_03_second_producer_fences_the_first(real: RealBed, *, other_daemon: bool) -> None:
    topic, name = real.topic(), f"id-{next(_serial)}"
    with SidecarDaemon(real.kafka.bootstrap_servers, settings={"daemon.workers": 1}) as another:
        first = real.producer(name)
        second = real.producer(name, daemon=another if other_daemon else None)
        try:
            first.init_transactions(CALL_S)
            first.begin_transaction()
            first.send(topic, b"lost").result(CALL_S)
            second.init_transactions(CALL_S)
            with pytest.raises(ProducerFenced) as caught:
                first.commit_transaction(CALL_S)
            assert caught.value.fatal
            second.begin_transaction()
            second.send(topic, b"kept")
            second.commit_transaction(CALL_S)
            assert real.read(topic) == [b"kept"]
        finally:
            first.close(0)
            second.close(CALL_S)


def test_tx_04_transaction_that_timed_out_is_not_continued(real: RealBed) -> None:
    topic = real.topic()
    producer = real.producer(timeout_ms=1_000)
    try:
        producer.init_transactions(CALL_S)
        producer.begin_transaction()
        producer.send(topic, b"first").result(CALL_S)
        with real.producer() as other:
            other.init_transactions(CALL_S)
            other.begin_transaction()
            other.send(topic, b"other")
            other.commit_transaction(CALL_S)
        wait_until(lambda: real.read(topic) == [b"other"], "the broker to abort it", timeout_s=CALL_S)
        with pytest.raises(SidecarError):
            producer.send(topic, b"second").result(CALL_S)
        with pytest.raises(TransactionError):
            producer.commit_transaction(CALL_S)
        assert real.read(topic, committed=False) == [b"first", b"other"]
    finally:
        producer.close(0)


def test_tx_15_offsets_are_committed_with_the_transaction(real: RealBed) -> None:
    source, group = real.topic(), f"group-{next(_serial)}"
    consumer = KafkaConsumer(bootstrap_servers=real.kafka.bootstrap_servers.split(","), group_id=group)
    try:
        with real.producer() as producer:
            producer.init_transactions(CALL_S)
            for commit, offset in ((True, 110), (False, 220)):
                producer.begin_transaction()
                producer.send_offsets_to_transaction({(source, 0): offset}, group, CALL_S)
                (producer.commit_transaction if commit else producer.abort_transaction)(CALL_S)
                assert consumer.committed(TopicPartition(source, 0)) == 110
    finally:
        consumer.close()


CHILD: Final = """
import sys
from client_stub import Producer
producer = Producer(run_dir=sys.argv[1], client_name="child", transactional_id=sys.argv[2], connect_timeout_ms=60_000)
producer.init_transactions(60)
producer.begin_transaction()
producer.send(sys.argv[3], b"of the dead").result(60)
print("sent", flush=True)
sys.stdin.read()
"""


def test_transaction_of_a_killed_client_holds_up_no_reader(real: RealBed) -> None:
    topic = real.topic()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(real.daemon.run_dir), f"id-{next(_serial)}", topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"sent\n"
    with real.producer() as other:
        other.init_transactions(CALL_S)
        other.begin_transaction()
        other.send(topic, b"waits")
        other.commit_transaction(CALL_S)
    assert real.read(topic) == []
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    wait_until(lambda: real.read(topic) == [b"waits"], "the abort", timeout_s=CALL_S / 2)


COPY: Final = """
import sys
from confluent_kafka import Consumer
from client_stub import Producer
run_dir, servers, source, target, group, total = sys.argv[1:]
consumer = Consumer({
    "bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest",
    "isolation.level": "read_committed", "session.timeout.ms": 6000,
})
consumer.subscribe([source])
producer = Producer(run_dir=run_dir, client_name="copy", transactional_id=group, connect_timeout_ms=60_000)
producer.init_transactions(60)
done = -1
while done < int(total) - 1:
    messages = consumer.consume(150, 0.5)
    messages = [each for each in messages if each.error() is None]
    if not messages:
        continue
    producer.begin_transaction()
    for each in messages:
        producer.send(target, each.value())
    done = int(messages[-1].value())
    producer.send_offsets_to_transaction({(source, 0): messages[-1].offset() + 1}, group, 60)
    producer.commit_transaction(60)
    print(done, flush=True)
"""


def test_tx_18_copy_job_whose_process_is_killed(real: RealBed) -> None:
    """Its output is its input: nothing lost, nothing doubled, in order, whatever moment it was killed at."""
    source, target, group, total = real.topic(), real.topic(), f"copy-{next(_serial)}", 3_000
    with Producer(
        run_dir=str(real.daemon.run_dir), client_name="fill", connect_timeout_ms=CONNECT_MS
    ) as fill:
        fill.send_many(source, [(None, b"%d" % number) for number in range(total)])
    words = [str(real.daemon.run_dir), real.kafka.bootstrap_servers, source, target, group, str(total)]
    for steps in (2, 3, 2, None):
        child = subprocess.Popen([sys.executable, "-c", COPY, *words], stdout=subprocess.PIPE)
        assert child.stdout is not None
        try:
            lines = iter(child.stdout.readline, b"")
            for index, _ in enumerate(lines):
                if index == steps:
                    break
        finally:
            if steps is not None:
                os.kill(child.pid, signal.SIGKILL)
            assert child.wait() in (0, -signal.SIGKILL)
    assert real.read(target) == [b"%d" % number for number in range(total)]
