"""Goal: wherever an accepted record waits in a worker, no death and no upgrade loses it, doubles it or fails it.

Method: two records wait in one of the places that a worker has. Then the worker or the daemon dies, or a new one takes
over; and the cause of the wait ends. A broker that counts says what arrived.
"""

from __future__ import annotations

import os
import signal
from typing import Final

import pytest

from client_stub import Producer
from sidecar.common.model import ExitStatus
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until
from tests.waiting_places import PLACES

pytestmark = pytest.mark.process


def _kill_worker(daemon: SidecarDaemon) -> None:
    (worker,) = daemon.worker_pids()
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: daemon.worker_pids() not in ([worker], []), "another worker", describe=daemon.log_tail)


def _kill_daemon(daemon: SidecarDaemon) -> None:
    daemon.kill_all()
    daemon.start()


def _take_over(daemon: SidecarDaemon) -> None:
    before = daemon.process
    assert before is not None
    daemon.spawn("--takeover")
    assert before.wait(30) == ExitStatus.OK, daemon.log_tail()
    daemon.wait_ready()


EVENTS: Final = {"worker": _kill_worker, "daemon": _kill_daemon, "takeover": _take_over}


@pytest.mark.parametrize("event", ["worker", "takeover", pytest.param("daemon", marks=pytest.mark.long)])
@pytest.mark.parametrize("place", PLACES)
def test_a_waiting_record_waits_on(start_daemon: StartDaemon, place: str, event: str) -> None:
    where = PLACES[place]
    with FakeBroker({"orders": 1}) as kafka:
        daemon = start_daemon(
            kafka.bootstrap_servers, settings={"daemon.workers": 1, "retry.backoff.max.ms": 300}
        )
        with Producer(run_dir=str(daemon.run_dir)) as producer:
            assert producer.send("orders", value=b"before").result(20).offset == 0
            where.begin(kafka, daemon)
            deliveries = [
                producer.send(where.topic, value=b"%d" % number, partition=where.partition)
                for number in range(2)
            ]
            producer.flush(20, until="accepted")
            EVENTS[event](daemon)
            assert metric(daemon, "kafka_sidecar_records_held") == 2, daemon.log_tail()
            where.end(kafka, daemon)
            offsets = [each.result(30).offset for each in deliveries]
        first = 1 if (where.topic, where.partition) == ("orders", 0) else 0
        assert offsets == [first, first + 1]
        values = [each.value for each in kafka.records(where.topic, where.partition)]
        assert values == [*([b"before"] if first else []), b"0", b"1"]
        assert kafka.duplicates(where.topic, where.partition) in (0, 1), (
            "a repeat that the broker knew, and dropped"
        )
