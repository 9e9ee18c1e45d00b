"""RF-04: what goes over the wire is, byte for byte, what Kafka's own producer sends for the same records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from client_stub import Producer
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.kafka_frames import Api

from .harness import FAST, OUTCOME_S
from .java_harness import java_settings
from .java_producers import JavaProducers

pytestmark = [pytest.mark.process, pytest.mark.kafka]

MOMENT_MS = 1_503_229_838_908
SETTINGS = {"linger.ms": 500, "batch.size": 200_000, "daemon.batch_growth_bytes": 0}
"""All records of a round stand in one batch when its linger ends."""
LEADER_EPOCH_AND_CRC = (slice(12, 16), slice(17, 21))
PRODUCER_ID_AND_EPOCH = slice(43, 53)


class Record(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = MOMENT_MS


ROUNDS: dict[str, list[Record]] = {
    "null and empty": [Record(None, b"k"), Record(b""), Record(b"", b""), Record(b"v", None)],
    "sizes at which varints grow": [Record(bytes(size)) for size in (63, 64, 8_191, 8_192, 100_000)],
    "headers": [Record(b"v", b"k", (("a", b"1"), ("", None), ("a", b""), ("ü" * 70, bytes(200))))],
    "timestamps that go down": [Record(b"%d" % n, timestamp_ms=MOMENT_MS - 777 * n) for n in range(70)],
    "timestamps far apart": [Record(b"v", timestamp_ms=moment) for moment in (MOMENT_MS, 0, 1, 1 << 42)],
}
Send = Callable[..., Any]


def sent(kafka: FakeBroker, send: Send) -> dict[str, bytes]:
    """The batch of each round as it went over the wire, without each producer's own fields."""
    found = {}
    for number, (name, records) in enumerate(ROUNDS.items()):
        topic = f"t{number}"
        deliveries = [
            send(
                topic,
                record.value,
                key=record.key,
                headers=list(record.headers),
                partition=0,
                timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]
        for delivery in deliveries:
            delivery.result(OUTCOME_S)
        (request,) = kafka.requests(Api.PRODUCE, topic)
        (batch,) = request.batches
        assert batch.header.record_count == len(records)
        data = bytearray(batch.records)
        for part in (*LEADER_EPOCH_AND_CRC, PRODUCER_ID_AND_EPOCH):
            data[part] = bytes(part.stop - part.start)
        found[name] = bytes(data)
    return found


def test_rf_04_the_bytes_are_javas(java: JavaProducers) -> None:
    topics = {f"t{number}": 1 for number in range(len(ROUNDS))}
    with FakeBroker(topics) as kafka:
        theirs = java.open(java_settings(kafka.bootstrap_servers, SETTINGS))
        expected = sent(kafka, lambda *record, **rest: theirs.send(*record, thread="one", **rest))
        theirs.close(OUTCOME_S)
    with (
        FakeBroker(topics) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings={**FAST, **SETTINGS}) as daemon,
        Producer(run_dir=str(daemon.run_dir)) as ours,
    ):
        found = sent(kafka, ours.send)
    assert {name: data.hex() for name, data in found.items()} == {
        name: data.hex() for name, data in expected.items()
    }
