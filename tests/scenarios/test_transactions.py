"""TX: transactions against a simulated coordinator, for transaction.version 1 and 2: what a commit promises, errors of
every request, lost and late answers, timeouts, fencing, and clients that die.

``committed`` is what a consumer with isolation.level=read_committed reads.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from typing import Final

import pytest

from client_stub import Producer
from client_stub.errors import ProducerFenced, SidecarError, TransactionError, TransactionTimeout
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fake_coordinator import Member, Phase
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

from .harness import CONNECT_MS, FAST, METRIC, accounts_balance

pytestmark = pytest.mark.process

CALL_S: Final = 20.0
GONE_S: Final = 5.0
"""A dead client's transaction is aborted within 1 s on a quiet machine."""
END_VERSIONS: Final = {1: 4, 2: 5}
_serial = count(1)

COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
MESSAGE_TOO_LARGE: Final = 10
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_PRODUCER_ID_MAPPING: Final = 49
CONCURRENT_TRANSACTIONS: Final = 51
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
UNKNOWN_PRODUCER_ID: Final = 59
PRODUCER_FENCED: Final = 90
INVALID_MSG_SIZE: Final = 4
UNKNOWN_SERVER_ERROR: Final = -1


class Bed:
    """A fake cluster of two brokers with a finalised transaction.version, and a daemon on it."""

    def __init__(self, kafka: FakeBroker, daemon: SidecarDaemon) -> None:
        self.kafka = kafka
        self.daemon = daemon
        self.version = kafka.coordinator.transaction_version

    def topic(self, partitions: int = 1) -> str:
        name = f"tx-{next(_serial)}"
        self.kafka.create_topic(name, partitions)
        return name

    def producer(self, name: str = "", *, timeout_ms: int = 60_000, is_ready: bool = True) -> Producer:
        made = Producer(
            run_dir=str(self.daemon.run_dir),
            client_name="tx",
            transactional_id=name or f"id-{next(_serial)}",
            transaction_timeout_ms=timeout_ms,
            connect_timeout_ms=CONNECT_MS,
        )
        if is_ready:
            made.init_transactions(CALL_S)
        return made

    def committed(self, topic: str) -> list[bytes | None]:
        return [each.value for each in self.kafka.records(topic, committed=True)]

    def all(self, topic: str) -> list[bytes | None]:
        return [each.value for each in self.kafka.records(topic)]

    def ends(self) -> list[tuple[int, bool, int]]:
        """(version, whether it commits, epoch) of each EndTxn so far."""
        return [
            (each.version, bool(each.message.committed), int(each.message.producer_epoch))
            for each in self.kafka.requests(Api.END_TXN)
        ]


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def module_bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    settings = {**FAST, "linger.ms": 40_000, "request.timeout.ms": 2_000, "delivery.timeout.ms": 60_000}
    with (
        FakeBroker(nodes=2, transaction_version=int(request.param)) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon,
    ):
        bed = Bed(kafka, daemon)
        yield bed
        kafka.clear_rules()
        accounts_balance(daemon)
        assert not kafka.bad_batches


@pytest.fixture
def bed(module_bed: Bed) -> Iterator[Bed]:
    yield module_bed
    module_bed.kafka.clear_rules()
    module_bed.kafka.move_coordinator(1)
    module_bed.kafka.coordinator.members.clear()


def run(bed: Bed, producer: Producer, topic: str, *values: bytes, commit: bool = True) -> None:
    """One transaction of these records."""
    producer.begin_transaction()
    for value in values:
        producer.send(topic, value)
    end(producer, commit=commit)


def end(producer: Producer, *, commit: bool, timeout_s: float = CALL_S) -> None:
    (producer.commit_transaction if commit else producer.abort_transaction)(timeout_s)


ENDS: Final = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])


def test_tx_01_committed_records_are_read_and_aborted_ones_are_not(bed: Bed) -> None:
    topic = bed.topic(4)
    with bed.producer() as producer:
        kept = []
        for number in range(12):
            commit = number % 3 != 1
            values = [b"%d-%d" % (number, index) for index in range(50)]
            producer.begin_transaction()
            sent = [producer.send(topic, value, partition=index % 4) for index, value in enumerate(values)]
            producer.flush(CALL_S)
            end(producer, commit=commit)
            assert all(each.done() for each in sent), "every outcome is told before the end"
            kept += values if commit else []
    assert sorted(map(bytes, filter(None, bed.committed(topic)))) == sorted(kept)
    assert len(bed.all(topic)) == 600


