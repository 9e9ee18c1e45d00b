"""TX: rows for transactional ids: as many as there are, one more, and each is given back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Final

import pytest

from client_stub import Producer
from client_stub.contract.wire import LocalCode
from client_stub.errors import TransactionError
from sidecar.shm.layout import LANES_MAX
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.waiting import wait_until

from .harness import rows_of

pytestmark = pytest.mark.process

CALL_S: Final = 60.0
BLOCK_MS: Final = 2_000


def test_the_last_transactional_id_of_a_worker_and_one_more() -> None:
    settings = {"daemon.workers": 1, "daemon.clients_max": 8 * LANES_MAX, "max.block.ms": BLOCK_MS}
    serial = count()
    with (
        FakeBroker(transaction_version=2) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon,
    ):
        kafka.create_topic("t", 3)

        def make() -> Producer:
            return Producer(run_dir=str(daemon.run_dir), transactional_id=f"id-{next(serial)}")

        producers = [make() for _ in range(LANES_MAX)]
        with ThreadPoolExecutor(16) as threads:

            def begin(producer: Producer) -> None:
                producer.init_transactions(CALL_S)
                producer.begin_transaction()
                producer.send("t", b"value")

            list(threads.map(begin, producers))
            one_more = make()
            with pytest.raises(TransactionError, match=f"has {LANES_MAX} transactional ids") as refused:
                one_more.init_transactions(CALL_S)
            assert refused.value.retriable and refused.value.code == LocalCode.TXN_TOO_MANY
            list(threads.map(lambda producer: producer.commit_transaction(CALL_S), producers))
        assert len(kafka.records("t", committed=True)) == LANES_MAX
        producers.pop().close()
        begin(one_more)
        one_more.commit_transaction(CALL_S)
        for producer in (*producers, one_more):
            producer.close(0)


def run_many(daemon: SidecarDaemon, kafka: FakeBroker, clients: int) -> None:
    for number in range(clients):
        with Producer(run_dir=str(daemon.run_dir), transactional_id=f"id-{number}") as producer:
            producer.init_transactions(CALL_S)
            producer.begin_transaction()
            producer.send(f"t-{number % 5}", b"value")
            producer.commit_transaction(CALL_S)
    committed = sum(len(kafka.records(f"t-{number}", committed=True)) for number in range(5))
    assert committed == clients
    wait_until(lambda: rows_of(daemon) == (0, 0, 0), "no row, chain or lane is left")


@pytest.mark.parametrize(
    "clients", [300, pytest.param(10_000, marks=pytest.mark.long)], ids=["more than lanes", "10,000"]
)
def test_clients_with_transactional_ids_leave_no_row(clients: int) -> None:
    with (
        FakeBroker(transaction_version=2) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings={"daemon.workers": 1, "linger.ms": 5}) as daemon,
    ):
        for number in range(5):
            kafka.create_topic(f"t-{number}", 3)
        run_many(daemon, kafka, clients)
