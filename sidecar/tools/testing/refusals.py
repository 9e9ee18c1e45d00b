"""Answers with an error: made for a request that no broker has seen, or put into a broker's answer."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from sidecar.tools.testing.fault_rules import Rule
from sidecar.tools.testing.kafka_frames import (
    Api,
    Request,
    Unreadable,
    build,
    response_type,
    with_produce_codes,
)

MANY_COORDINATORS: Final = 4
"""From this version on, FindCoordinator asks for several."""
MANY_TRANSACTIONS: Final = 4
"""From this version on, AddPartitionsToTxn is a broker's."""


def refused(request: Request, code: int, text: str | None = None) -> Any:
    """Return the answer that refuses the whole request. Raises Unreadable for an api without such an answer."""
    api, version = request.api, request.version
    kind = response_type(api, version)
    if api == Api.PRODUCE:
        topics = [
            build(
                response_type(api, version, "TopicProduceResponse"),
                name=getattr(topic, "name", None),
                topic_id=getattr(topic, "topic_id", None),
                partition_responses=tuple(
                    produced(version, int(part.index), code, text=text) for part in topic.partition_data
                ),
            )
            for topic in request.message.topic_data
        ]
        return build(kind, responses=tuple(topics), throttle_time=timedelta())
    if api == Api.INIT_PRODUCER_ID:
        return build(
            kind, throttle_time=timedelta(), error_code=ErrorCode(code), producer_id=-1, producer_epoch=-1
        )
    if api == Api.METADATA:
        topics = [
            build(
                response_type(api, version, "MetadataResponseTopic"),
                error_code=ErrorCode(code),
                name=topic.name,
                topic_id=getattr(topic, "topic_id", None),
                partitions=(),
            )
            for topic in request.message.topics or ()
        ]
        return build(kind, throttle_time=timedelta(), brokers=(), topics=tuple(topics))
    if api in (Api.ADD_OFFSETS_TO_TXN, Api.END_TXN):
        return build(kind, throttle_time=timedelta(), error_code=ErrorCode(code))
    if api == Api.FIND_COORDINATOR and version < MANY_COORDINATORS:
        return build(
            kind,
            throttle_time=timedelta(),
            error_code=ErrorCode(code),
            error_message=text,
            node_id=-1,
            host="",
            port=-1,
        )
    if api == Api.ADD_PARTITIONS_TO_TXN and version < MANY_TRANSACTIONS:
        part = response_type(api, version, "AddPartitionsToTxnPartitionResult")
        named = response_type(api, version, "AddPartitionsToTxnTopicResult")
        added = tuple(
            named(
                name=topic.name,
                results_by_partition=tuple(
                    part(partition_index=index, partition_error_code=ErrorCode(code))
                    for index in topic.partitions
                ),
            )
            for topic in request.message.v3_and_below_topics
        )
        return build(kind, throttle_time=timedelta(), results_by_topic_v3_and_below=added)
    if api == Api.TXN_OFFSET_COMMIT:
        part = response_type(api, version, "TxnOffsetCommitResponsePartition")
        named = response_type(api, version, "TxnOffsetCommitResponseTopic")
        offsets = tuple(
            named(
                name=topic.name,
                partitions=tuple(
                    part(partition_index=each.partition_index, error_code=ErrorCode(code))
                    for each in topic.partitions
                ),
            )
            for topic in request.message.topics
        )
        return build(kind, throttle_time=timedelta(), topics=offsets)
    raise Unreadable(f"there is no way to refuse api {api}; cut its connection instead")


def produced(
    version: int,
    partition: int,
    code: int,
    base_offset: int = -1,
    *,
    text: str | None = None,
    leader: tuple[int, int] | None = None,
    log_start_offset: int = -1,
    record_errors: tuple[tuple[int, str | None], ...] = (),
) -> Any:
    """Return one partition's part of a Produce answer."""
    values: dict[str, Any] = {}
    if leader is not None and version >= 10:
        kind = response_type(Api.PRODUCE, version, "LeaderIdAndEpoch")
        values["current_leader"] = kind(leader_id=leader[0], leader_epoch=leader[1])
    if version >= 8:
        kind = response_type(Api.PRODUCE, version, "BatchIndexAndErrorMessage")
        values["record_errors"] = tuple(
            kind(batch_index=index, batch_index_error_message=each) for index, each in record_errors
        )
    return build(
        response_type(Api.PRODUCE, version, "PartitionProduceResponse"),
        index=partition,
        error_code=ErrorCode(code),
        base_offset=base_offset,
        log_append_time=None,
        log_start_offset=log_start_offset,
        error_message=text,
        **values,
    )


def edited(
    request: Request,
    entity: Any,
    code: int,
    text: str | None,
    rule: Rule,
    *,
    topic_names: dict[UUID, str],
) -> Any:
    """Return a broker's answer with another error code: for the rule's partitions, every topic, or the whole answer."""
    if request.api == Api.PRODUCE:
        return with_produce_codes(
            entity, code, topic=rule.topic, partition=rule.partition, text=text, topic_names=topic_names
        )
    if request.api == Api.METADATA:
        topics = tuple(
            dataclasses.replace(topic, error_code=ErrorCode(code), partitions=()) for topic in entity.topics
        )
        return dataclasses.replace(entity, topics=topics)
    values: dict[str, Any] = {"error_code": ErrorCode(code)}
    if request.api == Api.INIT_PRODUCER_ID and code:
        values |= {"producer_id": -1, "producer_epoch": -1}
    return dataclasses.replace(entity, **values)


def note_codes(request: Request, entity: Any, topic_names: dict[UUID, str]) -> None:
    """Note the error code of each partition of a Produce request in the request log."""
    if request.api != Api.PRODUCE:
        return
    for topic in entity.responses:
        name = topic.name if hasattr(topic, "name") else topic_names.get(topic.topic_id, "")
        for part in topic.partition_responses:
            request.codes[name, int(part.index)] = int(part.error_code)
