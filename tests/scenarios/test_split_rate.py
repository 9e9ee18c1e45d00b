"""AC-07: how often batches of mixed data come out larger than the broker takes, and are sent twice for it."""

from __future__ import annotations

import random

import pytest

from .harness import OUTCOME_S, Harness

pytestmark = [pytest.mark.process]

BATCH_BYTES = 1_024
RECORDS = 1_000
RECORD_BYTES = 100
MESSAGE_TOO_LARGE = 10
SETTINGS = {
    "compression.type": "gzip",
    "batch.size": BATCH_BYTES,
    "daemon.batch_growth_bytes": 0,
    "linger.ms": 50,
}


@pytest.mark.parametrize("percent", [1, 25, 50, 75, 99])
def test_ac_07_split_rate(harness: Harness, percent: int) -> None:
    """AC-07: so many per cent of the records do not compress, at random places; the broker takes batches up to
    batch.size. Batches are filled by their size before compression, and one that did not shrink goes uncompressed. So
    none is split (Kafka's own producer guesses the ratio, and is allowed 10 %)."""
    chance = random.Random(percent)
    topic = harness.new_topic()
    harness.kafka.message_bytes_max = BATCH_BYTES
    rows = [
        (None, chance.randbytes(RECORD_BYTES) if chance.random() < percent / 100 else bytes(RECORD_BYTES))
        for _ in range(RECORDS)
    ]
    try:
        with harness.sender(topic) as sender:
            assert sender.producer.send_many(topic, rows).result(OUTCOME_S) == RECORDS
    finally:
        harness.kafka.message_bytes_max = 1_048_588
    refused = [code for each in harness.produced(topic) for code in each.codes.values() if code]
    assert MESSAGE_TOO_LARGE not in refused
    assert [record.value for record in harness.kafka.records(topic)] == [value for _, value in rows]
    batches = harness.kafka.batches(topic)
    assert max(batch.header.size_bytes for batch in batches) <= BATCH_BYTES
    if percent == 1:
        assert {batch.header.codec for batch in batches} == {"gzip"}
