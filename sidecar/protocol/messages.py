"""Requests and responses as kio's dataclasses: framing, headers, decoding. Sans-IO.

The ports and links of a worker and of the controller call it, on their loops.

Only Produce requests are framed elsewhere (``produce.py``), because their records must not be copied.
"""

from __future__ import annotations

import struct
from dataclasses import field, fields, is_dataclass, make_dataclass
from datetime import timedelta
from enum import IntEnum
from functools import cache
from importlib import import_module
from io import BytesIO
from types import GenericAlias
from typing import Any, Final, Protocol, TypeAlias, cast, get_args, get_origin

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

MILLISECOND: Final = timedelta(milliseconds=1)
_LENGTH: Final = struct.Struct(">i")


Buffer: TypeAlias = bytes | bytearray | memoryview
"""A part of a message to be sent."""


class ProtocolError(Exception):
    """A broker sent data that is not valid Kafka protocol."""


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


_SCHEMA_NAMES: Final = {
    ApiKey.PRODUCE: "produce",
    ApiKey.FETCH: "fetch",
    ApiKey.LIST_OFFSETS: "list_offsets",
    ApiKey.METADATA: "metadata",
    ApiKey.FIND_COORDINATOR: "find_coordinator",
    ApiKey.SASL_HANDSHAKE: "sasl_handshake",
    ApiKey.SASL_AUTHENTICATE: "sasl_authenticate",
    ApiKey.API_VERSIONS: "api_versions",
    ApiKey.CREATE_TOPICS: "create_topics",
    ApiKey.DESCRIBE_CONFIGS: "describe_configs",
    ApiKey.INIT_PRODUCER_ID: "init_producer_id",
    ApiKey.ADD_PARTITIONS_TO_TXN: "add_partitions_to_txn",
    ApiKey.ADD_OFFSETS_TO_TXN: "add_offsets_to_txn",
    ApiKey.END_TXN: "end_txn",
    ApiKey.TXN_OFFSET_COMMIT: "txn_offset_commit",
    ApiKey.DESCRIBE_PRODUCERS: "describe_producers",
    ApiKey.DESCRIBE_TRANSACTIONS: "describe_transactions",
    ApiKey.LIST_TRANSACTIONS: "list_transactions",
}


class RequestMessage(Protocol):
    """A kio request entity (``__api_key__``, ``__version__`` and ``__header_schema__`` are its class's)."""

    __api_key__: Any
    __version__: Any
    __header_schema__: Any


@cache
def request_module(api_key: int, version: int) -> Any:
    """kio's module with the request of that version, e.g. ``kio.schema.metadata.v12.request``."""
    return import_module(f"kio.schema.{_SCHEMA_NAMES[ApiKey(api_key)]}.v{version}.request")


@cache
def response_module(api_key: int, version: int) -> Any:
    """kio's module with the response of that version."""
    return import_module(f"kio.schema.{_SCHEMA_NAMES[ApiKey(api_key)]}.v{version}.response")


@cache
def _response_reader(api_key: int, version: int) -> Any:
    module = response_module(api_key, version)
    name = _SCHEMA_NAMES[ApiKey(api_key)].title().replace("_", "") + "Response"
    return entity_reader(_with_plain_codes(getattr(module, name)))


def _with_plain_codes(kind: Any) -> Any:
    """kio's class of an answer, with error codes as plain numbers.

    kio refuses the whole answer for a code that its release does not know. One topic with an error of a newer Kafka
    would then hide all other topics of a Metadata answer.
    """
    changed: list[tuple[str, Any, Any]] = []
    for each in fields(kind):
        if each.metadata.get("kafka_type") == "error_code":
            changed.append((each.name, int, field(metadata={**each.metadata, "kafka_type": "int16"})))
        elif get_origin(each.type) is tuple and is_dataclass(inner := get_args(each.type)[0]):
            plain = _with_plain_codes(inner)
            if plain is not inner:
                changed.append((each.name, GenericAlias(tuple, (plain, ...)), field(metadata=each.metadata)))
    if not changed:
        return kind
    return make_dataclass(kind.__name__, changed, bases=(kind,), frozen=True, slots=True, kw_only=True)


def is_response_header_flexible(api_key: int, version: int) -> bool:
    """Whether the response header has tagged fields. ApiVersions never has, so that its errors stay readable."""
    module = response_module(api_key, version)
    return bool(module.ResponseHeader.__flexible__)


def encode_request(message: RequestMessage, correlation_id: int, client_id: str | None) -> bytes:
    """The whole request: 4-byte length, header, body."""
    buffer = BytesIO()
    buffer.write(b"\0\0\0\0")
    header_type = message.__header_schema__
    header = header_type(
        request_api_key=message.__api_key__,
        request_api_version=message.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    entity_writer(header_type)(buffer, header)
    entity_writer(cast(Any, type(message)))(buffer, message)
    view = buffer.getbuffer()
    _LENGTH.pack_into(view, 0, len(view) - 4)
    return bytes(view)


def decode_response(api_key: int, version: int, body: bytes) -> Any:
    """Decode a response body (without its header). Raises ProtocolError if it cannot be read."""
    if api_key == ApiKey.SASL_AUTHENTICATE and version:
        # Imported here, so that a process without logins does not import it.
        from sidecar.protocol.sasl.lifetime import with_readable_lifetime

        body = with_readable_lifetime(version, body)
    try:
        entity, _ = _response_reader(api_key, version)(body, 0)
    except (SerialError, ValueError, TypeError, OverflowError) as error:
        raise ProtocolError(
            f"The broker's answer to {ApiKey(api_key).name} v{version} cannot be read: "
            f"{type(error).__name__}: {error}"
        ) from error
    return entity


def milliseconds(duration: timedelta) -> int:
    return duration // MILLISECOND
