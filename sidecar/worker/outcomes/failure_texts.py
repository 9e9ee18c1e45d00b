"""Texts of failures before sending: one sentence per code, for the client and the dead letters.

The rooms that fail records call it, on the worker's loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgpack

from client_stub.contract.wire import WORD_FAILED_MIN, LocalCode
from sidecar.shm.in_work import KILLS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.producer.config import ProducerConfig

RECORDS_READ_MAX: Final = 256
"""Records of an entry that are read to name partitions. An entry may have 65,536, and thousands fail in one turn."""
PARTITIONS_NAMED_MAX: Final = 5

POISON_TEXT = (
    f"The submission this record was in was being worked on when the daemon's worker died, {KILLS_MAX} times; "
    "it was set aside."
)


def invalid_partition_text(topic: str, partition_count: int, payload: bytes, indexes: Sequence[int]) -> str:
    """The sentence of Kafka's producer, with the partitions that these records of an entry name."""
    named, has_more = _partitions_of(payload, indexes)
    # A worker that has just adopted the record has no metadata yet.
    reachable = min(partition_count, WORD_FAILED_MIN)
    known = f"not in the range [0...{reachable}) of topic {topic}."
    if partition_count > reachable:
        known = f"{known[:-1]}: the daemon reaches no more of its {partition_count} partitions."
    where = known if partition_count else f"not a partition of topic {topic}."
    if not named:
        return f"Invalid partition given with record: it is {where}"
    if len(named) == 1 and not has_more:
        return f"Invalid partition given with record: {named[0]} is {where}"
    more = " and more" if has_more else ""
    return f"Invalid partitions given with records: {', '.join(map(str, named))}{more} are {where}"


def _partitions_of(payload: bytes, indexes: Sequence[int]) -> tuple[list[int], bool]:
    """The first few different partitions that these records name, in order, and whether there may be more."""
    named: set[int] = set()
    unpacker = msgpack.Unpacker(raw=True, strict_map_key=False, max_buffer_size=max(len(payload), 1))
    unpacker.feed(payload)
    at = 0
    try:
        for index in indexes:
            if index >= RECORDS_READ_MAX or len(named) > PARTITIONS_NAMED_MAX:
                return sorted(named)[:PARTITIONS_NAMED_MAX], True
            while at < index:
                unpacker.skip()
                at += 1
            record = unpacker.unpack()
            at += 1
            named.update(each for each in record[3:4] if each is not None)
    except (ValueError, TypeError, msgpack.UnpackException):
        return [], False
    return sorted(named)[:PARTITIONS_NAMED_MAX], len(named) > PARTITIONS_NAMED_MAX


def local_failure_text(code: int, topic: str, config: ProducerConfig) -> str:
    """One sentence per failure before sending, naming the topic and the setting that bounds it."""
    texts = {
        LocalCode.MALFORMED_RECORD: (
            f"A record for topic {topic} could not be read: it is not [key, value, headers, partition, timestamp]."
        ),
        LocalCode.RECORD_TOO_LARGE: (
            f"The record for topic {topic} is larger than max.request.size ({config.max_request_size} bytes) when "
            "serialized."
        ),
        LocalCode.INVALID_TIMESTAMP: f"The timestamp of the record for topic {topic} is negative.",
        LocalCode.METADATA_TIMEOUT: (
            f"Topic {topic} not present in metadata after {config.max_block_ms:.0f} ms (max.block.ms)."
        ),
        LocalCode.UNAUTHENTICATED: (
            f"The brokers refuse the daemon's login; topic {topic} is not known after {config.max_block_ms:.0f} ms "
            "(max.block.ms)."
        ),
        LocalCode.ABORTED: f"The daemon was closed before the record for topic {topic} could be delivered.",
        LocalCode.TOPIC_UNAUTHORIZED: f"Not authorized to access topic {topic}.",
        LocalCode.INVALID_TOPIC: f"Topic name {topic} is not valid.",
        LocalCode.POISON_SUBMISSION: POISON_TEXT,
        LocalCode.QUOTA_EXCEEDED: (
            f"The record for topic {topic} was discarded: its client was over its rate ([clients.NAME])."
        ),
        LocalCode.ENCODE_MISMATCH: "The record's batch was sent, and what became of it cannot be found out any more.",
    }
    return texts.get(LocalCode(code), "")
