"""TX: a worker is killed at each store of a lane's record, and around InitProducerId and EndTxn, in each kind of
transaction and with each transaction.version. The client gets one true answer, which the log and the group show.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from client_stub import Producer
from client_stub.errors import TransactionError
from sidecar.common.own_process import KILL_POINTS
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.kill_points.orders import PASSED_FILE, give_order
from sidecar.tools.testing.waiting import wait_until

from .harness import FAST, accounts_balance
from .test_transactions import CALL_S, Bed, end

pytestmark = [pytest.mark.process, pytest.mark.unmeasured]

DAILY: Final = ((1, "offsets"), (2, "commit"), (2, "abort"), (2, "offsets"))
CASES: Final = [
    pytest.param(
        version,
        kind,
        marks=() if (version, kind) in DAILY else pytest.mark.long,
        id=f"v{version}-{kind}",
    )
    for version in (0, 1, 2)
    for kind in ("commit", "abort", "offsets")
]
AROUND_END: Final = ("lane.stored", "end.stored", "end.sent", "end.answered")
AROUND_INIT: Final = (
    "lane.named",
    "lane.content",
    "lane.stored",
    "init.stored",
    "init.sent",
    "init.answered",
)
TOLD: Final = ("txn.result", "txn.told")
PASSES_MAX: Final = 12
TRIES_MAX: Final = 4
GROUP: Final = "readers"
_serial = count(1)


class KilledBed(Bed):
    """A daemon whose only worker dies as ordered."""

    def __init__(self, kafka: FakeBroker, daemon: SidecarDaemon, orders: Path) -> None:
        super().__init__(kafka, daemon)
        self.orders = orders

    @property
    def kills(self) -> int:
        passed = self.orders / PASSED_FILE
        return passed.read_text().count("\n") if passed.exists() else 0

    def replace_worker(self, point: str, nth: int) -> None:
        """Let a new worker begin, which will die at that pass of the point."""
        order = give_order(self.orders, f"{next(_serial):06d}", point, nth=nth, during="live")
        (pid,) = wait_until(self.daemon.worker_pids, "a worker")
        with suppress(
            ProcessLookupError
        ):  # the order before this one may have been late, and have just ended it
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not order.exists(), f"a worker that takes the order {point}")
        wait_until(lambda: self.daemon.worker_pids() not in ([], [pid]), "that worker")


@pytest.fixture
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KilledBed]:
    orders = tmp_path / "orders"
    orders.mkdir()
    with (
        FakeBroker(nodes=2, transaction_version=int(request.param)) as kafka,
        SidecarDaemon(
            kafka.bootstrap_servers,
            settings={**FAST, "daemon.restart_backoff_max_ms": 20, "delivery.timeout.ms": 60_000},
            environment={KILL_POINTS: str(orders)},
        ) as daemon,
    ):
        bed = KilledBed(kafka, daemon, orders)
        yield bed
        accounts_balance(daemon)
        assert "ALARM" not in daemon.log_path.read_text()
        assert not kafka.bad_batches


def run(bed: KilledBed, producer: Producer, topic: str, kind: str, number: int) -> int:
    """One transaction of two records, run again while it has to be aborted. Returns how often it had."""
    values = (b"%d a" % number, b"%d b" % number)
    for tries in range(TRIES_MAX):
        try:
            producer.begin_transaction()
            producer.send(topic, values[0]).result(CALL_S)
            producer.send(topic, values[1])
            if kind == "offsets":
                producer.send_offsets_to_transaction({("in", 0): number}, GROUP, CALL_S)
            end(producer, commit=kind != "abort")
            return tries
        except TransactionError as error:
            assert error.abortable, error
            producer.abort_transaction(CALL_S)
    raise AssertionError(f"transaction {number} was aborted {TRIES_MAX} times")


def check(bed: KilledBed, topic: str, committed: list[bytes], offset: int | None) -> None:
    assert bed.committed(topic) == committed
    found = bed.kafka.coordinator.committed.get((GROUP, "in", 0))
    assert (None if found is None else found.offset) == offset


@pytest.mark.parametrize(("bed", "kind"), CASES, indirect=["bed"])
def test_worker_killed_at_each_store_of_a_transaction(
    bed: KilledBed, kind: str, request: pytest.FixtureRequest
) -> None:
    """Every pass of every point, until a transaction has no further one."""
    is_long = request.config.getoption("--long")
    topic = bed.topic()
    committed: list[bytes] = []
    offset = None
    numbers = count(1)
    killed: list[str] = []
    aborted = 0
    with bed.producer() as producer:
        for point in (*AROUND_END, *TOLD, *(("lane.content",) if is_long else ())):
            for nth in range(1, PASSES_MAX):
                number, before = next(numbers), bed.kills
                bed.replace_worker(point, nth)
                aborted += run(bed, producer, topic, kind, number)
                if kind != "abort":
                    committed += [b"%d a" % number, b"%d b" % number]
                if kind == "offsets":
                    offset = number
                check(bed, topic, committed, offset)
                if bed.kills == before:
                    break
                killed.append(f"{point} {nth}")
            else:
                raise AssertionError(f"{point} is passed {PASSES_MAX} times in one transaction")
            assert nth > 1, f"{point} is never passed"
    assert aborted <= len(killed)
    print(f"\n{kind}: {', '.join(killed)}; {aborted} aborted and sent again")


@pytest.mark.parametrize("bed", [1, 2], ids=["v1", "v2"], indirect=True)
def test_worker_killed_at_each_store_of_an_init_and_of_a_lanes_end(bed: KilledBed) -> None:
    topic = bed.topic()
    committed: list[bytes] = []
    killed = 0
    for number, point in enumerate((*AROUND_INIT, *TOLD, "lane.freed")):
        before = bed.kills
        bed.replace_worker(point, 1)
        with bed.producer() as producer:
            run(bed, producer, topic, "commit", number)
        committed += [b"%d a" % number, b"%d b" % number]
        wait_until(lambda before=before: bed.kills > before, f"a death at {point}")  # type: ignore[misc]
        killed += 1
        check(bed, topic, committed, None)
    assert killed == len(AROUND_INIT) + len(TOLD) + 1
