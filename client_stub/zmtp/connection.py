"""ZmtpConnection: one end of a connection of ZMTP 3.1, by any mechanism. Bytes in, messages out. Sans-IO.

One parser and one set of limits serve all mechanisms. Not thread-safe.
"""

from __future__ import annotations

from typing import Final

from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.frames import (
    COMMAND,
    FRAMES_MAX,
    HEADER_BYTES_MAX,
    LONG,
    MESSAGE_BYTES_MAX,
    MORE,
    U64,
    ZmtpError,
    short_text,
)
from client_stub.zmtp.mechanism import GREETING_BYTES, Mechanism, PeerRefused, WholeMessage, check_greeting

SKIPPED_BYTES_MAX: Final = 1 << 32
"""The longest message that is read and discarded; no client of ours sends a longer one even by mistake."""
COMMAND_BYTES_MAX: Final = 1 << 10
"""The limit of a command with its header. No message may come before READY, so this is also all that an unknown peer
can make us store.
"""
READ_BYTES_MIN: Final = 8 << 10
"""A buffer with less free memory is compacted, or replaced by a larger one."""
_NO_MEMORY: Final = memoryview(b"")


class ZmtpConnection:
    """One end of a connection. Its owner sends ``mechanism.opening`` first, then ``replies`` whenever there are some.
    Bytes are received by ``space`` and ``received``.

    A connection without a partial message holds none of ``buffers``, unless these are kept. A message over
    ``message_bytes_max`` raises ZmtpError, unless :meth:`skip_long_messages` was called.
    """

    __slots__ = (
        "_buffers",
        "_end",
        "_held",
        "_held_bytes",
        "_is_greeted",
        "_is_ready",
        "_is_skipping",
        "_left_to_skip",
        "_message_bytes_max",
        "_more_to_skip",
        "_peer_types",
        "_skipped",
        "_skipped_frames",
        "_skips",
        "_start",
        "_view",
        "_wanted",
        "_whole_message",
        "mechanism",
        "replies",
        "skipped_bytes",
    )

    def __init__(
        self,
        mechanism: Mechanism,
        peer_types: frozenset[bytes],
        buffers: Buffers,
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self.mechanism = mechanism
        self._peer_types = peer_types
        self._buffers = buffers
        self._message_bytes_max = message_bytes_max
        self._skips = False
        self._view: memoryview | None = None
        self._start = 0
        self._end = 0
        self._wanted = 0
        """The number of bytes from ``_start`` on that the present message needs at least, as far as is known."""
        self._is_greeted = False
        self._is_ready = False
        self._whole_message: WholeMessage | None = None
        """Set while messages can be read at once: after the handshake of NULL, unless one is being skipped."""
        self._held: list[memoryview] = []
        """Frames of the present message that are not in the buffer: decrypted, or kept while its rest is skipped."""
        self._held_bytes = 0
        """Their bytes, with their headers. The buffers count them, too."""
        self._is_skipping = False
        self._skipped = self._skipped_frames = 0
        self._left_to_skip = 0
        self._more_to_skip = False
        self.skipped_bytes = 0
        """Of the last message that ``next_message`` returned: how many bytes after its frames were discarded."""
        self.replies: list[bytes] = []
        """Commands of the handshake, and PONG, that the owner has to send."""

    @property
    def is_ready(self) -> bool:
        """Whether the handshake is over, so that messages may come."""
        return self._is_ready

    @property
    def has_part(self) -> bool:
        """Whether bytes have arrived that are not a complete message (or were not parsed yet); they occupy memory."""
        return bool(self._held) or (self._view is not None and self._end > self._start)

    def skip_long_messages(self, buffers: Buffers, message_bytes_max: int) -> None:
        """Use other buffers and another limit from now on; of a message over the limit only the first frames are kept.

        Its other bytes are discarded and counted in ``skipped_bytes``, so that its sender can be answered.
        """
        held = self._held_bytes + (0 if self._view is None else len(self._view))
        self._buffers.count(-held)
        buffers.count(held)
        self._buffers = buffers
        self._message_bytes_max = message_bytes_max
        self._skips = True

    def space(self) -> memoryview:
        """The memory for the next bytes. Empty while a limit of the buffers forbids a larger one.

        Frames that ``next_message`` returned before are then invalid.
        """
        view = self._view
        if view is None:
            view = self._view = self._buffers.first()
            self._start = self._end = 0
        elif len(view) - self._end < READ_BYTES_MIN or (
            self._start and len(view) - self._start < self._wanted
        ):
            left = self._end - self._start
            if self._start and 2 * left <= len(view):
                view[:left] = view[self._start : self._end]
            else:
                # Doubles each time, whatever size the peer announces: memory follows the bytes that really came.
                larger = self._buffers.larger(len(view))
                if larger is None:
                    return _NO_MEMORY
                larger[:left] = view[self._start : self._end]
                self._buffers.give(view)
                view = self._view = larger
            self._start, self._end = 0, left
        return view[self._end :]

    def received(self, count: int) -> None:
        """Note that ``count`` bytes were written to the memory of ``space``."""
        self._end += count

    def give_back_unused(self) -> None:
        """Note that nothing was written to the memory of ``space``."""
        if self._view is not None and self._end == self._start:
            self._give_back(self._view)

    def close(self) -> None:
        """Free all memory, as the connection is gone."""
        self._take_held()
        if self._view is not None:
            self._buffers.give(self._view)
            self._view = None

    def next_message(self) -> list[memoryview] | None:
        """The frames of the next complete message, valid until ``space``; None when more bytes are needed.

        Raises ZmtpError.
        """
        view = self._view
        if view is None:
            return None
        self.skipped_bytes = 0
        whole_message = self._whole_message
        if whole_message is not None:
            if self._start == self._end:
                if len(view) == self._buffers.kept_bytes:
                    self._start = self._end = self._wanted = 0
                else:
                    self._give_back(view)
                return None
            found = whole_message(view, self._start, self._end, self._message_bytes_max)
            if found is not None:
                frames, self._start = found
                return frames
        return self._next_of(view)

    def _next_of(self, view: memoryview) -> list[memoryview] | None:
        """Read frame by frame: the handshake, commands, encrypted frames, an incomplete message, one that is too long.

        Plain frames stay in the buffer, and are read again from the message's begin when more has arrived.
        """
        if not self._is_greeted and not self._greet(view):
            return None
        if self._is_skipping:
            return self._skip(view)
        box_bytes = self.mechanism.box_bytes
        frames: list[memoryview] = self._held if box_bytes else []
        at = self._start
        while (head := self._head_at(view, at)) is not None:
            flags, body, stop = head
            is_command = not self._is_ready or (not box_bytes and bool(flags & COMMAND))
            if is_command:
                _check_command(flags, stop - at, frames)
            elif flags & ~(LONG | (COMMAND if box_bytes else MORE)):
                raise ZmtpError(f"a frame with flags {flags:#x} where none is expected")
            elif not frames and stop - body > HEADER_BYTES_MAX + box_bytes:
                raise ZmtpError(f"a first frame of more than {HEADER_BYTES_MAX} bytes")
            elif self._held_bytes + stop - self._start - box_bytes > self._message_bytes_max:
                if not self._skips or not frames:
                    raise ZmtpError(f"a message of more than {self._message_bytes_max} bytes")
                self._begin_to_skip(at, frames)
                return self._skip(view)
            if stop > self._end:
                self._wanted = stop - self._start
                return None
            if is_command:
                self._start = stop
                self._command(bytes(view[body:stop]))
            elif not box_bytes:
                frames.append(view[body:stop])
            else:
                self._start = stop
                flags, frame = self.mechanism.open(view[body:stop])
                if flags & COMMAND:
                    _check_command(flags, len(frame), frames)
                    self._command(bytes(frame))
                    is_command = True
                else:
                    self._hold(frame, body - at)
            at = stop
            if is_command:
                continue
            if not flags & MORE:
                self._start = at
                return self._take_held() if box_bytes else frames
            if len(frames) == FRAMES_MAX:
                raise ZmtpError(f"a message of more than {FRAMES_MAX} frames")
        self._wanted = at + 9 - self._start
        if self._start == self._end:
            self._give_back(view)
        return None

    def _head_at(self, view: memoryview, at: int) -> tuple[int, int, int] | None:
        """(flags, begin of the body, its end) of the frame at ``at``; None while its header is incomplete."""
        left = self._end - at
        if left < 2:
            return None
        flags = view[at]
        if not flags & LONG:
            return flags, at + 2, at + 2 + view[at + 1]
        if left < 9:
            return None
        return flags, at + 9, at + 9 + int(U64.unpack_from(view, at + 1)[0])

    def _begin_to_skip(self, at: int, frames: list[memoryview]) -> None:
        """The frame at ``at`` makes its message too long: keep the frames before it, and skip it and all after it."""
        if not self.mechanism.box_bytes:
            for frame in frames:
                self._hold(memoryview(bytes(frame)), 0)
        self._start = at
        self._is_skipping, self._whole_message = True, None
        self._wanted = self._skipped = self._left_to_skip = 0
        self._skipped_frames = len(frames)
        self._more_to_skip = True

    def _skip(self, view: memoryview) -> list[memoryview] | None:
        """Discard the rest of a message. Returns its kept frames once its last frame has ended.

        Only a decrypted frame says whether another follows, so an encrypted one that is too long counts as the last.
        """
        while True:
            gone = min(self._left_to_skip, self._end - self._start)
            self._start += gone
            self._left_to_skip -= gone
            if not self._left_to_skip and not self._more_to_skip:
                self._is_skipping, self._whole_message = False, self.mechanism.whole_message
                self.skipped_bytes = self._skipped
                return self._take_held()
            head = None if self._left_to_skip else self._head_at(view, self._start)
            if head is None:
                if self._start == self._end:
                    self._give_back(view)
                return None
            flags, self._start, stop = head
            if flags & ~(LONG | (COMMAND if self.mechanism.box_bytes else MORE)):
                raise ZmtpError(f"a frame with flags {flags:#x} where none is expected")
            self._left_to_skip, self._more_to_skip = stop - self._start, bool(flags & MORE)
            self._skipped += self._left_to_skip
            self._skipped_frames += 1
            if self._skipped_frames > FRAMES_MAX:
                raise ZmtpError(f"a message of more than {FRAMES_MAX} frames")
            if self._skipped > SKIPPED_BYTES_MAX:
                raise ZmtpError(f"a message of more than {SKIPPED_BYTES_MAX} bytes")

    def _hold(self, frame: memoryview, header_bytes: int) -> None:
        """Keep a frame outside the buffer."""
        self._held.append(frame)
        self._held_bytes += header_bytes + len(frame)
        self._buffers.count(header_bytes + len(frame))

    def _take_held(self) -> list[memoryview]:
        frames, self._held = self._held, []
        self._buffers.count(-self._held_bytes)
        self._held_bytes = 0
        return frames

    def _give_back(self, view: memoryview) -> None:
        self._view, self._wanted = None, 0
        self._buffers.give(view)

    def _greet(self, view: memoryview) -> bool:
        """True once the peer's greeting has arrived. Raises ZmtpError for one of another protocol or mechanism."""
        found = bytes(view[self._start : min(self._end, self._start + GREETING_BYTES)])
        check_greeting(found, self.mechanism.name)
        if len(found) < GREETING_BYTES:
            return False
        self._start += GREETING_BYTES
        self._is_greeted = True
        self._reply(self.mechanism.greeted())
        return True

    def _command(self, body: bytes) -> None:
        name, rest = short_text(body)
        if not self._is_ready:
            reply, metadata = self.mechanism.handshake(name, rest)
            self._reply(reply)
            if metadata is not None:
                kind = metadata.get(b"socket-type", b"")
                if kind not in self._peer_types:
                    served = " or ".join(sorted(each.decode() for each in self._peer_types))
                    raise ZmtpError(f"its socket is of the type {kind[:20]!r}, not {served}")
                self._is_ready = True
                self._whole_message = self.mechanism.whole_message
        elif name == b"PING" and len(rest) >= 2:
            # Two bytes of TTL, then a context of at most 16 bytes.
            self._reply(self.mechanism.command(b"PONG", rest[2:18]))
        elif name == b"ERROR":
            raise PeerRefused(rest[1:])

    def _reply(self, data: bytes) -> None:
        if data:
            self.replies.append(data)


def _check_command(flags: int, size: int, frames: list[memoryview]) -> None:
    """Raises ZmtpError for a command that is too long or inside a message, and for a frame that is no command."""
    if size > COMMAND_BYTES_MAX:
        raise ZmtpError(f"a command of more than {COMMAND_BYTES_MAX} bytes")
    if flags & ~LONG != COMMAND or frames:
        raise ZmtpError(f"a frame with flags {flags:#x} where none is expected")
