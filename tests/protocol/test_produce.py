"""Produce framing equals kio's own bytes in every version; responses are read back whole."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from sidecar.common.model import Node
from sidecar.protocol.messages import (
    ApiKey,
    ProtocolError,
    decode_response,
    encode_request,
    request_module,
    response_module,
)
from sidecar.protocol.produce import (
    PartitionResult,
    ProduceResponse,
    ProduceTopic,
    decode_produce_response,
    encode_produce,
)

VERSIONS = range(3, 14)
TOPIC_ID = UUID("12345678-9abc-def0-1234-56789abcdef0")


def kio_bytes(
    version: int,
    correlation_id: int,
    client_id: str | None,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
    topics: list[ProduceTopic],
) -> bytes:
    module = request_module(ApiKey.PRODUCE, version)
    naming = (lambda t: {"topic_id": t.topic_id}) if version >= 13 else (lambda t: {"name": t.name})
    message = module.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout=timedelta(milliseconds=timeout_ms),
        topic_data=tuple(
            module.TopicProduceData(
                **naming(topic),
                partition_data=tuple(
                    module.PartitionProduceData(index=index, records=bytes(records))
                    for index, records in topic.partitions
                ),
            )
            for topic in topics
        ),
    )
    return encode_request(message, correlation_id, client_id)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transactional_id", [None, "tx-é"])
@pytest.mark.parametrize("client_id", [None, "", "app ü"])
def test_request_equals_kio_byte_for_byte(
    version: int, transactional_id: str | None, client_id: str | None
) -> None:
    rng = random.Random(version)
    shapes: list[list[tuple[str, list[tuple[int, int]]]]] = [
        [("t", [(0, 70)])],
        [("flights", [(i, rng.choice([61, 126, 127, 128, 16_383, 16_384, 100_000])) for i in range(6)])],
        [("a" * 249, [(2**31 - 1, 61)]), ("b", [(1, 62), (0, 63)]), ("é", [])],
        [(f"topic-{i}", [(p, 64) for p in range(125 + i)]) for i in range(4)],
        *([(f"topic-{i}", [(0, 64)]) for i in range(count)] for count in (126, 127)),
        [],
    ]
    for shape in shapes:
        topics = [
            ProduceTopic(
                name, TOPIC_ID, [(index, memoryview(rng.randbytes(size))) for index, size in partitions]
            )
            for name, partitions in shape
        ]
        arguments = (version, 0x01020304, client_id, -1, 30_000, transactional_id, topics)
        if not topics:
            continue
        buffers = encode_produce(*arguments)
        assert b"".join(buffers) == kio_bytes(*arguments)


@pytest.mark.parametrize("version", [3, 9, 13])
def test_records_are_not_copied(version: int) -> None:
    storage = bytearray(200)
    view = memoryview(storage)[50:150]
    buffers = encode_produce(version, 1, "c", 1, 1000, None, [ProduceTopic("t", TOPIC_ID, [(0, view)])])
    assert any(each is view for each in buffers)


def test_an_acks_0_request_without_partitions_is_still_framed() -> None:
    for version in VERSIONS:
        arguments = (version, 7, "c", 0, 1, None, [ProduceTopic("t", TOPIC_ID, [])])
        assert b"".join(encode_produce(*arguments)) == kio_bytes(*arguments)


def test_versions_we_do_not_speak_and_missing_topic_ids_are_refused() -> None:
    topic = ProduceTopic("orders", None, [(0, b"x")])
    for version in (2, 14):
        with pytest.raises(ValueError, match=f"Produce v{version}"):
            encode_produce(version, 1, "c", -1, 1, None, [topic])
    with pytest.raises(ValueError, match="'orders'"):
        encode_produce(13, 1, "c", -1, 1, None, [topic])
    assert encode_produce(12, 1, "c", -1, 1, None, [topic])


def response_bytes(version: int, code: ErrorCode, append_time: datetime | None) -> bytes:
    module = response_module(ApiKey.PRODUCE, version)
    extra: dict[str, Any] = {}
    if version >= 5:
        extra["log_start_offset"] = 3
    if version >= 8:
        extra["record_errors"] = (
            module.BatchIndexAndErrorMessage(batch_index=4, batch_index_error_message="bad"),
            module.BatchIndexAndErrorMessage(batch_index=9),
        )
        extra["error_message"] = "why"
    if version >= 10:
        extra["current_leader"] = module.LeaderIdAndEpoch(leader_id=2, leader_epoch=11)
    partition = module.PartitionProduceResponse(
        index=5, error_code=code, base_offset=2**40, log_append_time=append_time, **extra
    )
    naming = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "t"}
    top: dict[str, Any] = {}
    if version >= 10:
        top["node_endpoints"] = (module.NodeEndpoint(node_id=2, host="h", port=9092, rack="r"),)
    entity = module.ProduceResponse(
        responses=(module.TopicProduceResponse(**naming, partition_responses=(partition,)),),
        throttle_time=timedelta(milliseconds=1234),
        **top,
    )
    buffer = BytesIO()
    entity_writer(module.ProduceResponse)(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
def test_response_fields_of_every_version(version: int) -> None:
    when = datetime(2024, 2, 29, 12, 0, 0, 999_000, tzinfo=UTC)
    response = decode_produce_response(version, response_bytes(version, ErrorCode(6), when))
    (result,) = response.results
    assert response.throttle_ms == 1234
    assert (result.topic, result.topic_id) == ((None, TOPIC_ID) if version >= 13 else ("t", None))
    assert (result.partition, result.error_code, result.base_offset) == (5, 6, 2**40)
    assert result.append_time_ms == 1_709_208_000_999
    assert result.log_start_offset == (3 if version >= 5 else -1)
    assert result.record_errors == (((4, "bad"), (9, None)) if version >= 8 else ())
    assert result.error_message == ("why" if version >= 8 else None)
    assert (result.current_leader_id, result.current_leader_epoch) == ((2, 11) if version >= 10 else (-1, -1))
    assert [node.host for node in response.node_endpoints] == (["h"] if version >= 10 else [])


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_are_read_as_kio_reads_them_and_codes_from_the_future_pass(version: int) -> None:
    when = datetime(2024, 2, 29, 12, 0, 0, 999_000, tzinfo=UTC)
    for append_time in (None, when):
        body = response_bytes(version, ErrorCode(87), append_time)
        strict = decode_produce_response(version, body)
        assert strict == kio_reads(version, body)
    at = body.index((87).to_bytes(2, "big"))
    future = body[:at] + (999).to_bytes(2, "big") + body[at + 2 :]
    response = decode_produce_response(version, future)
    assert response.results == [strict.results[0]._replace(error_code=999)]
    assert response.node_endpoints == strict.node_endpoints
    for end in range(at + 2, len(future)):
        with pytest.raises(ProtocolError):
            decode_produce_response(version, future[:end])


def kio_reads(version: int, body: bytes) -> ProduceResponse:
    """The same answer through kio's entities."""
    entity = decode_response(ApiKey.PRODUCE, version, body)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    millisecond = timedelta(milliseconds=1)
    results: list[PartitionResult] = []
    for topic in entity.responses:
        for part in topic.partition_responses:
            leader = part.current_leader if version >= 10 else None
            appended = part.log_append_time
            errors = part.record_errors if version >= 8 else ()
            results.append(
                PartitionResult(
                    topic=topic.name if version < 13 else None,
                    topic_id=topic.topic_id if version >= 13 else None,
                    partition=part.index,
                    error_code=int(part.error_code),
                    base_offset=part.base_offset,
                    append_time_ms=-1 if appended is None else (appended - epoch) // millisecond,
                    log_start_offset=part.log_start_offset if version >= 5 else -1,
                    record_errors=tuple((int(e.batch_index), e.batch_index_error_message) for e in errors),
                    error_message=part.error_message if version >= 8 else None,
                    current_leader_id=-1 if leader is None else int(leader.leader_id),
                    current_leader_epoch=-1 if leader is None else int(leader.leader_epoch),
                )
            )
    nodes = [Node(int(n.node_id), n.host, int(n.port), n.rack) for n in getattr(entity, "node_endpoints", ())]
    return ProduceResponse(results, entity.throttle_time // millisecond, tuple(nodes))


def good_answer(version: int, topics: dict[str, list[int]]) -> bytes:
    """Each partition appended at its number times 100."""
    module = response_module(ApiKey.PRODUCE, version)
    naming = (
        (lambda name: {"topic_id": UUID(int=len(name))}) if version >= 13 else (lambda name: {"name": name})
    )
    more: dict[str, Any] = {"log_start_offset": 7} if version >= 5 else {}
    more |= {"record_errors": ()} if version >= 8 else {}
    entity = module.ProduceResponse(
        responses=tuple(
            module.TopicProduceResponse(
                **naming(name),
                partition_responses=tuple(
                    module.PartitionProduceResponse(
                        index=index,
                        error_code=ErrorCode(0),
                        base_offset=100 * index,
                        log_append_time=None,
                        **more,
                    )
                    for index in partitions
                ),
            )
            for name, partitions in topics.items()
        ),
        throttle_time=timedelta(milliseconds=3),
    )
    buffer = BytesIO()
    entity_writer(module.ProduceResponse)(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
def test_good_answers_of_any_size_are_read_as_kio_reads_them(version: int) -> None:
    shapes: list[dict[str, list[int]]] = [
        {"t": [5]},
        {},
        {"a": [0, 1, 2], "é": [2**31 - 1], "empty": []},
        {"n" * 126: [1], "n" * 127: [1], "n" * 249: [1]},
        {f"topic-{i}" + "x" * i: [0] for i in range(126)},
        {f"topic-{i}" + "x" * i: [0] for i in range(127)},
        {"wide": list(range(126)), "wider": list(range(127)), "widest": list(range(1000))},
    ]
    for shape in shapes:
        body = good_answer(version, shape)
        assert decode_produce_response(version, body) == kio_reads(version, body), shape
        if len(body) < 500:
            for end in range(len(body)):
                with pytest.raises(ProtocolError, match="PRODUCE"):
                    decode_produce_response(version, body[:end])


def test_create_time_topics_have_no_append_time() -> None:
    response = decode_produce_response(11, response_bytes(11, ErrorCode(0), None))
    assert response.results[0].append_time_ms == -1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_cut_anywhere_is_a_protocol_error(version: int) -> None:
    body = response_bytes(version, ErrorCode(0), None)
    for end in range(len(body)):
        with pytest.raises(ProtocolError, match="PRODUCE"):
            decode_produce_response(version, body[:end])
