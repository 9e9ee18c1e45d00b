"""ListOffsets and Fetch of one partition, for the few records that the daemon itself reads. Sans-IO."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, NamedTuple

from sidecar.kernel import murmur2
from sidecar.protocol.messages import ApiKey, ProtocolError, RequestMessage, request_module

EARLIEST: Final = -2
LATEST: Final = -1
"""The timestamps by which ListOffsets means the begin of the log, and its high watermark."""
SESSION_VERSION: Final = 7
"""From this version on, Fetch names partitions that it wants to forget."""
_AT_ONCE: Final = timedelta()


def partition_of_key(key: bytes, partitions: int) -> int:
    """Where Kafka's Java clients put a key."""
    return int(murmur2(key) & 0x7FFF_FFFF) % partitions


class Fetched(NamedTuple):
    """What a broker has from an offset on."""

    error_code: int
    records: bytes


def offset_request(version: int, topic: str, partition: int, which: int) -> RequestMessage:
    """Ask for the EARLIEST or LATEST offset. ``version`` 1 to 5, in which an answer has one offset.

    A new leader refuses LATEST until it knows how far its predecessor had come. The high watermark in an answer to
    Fetch may be older by then, before records that are committed.
    """
    module = request_module(ApiKey.LIST_OFFSETS, version)
    isolation = {"isolation_level": 0} if version > 1 else {}
    message: RequestMessage = module.ListOffsetsRequest(
        replica_id=-1,
        topics=(
            module.ListOffsetsTopic(
                name=topic,
                partitions=(module.ListOffsetsPartition(partition_index=partition, timestamp=which),),
            ),
        ),
        **isolation,
    )
    return message


def parse_offset(entity: Any) -> tuple[int, int]:
    """(error code, offset)."""
    each = _only_partition(entity.topics)
    return int(each.error_code), int(each.offset)


def fetch_request(version: int, topic: str, partition: int, offset: int, *, bytes_max: int) -> RequestMessage:
    """Ask for what is there, open transactions too, without waiting. ``version`` 4 to 11, which name the topic."""
    module = request_module(ApiKey.FETCH, version)
    forgotten = {"forgotten_topics_data": ()} if version >= SESSION_VERSION else {}
    wanted = module.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max)
    message: RequestMessage = module.FetchRequest(
        replica_id=-1,
        max_wait=_AT_ONCE,
        min_bytes=0,
        max_bytes=bytes_max,
        isolation_level=0,
        topics=(module.FetchTopic(topic=topic, partitions=(wanted,)),),
        **forgotten,
    )
    return message


def parse_fetch(entity: Any) -> Fetched:
    code = int(getattr(entity, "error_code", 0))
    if code:
        return Fetched(code, b"")
    each = _only_partition(entity.responses)
    return Fetched(int(each.error_code), bytes(each.records or b""))


def _only_partition(topics: Any) -> Any:
    partitions = [each for topic in topics for each in topic.partitions]
    if len(partitions) != 1:
        raise ProtocolError(f"The broker answered for {len(partitions)} partitions instead of one.")
    return partitions[0]
