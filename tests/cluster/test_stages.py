"""ST on real brokers, with each transaction.version, over the run directory and over tcp://: stages of several
processes are one transaction, whole or not at all.

A consumer that we did not write reads back, with both isolation levels.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import count
from typing import Final, NamedTuple

import pytest

from client_stub import Producer
from client_stub.errors import ProducerFenced, TransactionError
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import wait_transactions_ended
from sidecar.tools.testing.tcp_access import TcpAccess
from sidecar.tools.testing.waiting import wait_until
from tests.cluster.real_bed import CALL_S, RealBed

pytestmark = [pytest.mark.process, pytest.mark.kafka, pytest.mark.unmeasured]

GONE_S: Final = 5.0
"""A dead client's stage is dropped within 1 s on a quiet machine."""
NAME: Final = "st"
_serial = count(1)

STAGER: Final = textwrap.dedent("""
    import os, sys
    from client_stub import Producer
    address, key_file, transactional_id, number, topic, rows, seals = sys.argv[1:]
    producer = Producer(address, "st", curve_key_file=key_file or None, connect_timeout_ms=60_000)
    stage = producer.stage(transactional_id, int(number), owner="run-a")
    for begin in range(0, int(rows), 500):
        many = range(begin, min(begin + 500, int(rows)))
        stage.send_many(topic, [(b"%d" % (row % 16), b"%s-%d" % (number.encode(), row)) for row in many])
    if seals == "seal":
        print(stage.seal(60).hex(), flush=True)
    else:
        stage._engine.flush(60, "accepted")
        print("accepted", flush=True)
        sys.stdin.read()
    os._exit(0)
""")


