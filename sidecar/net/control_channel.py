"""ControlChannel: messages between controller and worker over a socketpair, on an event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable

from sidecar.common.control import ControlMessage
from sidecar.common.control_codec import ControlDecoder, ControlError, encode_message

log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 << 10
QUEUE_BYTES_MAX = 64 << 20
"""If a peer leaves this many bytes unread it counts as dead, and the channel closes."""


class ControlChannel:
    """One end of the socketpair. Belongs to the loop's thread. It reads from :meth:`start` on.

    ``on_message(message)`` runs for each message in order. ``on_closed(error)`` runs once: with None if the peer
    closed its end, with a sentence if the stream was broken; not after ``close()`` of this end. Takes ownership of
    ``sock``.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_message: Callable[[ControlMessage], None],
        on_closed: Callable[[str | None], None],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._sock = sock
        self._loop = loop or asyncio.get_running_loop()
        self._on_message = on_message
        self._on_closed = on_closed
        self._decoder = ControlDecoder()
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._is_writer_set = False
        self.is_closed = False
        sock.setblocking(False)

    def start(self) -> None:
        """Begin to read."""
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def send(self, message: ControlMessage) -> None:
        """Send or queue a message. Never blocks, and never raises for a dead peer (``on_closed`` reports that)."""
        if self.is_closed:
            return
        data = memoryview(encode_message(message))
        self._queue.append(data)
        self._queued_bytes += len(data)
        if not self._is_writer_set:
            self._writable()
        if self._queued_bytes > QUEUE_BYTES_MAX:
            self._fail_soon(f"the peer has left {self._queued_bytes} bytes of control messages unread")

    def close(self) -> None:
        """Close now. Queued bytes are dropped, and ``on_closed`` is not called."""
        if self.is_closed:
            return
        self.is_closed = True
        fd = self._sock.fileno()
        self._loop.remove_reader(fd)
        if self._is_writer_set:
            self._loop.remove_writer(fd)
        self._queue.clear()
        self._queued_bytes = 0
        self._sock.close()

    def _readable(self) -> None:
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            # A reset also means the peer's death: it died with unread data.
            self._fail(None if isinstance(error, ConnectionResetError) else str(error))
            return
        if not data:
            self._fail(None)
            return
        try:
            messages = self._decoder.feed(data)
        except ControlError as error:
            self._fail(str(error))
            return
        for message in messages:
            if self.is_closed:
                return
            try:
                self._on_message(message)
            except Exception:
                # An exception in one message's handler must not cost the messages after it.
                log.exception("The handler of a %s control message failed.", message.kind.name)

    def _writable(self) -> None:
        while self._queue:
            try:
                taken = self._sock.send(self._queue[0])
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                # Do not report inside send(): reading finds the same death, in order, after the peer's last messages.
                self._queue.clear()
                self._queued_bytes = 0
                self._fail_soon(None)
                break
            self._queued_bytes -= taken
            if taken == len(self._queue[0]):
                self._queue.popleft()
            else:
                self._queue[0] = self._queue[0][taken:]
        is_wanted = bool(self._queue)
        if is_wanted and not self._is_writer_set:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        elif not is_wanted and self._is_writer_set:
            self._loop.remove_writer(self._sock.fileno())
        self._is_writer_set = is_wanted

    def _fail_soon(self, error: str | None) -> None:
        self._loop.call_soon(self._drain_and_fail, error)

    def _drain_and_fail(self, error: str | None) -> None:
        # The peer may have sent messages before it died (for instance Drained): read them first.
        while error is None and not self.is_closed:
            before = self._sock.fileno()
            try:
                if not self._sock.recv(1, socket.MSG_PEEK):
                    break
            except OSError:
                break
            self._readable()
            if before != self._sock.fileno():
                return
        self._fail(error)

    def _fail(self, error: str | None) -> None:
        if self.is_closed:
            return
        self.close()
        try:
            self._on_closed(error)
        except Exception:
            log.exception("The handler of a closed control channel failed.")