def test_tx_03_second_producer_of_the_daemon_fences_the_first(bed: Bed) -> None:
    topic, name = bed.topic(), f"id-{next(_serial)}"
    with bed.producer(name) as second_last, bed.producer(name, is_ready=False) as last:
        second_last.begin_transaction()
        second_last.send(topic, b"lost").result(CALL_S)
        last.init_transactions(CALL_S)
        for call in (
            lambda: second_last.commit_transaction(CALL_S),
            second_last.begin_transaction,
            lambda: second_last.send_offsets_to_transaction({("in", 0): 1}, "group", CALL_S),
            lambda: second_last.send(topic, b"late").result(CALL_S),
        ):
            with pytest.raises(SidecarError) as caught:
                call()
            assert caught.value.fatal, caught.value
            assert not caught.value.retriable
            assert not caught.value.abortable
        run(bed, last, topic, b"kept")
        assert bed.committed(topic) == [b"kept"]


def test_tx_03_producer_of_another_daemon_fences_the_first(bed: Bed) -> None:
    topic, name = bed.topic(), f"id-{next(_serial)}"
    with bed.producer(name) as producer:
        producer.begin_transaction()
        producer.send(topic, b"lost").result(CALL_S)
        while bed.kafka.coordinator.init(name, 60_000, -1, -1).code:
            pass
        with pytest.raises(ProducerFenced) as caught:
            producer.commit_transaction(CALL_S)
        assert caught.value.fatal
        assert bed.committed(topic) == []


def test_tx_04_transaction_that_timed_out_is_not_continued(bed: Bed) -> None:
    """Its second record is refused, nothing of it is seen, and with version 2 the next one works after an abort."""
    topic = bed.topic()
    with bed.producer(timeout_ms=200) as producer:
        producer.begin_transaction()
        producer.send(topic, b"first").result(CALL_S)
        wait_until(
            lambda: bed.kafka.records(topic, committed=True) == [] and not _is_open(bed, topic),
            "it timed out",
        )
        with pytest.raises(SidecarError):
            producer.send(topic, b"second").result(CALL_S)
        with pytest.raises(TransactionError):
            producer.commit_transaction(CALL_S)
        assert bed.all(topic) == [b"first"]
        assert bed.committed(topic) == []
        if bed.version < 2:
            return
        producer.abort_transaction(CALL_S)
        producer.begin_transaction()
        producer.send(topic, b"third")
        producer.commit_transaction(CALL_S)
        assert bed.committed(topic) == [b"third"]


def _is_open(bed: Bed, topic: str) -> bool:
    return bool(bed.kafka._topics[topic][0].open)


def test_tx_04_timeout_above_the_brokers_is_named_at_init(bed: Bed) -> None:
    with bed.producer(timeout_ms=900_001, is_ready=False) as producer:
        with pytest.raises(TransactionError, match=r"transaction\.max\.timeout\.ms") as caught:
            producer.init_transactions(CALL_S)
        assert caught.value.fatal


def test_tx_05_init_that_timed_out_continues(bed: Bed) -> None:
    rule = bed.kafka.add(on(Api.INIT_PRODUCER_ID, times=ALWAYS).refuse(COORDINATOR_LOAD_IN_PROGRESS))
    with bed.producer(is_ready=False) as producer:
        with pytest.raises(TransactionTimeout) as caught:
            producer.init_transactions(0.1)
        assert caught.value.retriable
        rule.remove()
        producer.init_transactions(CALL_S)
        topic = bed.topic()
        run(bed, producer, topic, b"kept")
        assert bed.committed(topic) == [b"kept"]


def test_tx_06_commit_sends_all_without_waiting_for_linger(bed: Bed) -> None:
    """Produce comes before EndTxn, and every outcome is there when the commit returns."""
    topic = bed.topic()
    with bed.producer() as producer:
        producer.begin_transaction()
        sent = [producer.send(topic, b"%d" % number) for number in range(10)]
        producer.commit_transaction(CALL_S)
        assert all(each.done() for each in sent)
        assert len(bed.committed(topic)) == 10


@pytest.mark.parametrize("code", [MESSAGE_TOO_LARGE, TOPIC_AUTHORIZATION_FAILED])
def test_tx_07_commit_fails_when_a_record_failed_that_nobody_looked_at(bed: Bed, code: int) -> None:
    topic, other = bed.topic(), bed.topic()
    with bed.producer() as producer:
        bed.kafka.add(on(Api.PRODUCE, topic=topic, times=ALWAYS).refuse(code))
        producer.begin_transaction()
        producer.send(other, b"hidden")
        producer.send(topic, b"refused")
        before = len([each for each in bed.ends() if each[1]])
        with pytest.raises(TransactionError) as caught:
            producer.commit_transaction(CALL_S)
        assert caught.value.abortable
        assert not caught.value.fatal
        assert len([each for each in bed.ends() if each[1]]) == before, "no commit was sent"
        producer.abort_transaction(CALL_S)
        bed.kafka.clear_rules()
        run(bed, producer, other, b"kept")
        assert bed.committed(other) == [b"kept"]


