"""Kafka requests and answers as the fault kit sees them: frames, headers, and the content of a Produce.

kio decodes and encodes them; the producer's own Produce framing does not use it. ``record_batches`` reads record
batches.
"""

from __future__ import annotations

import dataclasses
import struct
from functools import cache
from importlib import import_module
from io import BytesIO
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from sidecar.tools.testing.record_batches import BatchHeader, batch_headers

FRAME_BYTES_MAX: Final = 128 << 20


class Api:
    """Keys of the requests that rules are written for; any other key may be used as well."""

    PRODUCE: Final = 0
    FETCH: Final = 1
    LIST_OFFSETS: Final = 2
    METADATA: Final = 3
    FIND_COORDINATOR: Final = 10
    API_VERSIONS: Final = 18
    CREATE_TOPICS: Final = 19
    INIT_PRODUCER_ID: Final = 22
    ADD_PARTITIONS_TO_TXN: Final = 24
    ADD_OFFSETS_TO_TXN: Final = 25
    END_TXN: Final = 26
    TXN_OFFSET_COMMIT: Final = 28
    DESCRIBE_CONFIGS: Final = 32
    DESCRIBE_CLUSTER: Final = 60
    DESCRIBE_PRODUCERS: Final = 61


_SCHEMAS: Final = {
    Api.PRODUCE: ("produce", "Produce"),
    Api.FETCH: ("fetch", "Fetch"),
    Api.LIST_OFFSETS: ("list_offsets", "ListOffsets"),
    Api.METADATA: ("metadata", "Metadata"),
    Api.FIND_COORDINATOR: ("find_coordinator", "FindCoordinator"),
    Api.API_VERSIONS: ("api_versions", "ApiVersions"),
    Api.CREATE_TOPICS: ("create_topics", "CreateTopics"),
    Api.DESCRIBE_CONFIGS: ("describe_configs", "DescribeConfigs"),
    Api.INIT_PRODUCER_ID: ("init_producer_id", "InitProducerId"),
    Api.ADD_PARTITIONS_TO_TXN: ("add_partitions_to_txn", "AddPartitionsToTxn"),
    Api.ADD_OFFSETS_TO_TXN: ("add_offsets_to_txn", "AddOffsetsToTxn"),
    Api.END_TXN: ("end_txn", "EndTxn"),
    Api.TXN_OFFSET_COMMIT: ("txn_offset_commit", "TxnOffsetCommit"),
    Api.DESCRIBE_CLUSTER: ("describe_cluster", "DescribeCluster"),
    Api.DESCRIBE_PRODUCERS: ("describe_producers", "DescribeProducers"),
}


class Unreadable(ValueError):
    """A frame that does not match its header."""


class ProducedBatch(NamedTuple):
    """One partition's batch in a Produce request, with the fields of its header."""

    topic: str
    partition: int
    header: BatchHeader
    records: bytes
    """The whole batch, as bytes of the wire."""


@dataclasses.dataclass(slots=True)
class Request:
    """One request on its way. ``node`` is the broker it was sent to, ``connection`` numbers the accepted connections.

    ``fate`` is ``forwarded``, ``answered``, or the name of a rule's action.
    """

    node: int
    connection: int
    api: int
    version: int
    correlation_id: int
    client_id: str | None
    frame: bytes
    """All bytes after the 4-byte length."""
    at_s: float
    """Time of arrival, in monotonic seconds."""
    acks: int | None = None
    """acks of a Produce request; with 0 the client expects no answer."""
    batches: tuple[ProducedBatch, ...] = ()
    fate: str = "received"
    codes: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    """(topic, partition) → error code that the client got, for Produce requests that were answered."""
    message: Any = None
    """kio's request entity, for the requests named in :class:`Api`."""

    def concerns(self, topic: str | None, partition: int | None) -> bool:
        """Whether a Produce request has a batch for that topic and partition (None: any)."""
        if topic is None and partition is None:
            return True
        return any(
            topic in (None, each.topic) and partition in (None, each.partition) for each in self.batches
        )


@cache
def _module(api: int, version: int, side: str) -> Any:
    return import_module(f"kio.schema.{_SCHEMAS[api][0]}.v{version}.{side}")


def is_known(api: int) -> bool:
    return api in _SCHEMAS


