"""Goal: the smallest pool that the settings allow takes the records of a stub at its fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from client_stub import Producer
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker

pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.process

RECORDS = 20_000
"""Of 100 bytes: twice what the pool holds."""


def _send(producer: Producer, values: Sequence[bytes]) -> Any:
    return [producer.send("t", value) for value in values][-1]


WAYS: dict[str, Callable[[Producer, Sequence[bytes]], Any]] = {
    "send": _send,
    "send_many": lambda producer, values: producer.send_many("t", [(None, value) for value in values]),
    "send_arrow": lambda producer, values: producer.send_arrow("t", pa.table({"value": values})),
}


def test_full_submissions_go_through_a_pool_of_one_mebibyte(start_daemon: StartDaemon) -> None:
    settings = {"buffer.memory": 1 << 20, "max.request.size": 400_000}
    with FakeBroker({"t": 1}) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers, settings=settings)
        expected: list[bytes] = []
        for way in WAYS.values():
            values = [b"%0100d" % (len(expected) + number) for number in range(RECORDS)]
            with Producer(daemon.run_dir) as producer:
                way(producer, values).result(60)
                producer.flush(60)
            expected += values
        log = [record.value for record in kafka.records("t", 0)]
        assert log == expected