@ENDS
def test_tx_08_empty_transaction_asks_nobody(bed: Bed, *, commit: bool) -> None:
    with bed.producer() as producer:
        before = len(bed.ends())
        producer.begin_transaction()
        end(producer, commit=commit)
        assert len(bed.ends()) == before


def test_tx_08_abort_after_failed_records(bed: Bed) -> None:
    """With version 2 a broker may have added the partition, so the abort is sent; before, nothing was written."""
    topic = bed.topic()
    bed.kafka.add(on(Api.PRODUCE, topic=topic, times=ALWAYS).refuse(MESSAGE_TOO_LARGE))
    with bed.producer() as producer:
        producer.begin_transaction()
        with pytest.raises(SidecarError):
            producer.send(topic, b"refused").result(CALL_S)
        producer.abort_transaction(CALL_S)
        assert bed.ends()[-1][:2] == (END_VERSIONS[bed.version], False)


@ENDS
@pytest.mark.parametrize("flushes", [True, False], ids=["flushed", "unflushed"])
@pytest.mark.parametrize(
    ("codes", "effect"),
    [
        ((COORDINATOR_NOT_AVAILABLE,) * 2, "none"),
        ((NOT_COORDINATOR,) * 2, "none"),
        ((COORDINATOR_LOAD_IN_PROGRESS,), "none"),
        ((CONCURRENT_TRANSACTIONS,) * 3, "none"),
        ((UNKNOWN_PRODUCER_ID,), "abortable"),
        ((INVALID_PRODUCER_ID_MAPPING,), "fatal"),
        ((INVALID_PRODUCER_EPOCH,), "fatal"),
        ((PRODUCER_FENCED,), "fatal"),
        ((TRANSACTIONAL_ID_AUTHORIZATION_FAILED,), "fatal"),
        ((GROUP_AUTHORIZATION_FAILED,), "abortable"),
        ((INVALID_MSG_SIZE,), "abortable"),
    ],
)
def test_tx_09_errors_of_the_end(
    bed: Bed, codes: tuple[int, ...], effect: str, *, commit: bool, flushes: bool
) -> None:
    topic = bed.topic()
    if codes == (UNKNOWN_PRODUCER_ID,) and not commit:
        effect = "none"  # by a new epoch
    producer = bed.producer()
    try:
        producer.begin_transaction()
        producer.send(topic, b"first")
        if flushes:
            producer.flush(CALL_S)
        elif not commit:
            producer.send(topic, b"more").result(CALL_S)  # else nothing was sent that must be aborted
        bed.kafka.add(on(Api.END_TXN).refuse(*codes))
        if effect == "none":
            end(producer, commit=commit)
            expected = [b"first"] if commit else []
        else:
            with pytest.raises(TransactionError) as caught:
                end(producer, commit=commit)
            assert (caught.value.abortable, caught.value.fatal) == (effect == "abortable", effect == "fatal")
            assert not caught.value.retriable
            expected = []
        if effect != "fatal":
            if effect == "abortable":
                producer.abort_transaction(CALL_S)
            run(bed, producer, topic, b"next")
            assert bed.committed(topic) == [*expected, b"next"]
    finally:
        producer.close(0)


@ENDS
def test_tx_10_end_that_timed_out_is_completed_by_the_same_call(bed: Bed, *, commit: bool) -> None:
    topic = bed.topic()
    with bed.producer() as producer:
        producer.begin_transaction()
        producer.send(topic, b"first").result(CALL_S)
        rule = bed.kafka.add(on(Api.END_TXN, times=ALWAYS).refuse(COORDINATOR_LOAD_IN_PROGRESS))
        with pytest.raises(TransactionTimeout) as caught:
            end(producer, commit=commit, timeout_s=0.1)
        assert caught.value.retriable
        with pytest.raises(TransactionError, match=r"."):
            end(producer, commit=not commit, timeout_s=0.1)
        rule.remove()
        end(producer, commit=commit)
        assert bed.committed(topic) == ([b"first"] if commit else [])
        run(bed, producer, topic, b"next")