def request_type(api: int, version: int) -> Any:
    return getattr(_module(api, version, "request"), f"{_SCHEMAS[api][1]}Request")


def response_type(api: int, version: int, name: str | None = None) -> Any:
    """Return kio's class of the answer, or of its structure ``name``."""
    return getattr(_module(api, version, "response"), name or f"{_SCHEMAS[api][1]}Response")


def build(kind: Any, **values: Any) -> Any:
    """Make an entity from those ``values`` that its version has fields for."""
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in names})


def read_request(
    frame: bytes, *, node: int, connection: int, at_s: float, topic_names: dict[UUID, str]
) -> Request:
    """Decode a frame. Of requests that are not in :class:`Api` only the header is decoded.

    Raises Unreadable for a header or a known request that cannot be read.
    """
    try:
        api, version, correlation_id, length = struct.unpack_from(">hhih", frame)
        client_id = None if length < 0 else frame[10 : 10 + length].decode()
        request = Request(node, connection, api, version, correlation_id, client_id, frame, at_s)
        if api not in _SCHEMAS or (api == Api.API_VERSIONS and version > 4):
            return request
        position = 10 + max(length, 0)
        kind = request_type(api, version)
        if kind.__header_schema__.__flexible__:
            position = _skip_tags(frame, position)
        request.message, _ = entity_reader(kind)(frame, position)
        if api == Api.PRODUCE:
            request.acks = int(request.message.acks)
            request.batches = _batches(request.message, topic_names)
    except (struct.error, ValueError, TypeError, IndexError, UnicodeDecodeError) as error:
        raise Unreadable(f"a request of {len(frame)} bytes cannot be read: {error}") from error
    return request


def _batches(message: Any, topic_names: dict[UUID, str]) -> tuple[ProducedBatch, ...]:
    found = []
    for topic in message.topic_data:
        name = topic.name if hasattr(topic, "name") else topic_names.get(topic.topic_id, str(topic.topic_id))
        for partition in topic.partition_data:
            records = bytes(partition.records or b"")
            for header in batch_headers(records):
                found.append(
                    ProducedBatch(
                        name,
                        int(partition.index),
                        header,
                        records[header.position : header.position + header.size_bytes],
                    )
                )
    return tuple(found)


def _skip_tags(frame: bytes, position: int) -> int:
    count, position = _uvarint(frame, position)
    for _ in range(count):
        _, position = _uvarint(frame, position)
        size, position = _uvarint(frame, position)
        position += size
    return position


def _uvarint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7


def read_answer(api: int, version: int, frame: bytes) -> Any:
    """Decode an answer from a frame without its length. Raises Unreadable."""
    kind = response_type(api, version)
    try:
        position = 4
        if kind.__header_schema__.__flexible__:
            position = _skip_tags(frame, position)
        entity, _ = entity_reader(kind)(frame, position)
    except (struct.error, ValueError, TypeError, IndexError) as error:
        raise Unreadable(f"an answer to api {api} v{version} cannot be read: {error}") from error
    return entity


def write_answer(correlation_id: int, entity: Any) -> bytes:
    """Return a frame without its length: header and body."""
    kind: Any = type(entity)
    buffer = BytesIO()
    header_kind = kind.__header_schema__
    entity_writer(header_kind)(buffer, header_kind(correlation_id=correlation_id))
    entity_writer(kind)(buffer, entity)
    return buffer.getvalue()


def with_produce_codes(
    entity: Any,
    code: int,
    *,
    topic: str | None,
    partition: int | None,
    text: str | None,
    topic_names: dict[UUID, str],
) -> Any:
    """Return the Produce answer with ``code`` as the error of the given partitions (None: of all)."""
    topics = []
    for each in entity.responses:
        name = each.name if hasattr(each, "name") else topic_names.get(each.topic_id, "")
        parts = tuple(
            _with_code(part, code, text)
            if topic in (None, name) and partition in (None, int(part.index))
            else part
            for part in each.partition_responses
        )
        topics.append(dataclasses.replace(each, partition_responses=parts))
    return dataclasses.replace(entity, responses=tuple(topics))


def _with_code(part: Any, code: int, text: str | None) -> Any:
    values: dict[str, Any] = {"error_code": ErrorCode(code)}
    if code:
        values["base_offset"] = -1
    if hasattr(part, "error_message"):
        values["error_message"] = text
    return dataclasses.replace(part, **values)
