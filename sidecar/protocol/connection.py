"""One connection to a broker, sans-IO: BrokerConnection has correlation ids, frames and deadlines; SendQueue has the
bytes to be sent.

A broker answers the requests of one connection in order, so the next frame answers the oldest request in flight.
Anything else ends the connection.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from typing import Final, NamedTuple

from sidecar.protocol.messages import Buffer, ProtocolError

RESPONSE_BYTES_MAX: Final = 100 << 20
SETUP_ANSWER_BYTES_MAX: Final = 1 << 20
"""Limit of an answer's bytes until the peer has proved to be a broker. ApiVersions has about 1 KiB."""
_LENGTH: Final = struct.Struct(">i")
_CORRELATION_ID: Final = struct.Struct(">i")
CORRELATION_IDS: Final = range(1 << 31)
"""Taken in this order, again and again."""

make_tuple: Final = tuple.__new__
"""Builds named tuples that are made for each request: their own constructor is one more Python call."""

OnTaken = Callable[[bool], None]
"""Called once per message: True when the kernel has all bytes, False if the link closed before that."""


class InFlightRequest(NamedTuple):
    """A request that waits for its answer. ``deadline_ms`` is monotonic; None: its owner watches the time."""

    correlation_id: int
    api_key: int
    version: int
    has_flexible_header: bool
    deadline_ms: float | None


class Response(NamedTuple):
    """An answer. ``body`` is the part after the response header."""

    request: InFlightRequest
    body: bytes


class BrokerConnection:
    """Protocol state of one connection, from its first byte to its end. Never re-used."""

    def __init__(self, answer_bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        self.answer_bytes_max = answer_bytes_max
        self.take_correlation_id: Final = chain.from_iterable(repeat(CORRELATION_IDS)).__next__
        """Returns a correlation id for the next request. It need not be used, nor used in this order."""
        self.in_flight: Final[deque[InFlightRequest]] = deque()
        """Requests without an answer, oldest first."""
        self.expect: Final = self.in_flight.append
        """Notes that a request is sent now, after all earlier ones, and will be answered."""
        self._pending = bytearray()

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[Response]:
        """Take received bytes and return the answers that are now complete, in order.

        Raises ProtocolError for a frame that is too long, an unexpected answer, or a wrong correlation id. The
        connection is then unusable.
        """
        pending = self._pending
        if pending:
            pending += data
            data = pending
        responses: list[Response] = []
        position, end = 0, len(data)
        while end - position >= 4:
            (length,) = _LENGTH.unpack_from(data, position)
            if not 4 <= length <= self.answer_bytes_max:
                raise ProtocolError(
                    f"The broker sent a frame of {length} bytes; is this a Kafka port without TLS?"
                )
            start = position + 4
            if end < start + length:
                break
            position = start + length
            frame = bytes(data[start:position])
            (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
            if not self.in_flight:
                raise ProtocolError(
                    f"The broker sent an answer (correlation id {correlation_id}) that nobody asked for."
                )
            request = self.in_flight[0]
            if correlation_id != request.correlation_id:
                raise ProtocolError(
                    f"The broker answered correlation id {correlation_id}, but {request.correlation_id} was next."
                )
            body_start = 4
            if request.has_flexible_header:
                body_start = 5 if frame[4:5] == b"\0" else _skip_tagged_fields(frame, 4)
            self.in_flight.popleft()
            responses.append(make_tuple(Response, (request, frame[body_start:])))
        if data is pending:
            del pending[:position]
        elif position < end:
            pending += data[position:]
        return responses

    def next_deadline_ms(self) -> float | None:
        """The earliest deadline of a request in flight; None if there is none."""
        return min(
            (each.deadline_ms for each in self.in_flight if each.deadline_ms is not None), default=None
        )

    def expired(self, now_ms: float) -> InFlightRequest | None:
        """A request whose deadline has passed, or None. If there is one, the connection must be closed
        (request.timeout.ms).
        """
        for each in self.in_flight:
            if each.deadline_ms is not None and each.deadline_ms <= now_ms:
                return each
        return None


class Outgoing:
    """One message on its way into the kernel. ``index`` and ``offset`` point at the first byte that is not taken yet;
    ``left_bytes`` remain.
    """

    __slots__ = ("buffers", "correlation_id", "index", "left_bytes", "offset", "on_taken")

    def __init__(self, correlation_id: int, buffers: Sequence[Buffer], on_taken: OnTaken | None) -> None:
        self.correlation_id = correlation_id
        self.buffers = list(buffers)
        self.index = 0
        self.offset = 0
        self.left_bytes = sum(map(len, self.buffers))
        self.on_taken = on_taken

    @property
    def is_untouched(self) -> bool:
        return self.index == 0 and self.offset == 0

    def advance(self, taken: int) -> None:
        """Advance by ``taken`` bytes, which must be fewer than are left."""
        self.left_bytes -= taken
        while True:
            rest = len(self.buffers[self.index]) - self.offset
            if taken < rest:
                self.offset += taken
                return
            taken -= rest
            self.index += 1
            self.offset = 0


class SendQueue(deque[Outgoing]):
    """Messages that the kernel has not taken completely, in sending order."""

    def next_buffers(self, count_max: int) -> list[Buffer]:
        """The next bytes to send, in at most ``count_max`` buffers."""
        chosen: list[Buffer] = []
        for message in self:
            start = message.index
            if message.offset:
                chosen.append(memoryview(message.buffers[start])[message.offset :])
                start += 1
            chosen += message.buffers[start : start + count_max - len(chosen)]
            if len(chosen) >= count_max:
                break
        return chosen

    def advance(self, taken: int) -> None:
        """Advance by the bytes that the kernel took, then inform the owners of complete messages.

        The order matters: an owner may send or close inside ``on_taken``, and must find every byte counted.
        """
        complete: list[Outgoing] = []
        while self and self[0].left_bytes <= taken:
            message = self.popleft()
            taken -= message.left_bytes
            message.buffers = []
            complete.append(message)
        if taken:
            self[0].advance(taken)
        for message in complete:
            if message.on_taken is not None:
                message.on_taken(True)

    def untouched(self, unreported_bytes: int) -> Iterator[int]:
        """Correlation ids of messages of which the transport was given no byte.

        Bytes that the transport has not reported may have arrived.
        """
        for each in self:
            if each.is_untouched and unreported_bytes <= 0:
                yield each.correlation_id
            unreported_bytes -= each.left_bytes


def _skip_tagged_fields(frame: bytes, position: int) -> int:
    count, position = _uvarint(frame, position)
    for _ in range(count):
        _, position = _uvarint(frame, position)
        size, position = _uvarint(frame, position)
        position += size
        if position > len(frame):
            raise ProtocolError("A response header from the broker is cut short.")
    return position


def _uvarint(frame: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(frame):
            break
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ProtocolError("A response header from the broker cannot be read.")
