"""Texts of failures before sending: one sentence per code, for the client and the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_stub.wire import LocalCode
from sidecar.shm.in_work import KILLS_MAX

if TYPE_CHECKING:
    from sidecar.producer.config import ProducerConfig

POISON_TEXT = (
    f"The submission this record was in was being worked on when the daemon's worker died, {KILLS_MAX} times; "
    "it was set aside."
)


def local_failure_text(code: int, topic: str, partition_count: int, config: ProducerConfig) -> str:
    """One sentence per failure before sending, naming the topic and the setting that bounds it."""
    texts = {
        LocalCode.MALFORMED_RECORD: (
            "The record could not be read: it is not [key, value, headers, partition, timestamp]."
        ),
        LocalCode.RECORD_TOO_LARGE: (
            f"The record for topic {topic} is larger than max.request.size ({config.max_request_size} bytes) when "
            "serialized."
        ),
        LocalCode.INVALID_TIMESTAMP: "The record's timestamp is negative.",
        # As in Kafka's KafkaProducer.waitOnMetadata; the partition itself is in the record.
        LocalCode.INVALID_PARTITION: (
            f"Invalid partition given with record: it is not in the range [0...{partition_count}) of topic {topic}."
        ),
        LocalCode.METADATA_TIMEOUT: (
            f"Topic {topic} not present in metadata after {config.max_block_ms:.0f} ms (max.block.ms)."
        ),
        LocalCode.UNAUTHENTICATED: (
            f"The brokers refuse the daemon's login; topic {topic} is not known after {config.max_block_ms:.0f} ms "
            "(max.block.ms)."
        ),
        LocalCode.ABORTED: "The daemon was closed before the record could be delivered.",
        LocalCode.TOPIC_UNAUTHORIZED: f"Not authorized to access topic {topic}.",
        LocalCode.INVALID_TOPIC: f"Topic name {topic} is not valid.",
        LocalCode.POISON_SUBMISSION: POISON_TEXT,
        LocalCode.QUOTA_EXCEEDED: "The record was discarded: its client was over its rate ([clients.NAME]).",
        LocalCode.ENCODE_MISMATCH: "The record's batch was sent, and what became of it cannot be found out any more.",
    }
    return texts.get(LocalCode(code), "")
