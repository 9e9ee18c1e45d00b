"""What the fake broker answers to those who read a compacted topic, or make one: ListOffsets, Fetch, DescribeConfigs
and CreateTopics, each for one topic and partition.

Only compacted topics keep the bytes of their batches. Nothing is compacted.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from sidecar.tools.testing.kafka_frames import Api, Request, build, response_type
from sidecar.tools.testing.record_batches import HEADER

if TYPE_CHECKING:
    from sidecar.tools.testing.fake_log import PartitionLog

READ_APIS: Final = frozenset({Api.FETCH, Api.LIST_OFFSETS, Api.DESCRIBE_CONFIGS})
_UNKNOWN_TOPIC: Final = 3
_LATEST: Final = -1
_NO_TIME: Final = timedelta()


def read_answer(request: Request, logs: list[PartitionLog] | None) -> Any:
    """``logs`` are the partitions of the topic that it asks for, None if there is none."""
    if request.api == Api.DESCRIBE_CONFIGS:
        return _configs(request, logs)
    ((topic,), kind) = request.message.topics, request.api
    (asked,) = topic.partitions
    index = int(asked.partition if kind == Api.FETCH else asked.partition_index)
    log = logs[index] if logs is not None and index < len(logs) else None
    return _fetched(request, topic.topic, index, log) if kind == Api.FETCH else _offset(request, topic, log)


def asked_topic(request: Request) -> str:
    message = request.message
    if request.api == Api.DESCRIBE_CONFIGS:
        return str(message.resources[0].resource_name)
    topic = message.topics[0]
    return str(topic.topic if request.api == Api.FETCH else topic.name)


def created(request: Request) -> Any:
    kind = response_type(Api.CREATE_TOPICS, request.version, "CreatableTopicResult")
    result = build(kind, name=request.message.topics[0].name, error_code=ErrorCode(0), error_message=None)
    return build(response_type(Api.CREATE_TOPICS, request.version), topics=(result,), throttle_time=_NO_TIME)


def _fetched(request: Request, topic: str, index: int, log: PartitionLog | None) -> Any:
    offset = int(request.message.topics[0].partitions[0].fetch_offset)
    kept = [] if log is None else [data for first, data in log.kept or () if _last(data) >= offset]
    part = build(
        response_type(Api.FETCH, request.version, "PartitionData"),
        partition_index=index,
        error_code=ErrorCode(_UNKNOWN_TOPIC if log is None else 0),
        high_watermark=-1 if log is None else log.end_offset,
        last_stable_offset=-1 if log is None else log.last_stable_offset,
        log_start_offset=-1 if log is None else log.start_offset,
        aborted_transactions=(),
        records=b"".join(kept),
    )
    answer = build(
        response_type(Api.FETCH, request.version, "FetchableTopicResponse"), topic=topic, partitions=(part,)
    )
    kind = response_type(Api.FETCH, request.version)
    return build(kind, throttle_time=_NO_TIME, error_code=ErrorCode(0), session_id=0, responses=(answer,))


def _last(data: bytes) -> int:
    first, _, _, _, _, _, delta, *_ = HEADER.unpack_from(data)
    return int(first) + int(delta)


def _offset(request: Request, topic: Any, log: PartitionLog | None) -> Any:
    (asked,) = topic.partitions
    offset = -1
    if log is not None:
        offset = log.end_offset if asked.timestamp == _LATEST else log.start_offset
    part = build(
        response_type(Api.LIST_OFFSETS, request.version, "ListOffsetsPartitionResponse"),
        partition_index=asked.partition_index,
        error_code=ErrorCode(_UNKNOWN_TOPIC if log is None else 0),
        timestamp=-1,
        offset=offset,
        leader_epoch=-1,
    )
    kind = response_type(Api.LIST_OFFSETS, request.version, "ListOffsetsTopicResponse")
    answer = build(kind, name=topic.name, partitions=(part,))
    return build(response_type(Api.LIST_OFFSETS, request.version), throttle_time=_NO_TIME, topics=(answer,))


def _configs(request: Request, logs: list[PartitionLog] | None) -> Any:
    is_compacted = bool(logs) and logs is not None and logs[0].kept is not None
    row = build(
        response_type(Api.DESCRIBE_CONFIGS, request.version, "DescribeConfigsResourceResult"),
        name="cleanup.policy",
        value="compact" if is_compacted else "delete",
        read_only=False,
        is_sensitive=False,
        synonyms=(),
        documentation=None,
    )
    result = build(
        response_type(Api.DESCRIBE_CONFIGS, request.version, "DescribeConfigsResult"),
        error_code=ErrorCode(_UNKNOWN_TOPIC if logs is None else 0),
        error_message=None,
        resource_type=2,
        resource_name=request.message.resources[0].resource_name,
        configs=(row,) if logs is not None else (),
    )
    return build(
        response_type(Api.DESCRIBE_CONFIGS, request.version), throttle_time=_NO_TIME, results=(result,)
    )