@ENDS
@pytest.mark.parametrize("way", ["cut", "cut_answer"])
def test_tx_13_lost_end_is_repeated_as_it_was(bed: Bed, way: str, *, commit: bool) -> None:
    """Before version 2 the next transaction has a new epoch, so that a late copy cannot end it."""
    topic = bed.topic()
    with bed.producer() as producer:
        before = len(bed.ends())
        producer.begin_transaction()
        producer.send(topic, b"first").result(CALL_S)
        bed.kafka.add(on(Api.END_TXN).cut() if way == "cut" else on(Api.END_TXN).cut_answer())
        end(producer, commit=commit)
        first, again = bed.ends()[before:]
        assert first == again == (END_VERSIONS[bed.version], commit, first[2])
        run(bed, producer, topic, b"next")
        assert bed.ends()[-1][2] == first[2] + 1
        assert bed.committed(topic) == [*([b"first"] if commit else []), b"next"]


@ENDS
def test_tx_13_late_end_does_not_end_the_next_transaction(bed: Bed, *, commit: bool) -> None:
    """The first EndTxn waits in the network for longer than request.timeout.ms; its copy ends the transaction, and it
    arrives in the midst of the next one.
    """
    topic = bed.topic()
    with bed.producer() as producer:
        producer.begin_transaction()
        producer.send(topic, b"first").result(CALL_S)
        late = bed.kafka.add(on(Api.END_TXN).hold())
        end(producer, commit=commit)
        producer.begin_transaction()
        producer.send(topic, b"second").result(CALL_S)
        seen = len(bed.all(topic))
        late.release()
        producer.send(topic, b"third").result(CALL_S)
        assert len(bed.all(topic)) == seen + 1
        producer.abort_transaction(CALL_S)
        assert bed.committed(topic) == ([b"first"] if commit else [])


def test_tx_13_commit_with_an_unknown_outcome_is_not_reported_as_one(bed: Bed) -> None:
    topic = bed.topic()
    with bed.producer() as producer:
        producer.begin_transaction()
        producer.send(topic, b"first").result(CALL_S)
        bed.kafka.add(on(Api.END_TXN).refuse(UNKNOWN_SERVER_ERROR))
        with pytest.raises(TransactionError) as caught:
            producer.commit_transaction(CALL_S)
        assert caught.value.abortable
        producer.abort_transaction(CALL_S)
        run(bed, producer, topic, b"second")
        assert bed.committed(topic) == [b"second"]


def test_tx_14_refused_partition_keeps_nobody_waiting(bed: Bed) -> None:
    """One partition is written, another refused: the abort reaches the coordinator, so readers of the first go on."""
    topic, secret = bed.topic(), bed.topic()
    with bed.producer() as producer:
        producer.begin_transaction()
        producer.send(topic, b"hidden").result(CALL_S)
        api = Api.ADD_PARTITIONS_TO_TXN if bed.version < 2 else Api.PRODUCE
        bed.kafka.add(on(api, times=ALWAYS).refuse(TOPIC_AUTHORIZATION_FAILED))
        with pytest.raises(SidecarError):
            producer.send(secret, b"refused").result(CALL_S)
        bed.kafka.clear_rules()
        with pytest.raises(TransactionError) as caught:
            producer.commit_transaction(CALL_S)
        assert caught.value.abortable
        producer.abort_transaction(CALL_S)
        assert bed.committed(topic) == []
        assert not _is_open(bed, topic)


def test_tx_15_offsets_are_committed_with_the_transaction(bed: Bed) -> None:
    topic, group = bed.topic(), f"group-{next(_serial)}"
    with bed.producer() as producer:
        for commit, offset in ((True, 110), (False, 220)):
            producer.begin_transaction()
            producer.send(topic, b"%d" % offset)
            producer.send_offsets_to_transaction({("in", 0): offset}, group, CALL_S)
            assert all(each.offset != offset for each in bed.kafka.coordinator.committed.values())
            end(producer, commit=commit)
        assert bed.kafka.coordinator.committed[group, "in", 0].offset == 110


def test_tx_15_stale_consumer_makes_the_transaction_abortable(bed: Bed) -> None:
    topic, group = bed.topic(), f"group-{next(_serial)}"
    bed.kafka.coordinator.members[group] = Member(7, "another", None)
    with bed.producer() as producer:
        producer.begin_transaction()
        producer.send(topic, b"hidden")
        with pytest.raises(TransactionError) as caught:
            producer.send_offsets_to_transaction({("in", 0): 1}, group, CALL_S)
        assert caught.value.abortable
        producer.abort_transaction(CALL_S)
        run(bed, producer, topic, b"next")
        assert bed.committed(topic) == [b"next"]


