"""Questions: single requests and their answers, before a connection is given to its link.

The connector and `doctor` use it, on the loop of the connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

from sidecar.net.kafka.transport import RECEIVE_BYTES, LinkTransport
from sidecar.protocol.connection import SETUP_ANSWER_BYTES_MAX, BrokerConnection, InFlightRequest
from sidecar.protocol.messages import (
    ProtocolError,
    RequestMessage,
    decode_response,
    encode_request,
    is_response_header_flexible,
)

TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
"""First bytes of a TLS port's answer to a peer that does not use TLS."""


class EndedEarly(ConnectionError):
    """The broker has closed the connection. ``has_answered``: it had answered something before."""

    def __init__(self, *, has_answered: bool) -> None:
        super().__init__("the connection was closed")
        self.has_answered = has_answered


class Questions:
    """Sends requests one by one. Belongs to one task, which may be cancelled at any await."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        transport: LinkTransport,
        client_id: str | None,
    ) -> None:
        self.connection = BrokerConnection(SETUP_ANSWER_BYTES_MAX)
        self._loop = loop
        self._sock = sock
        self._transport = transport
        self._client_id = client_id
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._has_answered = False

    async def ask(self, message: RequestMessage) -> bytes:
        """Send one request and return the body of its answer.

        Raises EndedEarly, ProtocolError for an answer that cannot be read, and OSError for a failed connection.
        """
        api_key, version = int(message.__api_key__), int(message.__version__)
        correlation_id = self.connection.take_correlation_id()
        is_flexible = is_response_header_flexible(api_key, version)
        self.connection.expect(InFlightRequest(correlation_id, api_key, version, is_flexible, None))
        try:
            await self._send(encode_request(message, correlation_id, self._client_id))
            body = await self._receive()
        except (ConnectionResetError, BrokenPipeError):
            raise EndedEarly(has_answered=self._has_answered) from None
        self._has_answered = True
        return body

    async def _send(self, request: bytes) -> None:
        left = memoryview(request)
        while left:
            try:
                left = left[self._transport.send([left]) :]
            except BlockingIOError:
                await self._wait(self._loop.add_writer, self._loop.remove_writer)

    async def _receive(self) -> bytes:
        while True:
            try:
                count = self._transport.receive_into(self._buffer)
            except BlockingIOError:
                await self._wait(self._loop.add_reader, self._loop.remove_reader)
                continue
            if not count:
                raise EndedEarly(has_answered=self._has_answered)
            try:
                responses = self.connection.receive_data(self._buffer[:count])
            except ProtocolError:
                if bytes(self._buffer[:2]) in TLS_RECORDS:
                    raise ProtocolError(
                        "it answers in TLS and we do not; set security.protocol to SSL or SASL_SSL"
                    ) from None
                raise
            if responses:
                return responses[0].body

    async def _wait(self, add: Callable[..., None], remove: Callable[[int], object]) -> None:
        possible: asyncio.Future[None] = self._loop.create_future()
        fd = self._sock.fileno()

        def is_possible() -> None:
            if not possible.done():
                possible.set_result(None)

        add(fd, is_possible)
        try:
            await possible
        finally:
            remove(fd)


def complete(future: asyncio.Future[Any], request: InFlightRequest, body: bytes) -> None:
    """Complete the future of a request by its answer: with the response entity (kio), or ProtocolError."""
    if future.done():  # its caller was cancelled
        return
    try:
        future.set_result(decode_response(request.api_key, request.version, body))
    except Exception as error:  # also one that was not foreseen: otherwise the caller would wait for ever
        future.set_exception(error)
