"""A producer without any care: Produce requests with the identity and sequence that a test wants, on a socket of its
own. Record batches are written here, so that the broker is judged and not our encoder.
"""

from __future__ import annotations

import gzip
import itertools
import socket
import struct
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from sidecar.protocol.describe_producers import (
    ProducerState,
    describe_producers_request,
    parse_describe_producers,
)
from sidecar.protocol.init_producer_id import (
    InitProducerIdResult,
    init_producer_id_request,
    parse_init_producer_id,
)
from sidecar.protocol.messages import ApiKey, RequestMessage, decode_response, encode_request
from sidecar.protocol.produce import ProduceTopic, decode_produce_response, encode_produce
from sidecar.tools.testing.record_batches import CRC_FROM, HEADER

VERSION: Final = 11
DESCRIBE_VERSION: Final = 0
INIT_VERSION: Final = 4
ANSWER_S: Final = 30.0


class Answer(NamedTuple):
    """``code`` 0: success."""

    code: int
    offset: int


def _varint(value: int) -> bytes:
    value = value << 1 ^ value >> 63
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def make_batch(
    values: Sequence[bytes], producer_id: int, epoch: int, sequence: int, *, at_ms: int | None, packed: bool
) -> bytes:
    records = b""
    for index, value in enumerate(values):
        body = b"\0" + _varint(0) + _varint(index) + _varint(-1) + _varint(len(value)) + value + _varint(0)
        records += _varint(len(body)) + body
    if packed:
        records = gzip.compress(records)
    stamp_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
    fields = (int(packed), len(values) - 1, stamp_ms, stamp_ms, producer_id, epoch, sequence, len(values))
    length = HEADER.size - 12 + len(records)
    head = HEADER.pack(0, length, -1, 2, 0, *fields)
    crc = crc32c(head[CRC_FROM:] + records)
    return HEADER.pack(0, length, -1, 2, crc, *fields) + records


class RawProducer:
    """One connection. ``send`` and ``answer`` apart, so that requests may be on their way; ``produce`` does both."""

    def __init__(self, address: str, topic: str, partition: int) -> None:
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), ANSWER_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._serial = itertools.count(1)
        self.topic = topic
        self.partition = partition

    def request(
        self,
        identity: tuple[int, int],
        sequence: int,
        *values: bytes,
        at_ms: int | None = None,
        packed: bool = False,
    ) -> bytes:
        """The bytes of a Produce request with one batch."""
        batch = make_batch(values, *identity, sequence, at_ms=at_ms, packed=packed)
        topics = [ProduceTopic(self.topic, None, [(self.partition, batch)])]
        return b"".join(encode_produce(VERSION, next(self._serial), "raw", -1, 30_000, None, topics))

    def send(self, identity: tuple[int, int], sequence: int, *values: bytes, **how: Any) -> None:
        self._sock.sendall(self.request(identity, sequence, *values, **how))

    def send_bytes(self, data: bytes) -> None:
        self._sock.sendall(data)

    def answer(self) -> Answer:
        """The next answer to a Produce request."""
        (result,) = decode_produce_response(VERSION, self._frame()[5:]).results  # correlation id and tags
        return Answer(result.error_code, result.base_offset)

    def produce(self, identity: tuple[int, int], sequence: int, *values: bytes, **how: Any) -> Answer:
        self.send(identity, sequence, *values, **how)
        return self.answer()

    def init_producer_id(self) -> InitProducerIdResult:
        body = self._ask(init_producer_id_request(INIT_VERSION))
        return parse_init_producer_id(decode_response(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, body))

    def describe(self) -> dict[int, ProducerState]:
        """The broker's memory of the partition's producers."""
        body = self._ask(describe_producers_request(DESCRIBE_VERSION, {self.topic: [self.partition]}))
        (told,) = parse_describe_producers(decode_response(ApiKey.DESCRIBE_PRODUCERS, DESCRIBE_VERSION, body))
        assert told.error_code == 0
        return dict(told.producers)

    def close(self) -> None:
        self._sock.close()

    def reset(self) -> None:
        """Close as the kernel does for a killed process with answers unread: by a reset."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def _ask(self, message: RequestMessage) -> bytes:
        self._sock.sendall(encode_request(message, next(self._serial), "raw"))
        return self._frame()[5:]

    def _frame(self) -> bytes:
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._sock.recv(count - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return data

    def __enter__(self) -> RawProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
