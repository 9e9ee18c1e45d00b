"""Goal: the broker that keeps nothing answers every client rightly: each record acknowledged, at its own offset."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from sidecar.tools.bench.bed import daemon_before, null_broker
from sidecar.tools.bench.runner import run_throughput
from sidecar.tools.bench.workload import Workload

pytestmark = pytest.mark.process


def test_offsets_grow_without_holes_for_librdkafka() -> None:
    found: list[tuple[int, int]] = []

    def told(error: object, message: Any) -> None:
        assert error is None, error
        found.append((message.partition(), message.offset()))

    with null_broker({"t": 2}) as address:
        producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
        for number in range(2_000):
            producer.produce("t", value=b"v" * (number % 900), key=b"%d" % number, on_delivery=told)
        assert producer.flush(30) == 0
    for partition in (0, 1):
        offsets = [offset for where, offset in found if where == partition]
        assert offsets == list(range(len(offsets)))
        assert offsets


@pytest.mark.parametrize("kind", ["sidecar-callbacks", "sidecar-send-many", "sidecar-send-arrow"])
def test_every_record_through_the_daemon_is_acknowledged(kind: str) -> None:
    with null_broker({"t": 6}) as address, daemon_before(address) as site:
        run = run_throughput(kind, site.target(kind), Workload("t", 20_000), callers=2, daemon_pids=site.pids)
    assert run.records_per_s > 0
    assert run.total_cpu_us > run.caller_cpu_us > 0
