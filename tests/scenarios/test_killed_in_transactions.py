"""TX: whoever is killed in a transaction, its client gets one true answer: what it is told to be committed is read, and
nothing of what it is told to be aborted.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from client_stub.errors import SidecarError
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.waiting import wait_until

from .harness import FAST, accounts_balance
from .test_transactions import CALL_S, ENDS, Bed, end, run

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def module_bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    settings = {**FAST, "linger.ms": 20, "request.timeout.ms": 5_000, "delivery.timeout.ms": 60_000}
    with (
        FakeBroker(nodes=2, transaction_version=int(request.param)) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon,
    ):
        yield Bed(kafka, daemon)
        kafka.clear_rules()
        accounts_balance(daemon)
        assert not kafka.bad_batches


@pytest.fixture
def bed(module_bed: Bed) -> Iterator[Bed]:
    yield module_bed
    module_bed.kafka.clear_rules()


def kill_worker(bed: Bed) -> None:
    (pid,) = bed.daemon.worker_pids()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: bed.daemon.worker_pids() not in ([], [pid]), "another worker")
    bed.daemon.wait_ready()


@ENDS
def test_transaction_continues_when_its_worker_is_killed(bed: Bed, *, commit: bool) -> None:
    topic = bed.topic()
    with bed.producer() as producer:
        for number in range(3):
            producer.begin_transaction()
            producer.send(topic, b"%d before" % number).result(CALL_S)
            kill_worker(bed)
            producer.send(topic, b"%d after" % number)
            end(producer, commit=commit)
        run(bed, producer, topic, b"last")
    kept = [b"%d %s" % (number, when) for number in range(3) for when in (b"before", b"after")]
    assert bed.committed(topic) == [*(kept if commit else []), b"last"]


@ENDS
def test_records_on_the_wire_when_the_worker_is_killed(bed: Bed, *, commit: bool) -> None:
    """They were appended, and their answer was lost with the worker: its successor must not append them again."""
    topic = bed.topic()
    with bed.producer() as producer:
        run(bed, producer, topic, b"first")
        held = bed.kafka.add(on(Api.PRODUCE, topic=topic).hold_answer())
        producer.begin_transaction()
        producer.send(topic, b"second")
        held.wait()
        kill_worker(bed)
        held.release()
        end(producer, commit=commit)
        run(bed, producer, topic, b"third")
    assert bed.committed(topic) == [b"first", *([b"second"] if commit else []), b"third"]
    assert bed.all(topic).count(b"second") == 1


@ENDS
@pytest.mark.parametrize("moment", ["asked", "done"])
def test_end_under_way_when_the_worker_is_killed(bed: Bed, moment: str, *, commit: bool) -> None:
    """The same EndTxn goes out again, whether the coordinator has carried out the first one or not."""
    topic = bed.topic()
    with bed.producer() as producer:
        run(bed, producer, topic, b"first")
        held = on(Api.END_TXN).hold() if moment == "asked" else on(Api.END_TXN).hold_answer()
        bed.kafka.add(held)
        producer.begin_transaction()
        producer.send(topic, b"second").result(CALL_S)
        errors: list[SidecarError] = []

        def call() -> None:
            try:
                end(producer, commit=commit)
            except SidecarError as error:
                errors.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        held.wait()
        kill_worker(bed)
        caller.join(CALL_S)
        held.release()
        assert not caller.is_alive()
        assert not errors
        run(bed, producer, topic, b"third")
    assert bed.committed(topic) == [b"first", *([b"second"] if commit else []), b"third"]


@ENDS
def test_stopping_daemon_waits_for_open_transactions(*, commit: bool) -> None:
    """Its client goes on sending and ends it; what is not ended in time is aborted before the daemon is gone."""
    settings = {**FAST, "daemon.shutdown_timeout_s": 20 if commit else 1}
    with FakeBroker() as kafka, SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon:
        bed = Bed(kafka, daemon)
        topic = bed.topic()
        producer = bed.producer()
        producer.begin_transaction()
        producer.send(topic, b"before").result(CALL_S)
        assert daemon.process is not None
        daemon.process.terminate()
        wait_until(
            lambda: "drain" in daemon.log_tail().lower() or "stop" in daemon.log_tail().lower(), "the drain"
        )
        if commit:
            producer.send(topic, b"after").result(CALL_S)
            producer.commit_transaction(CALL_S)
        daemon.process.wait(CALL_S)
        producer.close(0)
        assert bed.committed(topic) == ([b"before", b"after"] if commit else [])
        assert not kafka._topics[topic][0].open, "no reader waits for it"