class Way(NamedTuple):
    """How clients reach the daemon."""

    daemon: SidecarDaemon
    address: str
    key_file: str

    def producer(self, transactional_id: str | None = None) -> Producer:
        producer = Producer(
            self.address,
            NAME,
            curve_key_file=self.key_file or None,
            transactional_id=transactional_id,
            connect_timeout_ms=CALL_S * 1e3,
        )
        if transactional_id is not None:
            producer.init_transactions(CALL_S)
        return producer

    def stager(
        self, transactional_id: str, number: int, topic: str, rows: int, seals: str = "seal"
    ) -> subprocess.Popen[str]:
        """A process that fills a stage."""
        words = [self.address, self.key_file, transactional_id, str(number), topic, str(rows), seals]
        return subprocess.Popen(
            [sys.executable, "-c", STAGER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def staged(self, transactional_id: str, number: int, topic: str, rows: int) -> bytes:
        """The token of a stage that this process has filled."""
        with self.producer() as producer, producer.stage(transactional_id, number, "run-a") as stage:
            stage.send_many(
                topic, [(b"%d" % (row % 16), value) for row, value in enumerate(values(number, rows))]
            )
            return stage.seal(CALL_S)


@pytest.fixture(scope="module")
def daemon_and_access(
    real: RealBed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SidecarDaemon, TcpAccess]]:
    access = TcpAccess(tmp_path_factory.mktemp("tcp"), [NAME], workers=1, local_uid=os.getuid())
    # Less than a commit is waited for: a record for a partition that is not there fails after it.
    settings = {**access.settings, "daemon.workers": 1, "max.block.ms": 5_000}
    with SidecarDaemon(real.kafka.bootstrap_servers, settings=settings, config=access.config) as daemon:
        yield daemon, access


@pytest.fixture(params=["run_dir", "tcp"])
def way(request: pytest.FixtureRequest, daemon_and_access: tuple[SidecarDaemon, TcpAccess]) -> Way:
    daemon, access = daemon_and_access
    if request.param == "tcp":
        return Way(daemon, access.address, str(access.key_file))
    return Way(daemon, str(daemon.run_dir), "")


@pytest.fixture
def local(daemon_and_access: tuple[SidecarDaemon, TcpAccess]) -> Way:
    daemon, _ = daemon_and_access
    return Way(daemon, str(daemon.run_dir), "")


def said(process: subprocess.Popen[str]) -> str:
    """The line that the process prints."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "the process said nothing"
    return line


def values(number: int, rows: int) -> list[bytes]:
    return [b"%d-%d" % (number, row) for row in range(rows)]


def in_order(found: list[bytes], number: int) -> bool:
    """Whether the records of each key, which are in one partition, are in the order in which they were staged."""
    rows = [int(value.split(b"-")[1]) for value in found if value.startswith(b"%d-" % number)]
    return all((mine := [row for row in rows if row % 16 == key]) == sorted(mine) for key in range(16))


def test_st_01_three_of_four_stages_of_four_processes(real: RealBed, way: Way) -> None:
    topic, rows, partitions = real.topic(4), 25_000, 4
    with way.producer(topic) as producer:
        processes = [way.stager(topic, number, topic, rows) for number in (1, 2, 3, 4)]
        tokens = [bytes.fromhex(said(process)) for process in processes]
        producer.begin_transaction()
        producer.send(topic, b"before", partition=0)
        inclusion = producer.include([tokens[0], tokens[2], tokens[3]], CALL_S)
        producer.send(topic, b"after", partition=0)
        producer.commit_transaction(CALL_S)
        assert inclusion.rows == 3 * rows
        assert sum(each.rows for each in inclusion.partitions.values()) == 3 * rows
        wanted = sorted([b"before", b"after", *values(1, rows), *values(3, rows), *values(4, rows)])
        wait_transactions_ended(
            real.kafka.bootstrap_servers, topic
        )  # a commit is told before the last marker
        for committed in (True, False):
            found = real.read(topic, partitions, committed=committed)
            assert sorted(found) == wanted
            assert all(in_order(found, number) for number in (1, 3, 4))
        assert producer.drop_stages([tokens[1]], timeout=CALL_S) == 1
        assert producer.drop_stages(up_to=100, timeout=CALL_S) == 0
    for process in processes:
        process.communicate(timeout=CALL_S)


def test_st_01_stages_interleaved_submission_by_submission(real: RealBed, way: Way) -> None:
    topic = real.topic()
    with way.producer(topic) as producer, way.producer() as stager:
        stages = [stager.stage(topic, number, "run-a") for number in (1, 2, 3)]
        for row in range(0, 300, 10):
            for stage in stages:
                stage.send_many(topic, [(b"k", value) for value in values(stage.number, 300)[row : row + 10]])
                stage._engine.flush(CALL_S, "accepted")  # ends its submission
        tokens = [stage.seal(CALL_S) for stage in stages]
        with producer.transaction():
            producer.include([tokens[2], tokens[0]], CALL_S)
    found = real.read(topic, committed=False)
    assert sorted(found) == sorted(values(1, 300) + values(3, 300))
    for number in (1, 3):
        assert [value for value in found if value.startswith(b"%d-" % number)] == values(number, 300)


def test_st_02_worker_is_killed_between_the_steps(real: RealBed, local: Way) -> None:
    topic, rows = real.topic(2), 3_000
    with local.producer(topic) as producer:
        for turn in range(2):
            tokens = [local.staged(topic, 10 * turn + number, topic, rows) for number in (1, 2)]
            kill_worker(local.daemon)
            producer.begin_transaction()
            assert producer.include(tokens, CALL_S).rows == 2 * rows
            kill_worker(local.daemon)
            producer.commit_transaction(CALL_S)
    wanted = [value for number in (1, 2, 11, 12) for value in values(number, rows)]
    wait_transactions_ended(real.kafka.bootstrap_servers, topic)
    for committed in (True, False):
        assert sorted(real.read(topic, 2, committed=committed)) == sorted(wanted)


def kill_worker(daemon: SidecarDaemon) -> None:
    (pid,) = daemon.ready_pids()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: daemon.ready_pids() not in ([pid], []), "another worker")


def test_st_03_process_that_dies_before_the_seal_leaves_nothing(real: RealBed, local: Way) -> None:
    topic = real.topic()
    process = local.stager(topic, 1, topic, 1_000, "accepted")
    assert said(process) == "accepted"
    wait_until(lambda: metric(local.daemon, "kafka_sidecar_stages_open") == 1, "the open stage")
    process.kill()
    process.communicate(timeout=CALL_S)
    wait_until(lambda: metric(local.daemon, "kafka_sidecar_stages_open") == 0, "its end", timeout_s=GONE_S)
    assert real.read(topic, committed=False) == []


def test_st_03_sealed_stage_survives_its_process_its_daemon_and_a_takeover(real: RealBed) -> None:
    topic = real.topic()
    with SidecarDaemon(real.kafka.bootstrap_servers, settings={"daemon.workers": 1}) as daemon:
        way = Way(daemon, str(daemon.run_dir), "")
        process = way.stager(topic, 1, topic, 1_000)
        tokens = [bytes.fromhex(said(process))]
        process.communicate(timeout=CALL_S)
        daemon.kill_all()
        daemon.start()
        tokens.append(way.staged(topic, 2, topic, 1_000))
        daemon.take_over()
        with way.producer(topic) as producer, producer.transaction():
            assert producer.include(tokens, CALL_S).rows == 2_000
    assert sorted(real.read(topic, committed=False)) == sorted(values(1, 1_000) + values(2, 1_000))


def test_st_04_wrong_tokens_are_refused_and_the_next_transaction_works(real: RealBed, way: Way) -> None:
    topic = real.topic()
    first, second, third = (way.staged(topic, number, topic, 10) for number in (1, 2, 3))
    others = way.staged(topic + "-other", 4, topic, 10)
    with way.producer(topic) as producer:
        with producer.transaction():
            producer.include([first], CALL_S)
        assert producer.drop_stages([second], timeout=CALL_S) == 1
        for tokens in ([first], [second], [third, third], [third, b"no token"], [third, others]):
            producer.begin_transaction()
            with pytest.raises(TransactionError) as refused:
                producer.include(tokens, CALL_S)
            assert refused.value.abortable and "\n" not in str(refused.value)
            producer.abort_transaction(CALL_S)
        producer.begin_transaction()
        producer.include([third], CALL_S)
        with pytest.raises(TransactionError, match="one include"):
            producer.include([first], CALL_S)
        producer.commit_transaction(CALL_S)
    assert sorted(real.read(topic, committed=False)) == sorted(values(1, 10) + values(3, 10))


def test_st_07_second_producer_fences_the_one_that_has_included(real: RealBed, local: Way) -> None:
    topic = real.topic()
    token = local.staged(topic, 1, topic, 2_000)
    first = local.producer(topic)
    first.begin_transaction()
    first.include([token], CALL_S)
    with local.producer(topic) as second:
        with pytest.raises(ProducerFenced):
            first.commit_transaction(CALL_S)
        with second.transaction():
            second.send(topic, b"second")
    first.close(0)
    assert real.settled(topic) == [b"second"]


def test_st_08_record_that_the_broker_refuses_fails_the_commit_by_name(real: RealBed, local: Way) -> None:
    topic, small = real.topic(), f"small-{next(_serial)}"
    real.kafka.create_topics({small: 1}, config={"max.message.bytes": "2000"})
    with local.producer(topic) as producer, local.producer() as stager:
        with stager.stage(topic, 1) as stage:
            stage.send(topic, b"good")
            stage.send(small, os.urandom(10_000))
            token = stage.seal(CALL_S)
        _commit_fails(producer, [token], small)
        with stager.stage(topic, 2) as stage:
            stage.send(topic, b"good")
            stage.send(topic, b"no such partition", partition=77)
            token = stage.seal(CALL_S)
        _commit_fails(producer, [token], topic)
        with producer.transaction():
            producer.send(topic, b"next")
    assert real.settled(topic) == [b"next"]


def _commit_fails(producer: Producer, tokens: list[bytes], named: str) -> None:
    producer.begin_transaction()
    with pytest.raises(TransactionError) as failed:
        producer.include(tokens, CALL_S)
        producer.commit_transaction(CALL_S)
    assert named in str(failed.value), failed.value
    assert failed.value.abortable
    producer.abort_transaction(CALL_S)


def test_plain_clients_and_stages_share_a_daemon(real: RealBed, local: Way) -> None:
    topic = real.topic()
    with local.producer() as plain, plain.stage(topic, 1) as stage:
        stage.send(topic, b"staged")
        assert plain.send(topic, b"plain").result(CALL_S).offset == 0
        stage.seal(CALL_S)
    assert real.read(topic, committed=False) == [b"plain"]
