"""The codec of the control messages (:mod:`sidecar.common.control`).

One message is a 4-byte big-endian length, then a msgpack array ``[kind, {field: value}]``. The end of the stream means
that the peer has died. Unknown fields are ignored, a missing field gets its default, and an unknown kind is an error,
because both ends come from one installation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import starmap
from typing import Any, Final, get_args

import msgpack

from sidecar.common.condition import BrokerRow, HoldRow, LettersRow, ShareRow, WaitRow
from sidecar.common.control import (
    ControlKind,
    ControlMessage,
    FailureRow,
    PartitionUpdate,
    TopicError,
)
from sidecar.common.explanation import ClientAccount, StageAccount, WaitingRow
from sidecar.common.model import Node

LENGTH: Final = struct.Struct(">I")
MESSAGE_BYTES_MAX: Final = 256 << 20
"""Limit of one message. A full metadata update of 200,000 partitions has about 10 MiB; more means a broken stream."""
START_FD_BYTE: Final = b"F"
"""Precedes START and carries its file descriptors (SCM_RIGHTS): the segment, then the eventfds."""


class ControlError(ValueError):
    """The control stream has data that is no valid message."""


_MESSAGE_TYPES: Final[dict[int, type[ControlMessage]]] = {
    message_type.kind: message_type for message_type in get_args(ControlMessage)
}


def _rows(row_type: Callable[..., Any]) -> Callable[[list[Any]], tuple[Any, ...]]:
    return lambda rows: tuple(starmap(row_type, rows))


def _rows_by_name(row_type: Callable[..., Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda rows: {name: row_type(*row) for name, row in rows.items()}


def _partitions(value: list[Any]) -> tuple[PartitionUpdate, ...]:
    return tuple(
        PartitionUpdate(
            topic, topic_id, partition, leader, epoch, tuple(isr), tuple(replicas), tuple(offline)
        )
        for topic, topic_id, partition, leader, epoch, isr, replicas, offline in value
    )


_FROM_WIRE: Final[dict[tuple[ControlKind, str], Any]] = {
    (ControlKind.UPDATE_METADATA, "brokers"): _rows(Node),
    (ControlKind.UPDATE_METADATA, "partitions"): _partitions,
    (ControlKind.TOPIC_ERRORS, "errors"): _rows_by_name(TopicError),
    (ControlKind.NEED_TOPICS, "topics"): tuple,
    (ControlKind.NEED_TOPICS, "used"): tuple,
    (ControlKind.START, "wake_fds"): tuple,
    (ControlKind.FAILED_RECORDS, "rows"): _rows(FailureRow),
    (ControlKind.CONDITION, "brokers"): _rows(BrokerRow),
    (ControlKind.CONDITION, "topics"): _rows(ShareRow),
    (ControlKind.CONDITION, "clients"): _rows(ShareRow),
    (ControlKind.CONDITION, "holds"): _rows(HoldRow),
    (ControlKind.CONDITION, "waits"): _rows(WaitRow),
    (ControlKind.CONDITION, "letters"): _rows(LettersRow),
    (ControlKind.EXPLAINED, "rows"): _rows(WaitingRow),
    (ControlKind.EXPLAINED, "clients"): _rows(ClientAccount),
    (ControlKind.EXPLAINED, "stages"): _rows(StageAccount),
}


def encode_message(message: ControlMessage) -> bytes:
    """Encode a message with its 4-byte length."""
    values = {each.name: getattr(message, each.name) for each in fields(message)}
    body: bytes = msgpack.packb([int(message.kind), values], default=_plain)
    return LENGTH.pack(len(body)) + body


def _plain(value: object) -> object:
    if isinstance(value, Mapping):  # MappingProxyType and other mappings
        return dict(value)
    raise TypeError(f"a control message cannot carry {type(value).__name__}: {value!r}")


def decode_message(body: bytes | bytearray | memoryview) -> ControlMessage:
    """Decode a message without its length. Raises ControlError for anything else."""
    try:
        kind, values = msgpack.unpackb(body, strict_map_key=False)
        message_type = _MESSAGE_TYPES[kind]
        known = {each.name for each in fields(message_type)}
        arguments = {
            name: _FROM_WIRE[message_type.kind, name](value)
            if (message_type.kind, name) in _FROM_WIRE
            else value
            for name, value in values.items()
            if name in known
        }
        return message_type(**arguments)
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise ControlError(f"not a control message ({type(error).__name__}: {error})") from error


class ControlDecoder:
    """Splits a byte stream into messages. Not thread-safe."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> list[ControlMessage]:
        """Take received bytes and return the messages that are now complete. Raises ControlError."""
        self._pending += data
        messages: list[ControlMessage] = []
        position = 0
        while len(self._pending) - position >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._pending, position)
            if length > MESSAGE_BYTES_MAX:
                raise ControlError(f"a control message of {length} bytes is over {MESSAGE_BYTES_MAX}")
            end = position + LENGTH.size + length
            if len(self._pending) < end:
                break
            messages.append(decode_message(bytes(self._pending[position + LENGTH.size : end])))
            position = end
        del self._pending[:position]
        return messages
