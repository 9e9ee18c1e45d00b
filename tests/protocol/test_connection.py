"""BrokerConnection: frames cut anywhere, answers in order, deadlines; negotiation of versions."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from datetime import timedelta
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.primitive import i32

from sidecar.metadata.answer import parse_metadata
from sidecar.protocol.api_versions import (
    SUPPORTED_VERSIONS,
    VersionRange,
    api_versions_request,
    decode_api_versions,
    negotiate,
)
from sidecar.protocol.connection import (
    CORRELATION_IDS,
    RESPONSE_BYTES_MAX,
    BrokerConnection,
    InFlightRequest,
    Response,
)
from sidecar.protocol.messages import (
    ApiKey,
    ProtocolError,
    decode_response,
    encode_request,
    is_response_header_flexible,
    response_module,
)


def expect(connection: BrokerConnection, *, flexible: bool = False, deadline_ms: float | None = None) -> int:
    correlation_id = connection.take_correlation_id()
    connection.expect(InFlightRequest(correlation_id, ApiKey.PRODUCE, 9, flexible, deadline_ms))
    return correlation_id


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


@given(bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=6), data=st.data())
def test_a_stream_cut_anywhere_gives_the_same_answers(bodies: list[bytes], data: st.DataObject) -> None:
    connection = BrokerConnection()
    stream = b"".join(frame(expect(connection), body) for body in bodies)
    got: list[Response] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += connection.receive_data(stream[:size])
        stream = stream[size:]
    assert [each.body for each in got] == bodies
    assert not connection.in_flight


@pytest.mark.parametrize(
    "header", [b"\x00", b"\x01\x05\x03abc", b"\x02\x00\x00\x01\x02\xff\xff", b"\x01\x81\x01\x01x"]
)
def test_tagged_fields_of_a_flexible_header_are_skipped(header: bytes) -> None:
    connection = BrokerConnection()
    correlation_id = expect(connection, flexible=True)
    (response,) = connection.receive_data(frame(correlation_id, header + b"body"))
    assert response.body == b"body"


@pytest.mark.parametrize("header", [b"", b"\x01", b"\x01\x05\x09ab", b"\x80\x80\x80\x80\x80\x01"])
def test_a_flexible_header_that_is_cut_short_is_an_error(header: bytes) -> None:
    connection = BrokerConnection()
    correlation_id = expect(connection, flexible=True)
    with pytest.raises(ProtocolError):
        connection.receive_data(frame(correlation_id, header))


def test_answers_out_of_order_or_unasked_are_errors() -> None:
    connection = BrokerConnection()
    first, second = expect(connection), expect(connection)
    with pytest.raises(ProtocolError, match=f"correlation id {second}, but {first} was next"):
        connection.receive_data(frame(second, b""))
    with pytest.raises(ProtocolError, match="nobody asked for"):
        BrokerConnection().receive_data(frame(0, b""))


@pytest.mark.parametrize("length", [-1, 0, 3, RESPONSE_BYTES_MAX + 1, 0x48545450])
def test_frames_of_impossible_length_are_errors(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"a frame of {length} bytes"):
        BrokerConnection().receive_data(struct.pack(">i", length))


def test_deadlines_are_those_of_requests_still_in_flight() -> None:
    connection = BrokerConnection()
    assert connection.next_deadline_ms() is None
    first = expect(connection, deadline_ms=500.0)
    expect(connection)  # its owner watches the time
    expect(connection, deadline_ms=300.0)
    assert connection.next_deadline_ms() == 300
    assert connection.expired(299) is None
    late = connection.expired(300)
    assert late is not None
    assert late.deadline_ms == 300
    connection.receive_data(frame(first, b""))
    assert connection.next_deadline_ms() == 300


def test_correlation_ids_stay_positive_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (CORRELATION_IDS[0], CORRELATION_IDS[-1]) == (0, 2**31 - 1)
    monkeypatch.setattr("sidecar.protocol.connection.CORRELATION_IDS", range(2))
    connection = BrokerConnection()
    assert [connection.take_correlation_id() for _ in range(5)] == [0, 1, 0, 1, 0]


def test_negotiation_takes_the_highest_common_version() -> None:
    offered = {
        ApiKey.PRODUCE: VersionRange(0, 7),
        ApiKey.METADATA: VersionRange(2, 40),
        ApiKey.INIT_PRODUCER_ID: VersionRange(6, 9),
        99: VersionRange(0, 3),
    }
    low, high = SUPPORTED_VERSIONS[ApiKey.METADATA]
    assert negotiate(offered) == {ApiKey.PRODUCE: 7, ApiKey.METADATA: high}
    assert negotiate({ApiKey.METADATA: VersionRange(0, low - 1)}) == {}


def test_error_35_is_seen_before_anything_else_is_read() -> None:
    assert decode_api_versions(3, struct.pack(">h", 35)) is None
    assert decode_api_versions(3, struct.pack(">h", 35) + b"\xff" * 9) is None
    with pytest.raises(ProtocolError, match="error 35"):
        decode_api_versions(0, struct.pack(">h", 35))
    with pytest.raises(ProtocolError, match="error 58"):
        decode_api_versions(3, struct.pack(">h", 58))
    with pytest.raises(ProtocolError, match="has 1 bytes"):
        decode_api_versions(3, b"\0")
    offered = decode_api_versions(0, struct.pack(">hihhh", 0, 1, 3, 1, 12))
    assert offered == ({3: (1, 12)}, -1, 0)


def features_answer(
    *, finalised: int, epoch: int, ranges: Mapping[int, tuple[int, int]] | None = None
) -> bytes:
    """ApiVersions v3 of a broker that supports transaction.version 2."""
    keys = b"".join(struct.pack(">hhhB", key, *found, 0) for key, found in (ranges or {}).items())
    head = struct.pack(">hB", 0, 1 + len(ranges or {})) + keys + struct.pack(">i", 0)
    supported = b"\x02" + b"\x14transaction.version" + struct.pack(">hh", 0, 2) + b"\0"
    levels = b"\x02" + b"\x14transaction.version" + struct.pack(">hh", finalised, finalised) + b"\0"
    tags = [(0, supported), (1, struct.pack(">q", epoch)), (2, levels)]
    return head + bytes([3]) + b"".join(bytes([tag, len(data)]) + data for tag, data in tags)


def test_the_transaction_version_is_the_finalised_one() -> None:
    """Not the highest that the broker would support, and nothing while the broker does not tell the features."""
    assert decode_api_versions(3, features_answer(finalised=1, epoch=7)) == ({}, 7, 1)
    assert decode_api_versions(3, features_answer(finalised=1, epoch=-1)) == ({}, -1, 0)


@pytest.mark.parametrize(
    ("produce", "end_txn", "level"), [(12, 5, 2), (13, 6, 2), (11, 5, 1), (12, 4, 1)], ids=str
)
def test_transaction_version_2_needs_the_requests_of_version_2(
    produce: int, end_txn: int, level: int
) -> None:
    """A gateway may pass on the features of brokers, and offer less than they do."""
    ranges = {ApiKey.PRODUCE: (0, produce), ApiKey.END_TXN: (0, end_txn)}
    offered = decode_api_versions(3, features_answer(finalised=2, epoch=7, ranges=ranges))
    assert offered is not None
    assert offered.transaction_version == level


def test_every_version_we_claim_to_speak_can_be_framed_and_read() -> None:
    for api_key, (low, high) in SUPPORTED_VERSIONS.items():
        for version in range(low, high + 1):
            assert response_module(api_key, version)
            assert is_response_header_flexible(api_key, version) in (True, False)
    for version in range(4):
        message = api_versions_request(version, "1.0")
        assert encode_request(message, 5, "me")[4:12] == struct.pack(">hhi", 18, version, 5)
        assert not is_response_header_flexible(ApiKey.API_VERSIONS, version)


def test_an_error_code_from_the_future_is_a_number() -> None:
    entity = decode_response(ApiKey.INIT_PRODUCER_ID, 0, struct.pack(">ihqh", 0, 9999, 1, 1))
    assert (entity.error_code, entity.producer_id, entity.producer_epoch) == (9999, 1, 1)


@pytest.mark.rule("M9")
@pytest.mark.parametrize("version", range(4, SUPPORTED_VERSIONS[ApiKey.METADATA][1] + 1))
def test_a_topic_with_an_error_from_the_future_hides_no_other(version: int) -> None:
    """Every Metadata version: such an error of a topic, and one of a partition."""
    module = response_module(ApiKey.METADATA, version)
    future = SimpleNamespace(value=9999)

    def build(kind: str, **values: Any) -> Any:
        structure = getattr(module, kind)
        names = {each.name for each in dataclasses.fields(structure)}
        return structure(**{name: value for name, value in values.items() if name in names})

    def topic(name: str, code: Any, partition_code: Any) -> Any:
        part = build(
            "MetadataResponsePartition", error_code=partition_code, partition_index=i32(0), leader_id=i32(1)
        )
        return build(
            "MetadataResponseTopic", error_code=code, name=name, topic_id=UUID(int=7), partitions=(part,)
        )

    answer = build(
        "MetadataResponse",
        throttle_time=timedelta(),
        brokers=(),
        topics=(topic("new", future, future), topic("good", ErrorCode.none, ErrorCode.none)),
        error_code=ErrorCode.none,
    )
    buffer = BytesIO()
    entity_writer(type(answer))(buffer, answer)
    found = parse_metadata(decode_response(ApiKey.METADATA, version, buffer.getvalue()))
    codes = {each.name: (each.error_code, each.partitions[0].error_code) for each in found.topics}
    assert codes == {"new": (9999, 9999), "good": (0, 0)}