def test_tx_16_forgotten_id_is_fatal_and_a_new_producer_works(bed: Bed) -> None:
    topic, name = bed.topic(), f"id-{next(_serial)}"
    with bed.producer(name) as producer:
        run(bed, producer, topic, b"first")
        bed.kafka.coordinator.forget(name)
        producer.begin_transaction()
        with pytest.raises(SidecarError):
            producer.send(topic, b"second").result(CALL_S)
        with pytest.raises(TransactionError) as caught:
            producer.commit_transaction(CALL_S)
        assert caught.value.fatal
    with bed.producer(name) as producer:
        run(bed, producer, topic, b"third")
    assert bed.committed(topic) == [b"first", b"third"]


def test_tx_16_restarted_producer_has_the_next_epoch_of_its_id(bed: Bed) -> None:
    topic, name = bed.topic(), f"id-{next(_serial)}"
    identities = []
    for number in range(3):
        with bed.producer(name) as producer:
            run(bed, producer, topic, b"%d" % number)
            message = bed.kafka.requests(Api.END_TXN)[-1].message
            identities.append((int(message.producer_id), int(message.producer_epoch)))
    assert identities == sorted(set(identities)), "each begins with a later epoch"
    assert len({producer_id for producer_id, _ in identities}) == 1
    assert bed.committed(topic) == [b"0", b"1", b"2"]


def test_moved_coordinator_is_found_again(bed: Bed) -> None:
    topic = bed.topic()
    with bed.producer() as producer:
        run(bed, producer, topic, b"first")
        bed.kafka.move_coordinator(2)
        run(bed, producer, topic, b"second")
        bed.kafka.move_coordinator(1)
        run(bed, producer, topic, b"third", commit=False)
        assert bed.committed(topic) == [b"first", b"second"]


CHILD: Final = """
import sys
from client_stub import Producer
producer = Producer(run_dir=sys.argv[1], client_name="child", transactional_id=sys.argv[2])
producer.init_transactions(30)
producer.begin_transaction()
producer.send(sys.argv[3], b"of the dead").result(30)
print("sent", flush=True)
sys.stdin.read()
"""


def test_transaction_of_a_killed_client_is_aborted(bed: Bed) -> None:
    topic, name = bed.topic(), f"id-{next(_serial)}"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(bed.daemon.run_dir), name, topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"sent\n"
    with bed.producer() as other:
        run(bed, other, topic, b"waits")
        assert bed.committed(topic) == [], "readers wait for the open transaction"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        wait_until(lambda: bed.committed(topic) == [b"waits"], "the abort", timeout_s=GONE_S)
    assert bed.kafka.coordinator.transactions[name].phase is Phase.ABORTED or bed.version == 2


def test_metrics_count_transactions_and_tell_the_oldest(bed: Bed) -> None:
    def value(name: str) -> float:
        return metric(bed.daemon, f"{METRIC}{name}")

    topic, name = bed.topic(), f"id-{next(_serial)}"
    names = ("transactions_committed_total", "transactions_aborted_total", "transactions_fenced_total")
    with bed.producer(name) as producer:
        # Numbers are stored now and then: one more commit that is counted shows that they are of now.
        committed = value(names[0])
        run(bed, producer, topic, b"first")
        wait_until(lambda: value(names[0]) > committed and not value("transactions_open"), "numbers of now")
        before = [value(each) for each in names]
        run(bed, producer, topic, b"kept")
        run(bed, producer, topic, b"aborted", commit=False)
        producer.begin_transaction()
        producer.send(topic, b"lost").result(CALL_S)
        wait_until(lambda: value("transaction_oldest_seconds") > 0, "the age of the open one")
        assert value("transactions_open") == 1
        while bed.kafka.coordinator.init(name, 60_000, -1, -1).code:
            pass
        with pytest.raises(ProducerFenced):
            producer.commit_transaction(CALL_S)
        wait_until(
            lambda: value("transactions_open") == value("transaction_oldest_seconds") == 0, "none to be open"
        )
        expected = [each + 1 for each in before]
        wait_until(lambda: [value(each) for each in names] == expected, "one more of each")


def test_closed_producers_leave_no_lane(bed: Bed) -> None:
    """More of them, one after the other, than a worker has lanes."""
    topic = bed.topic()
    for _ in range(300):
        with bed.producer() as producer:
            run(bed, producer, topic, b"one")
    assert len(bed.committed(topic)) == 300
