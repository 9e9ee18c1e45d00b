"""CurveZMQ for ZMTP: the handshake of both ends, and encrypted messages. Sans-IO. Needs PyNaCl
(``kafka-sidecar[curve]``).

C and S are the lasting key pairs of client and server, c and s those of one connection; all are Curve25519::

    greeting   FF, 8 x 00, 7F | 03 01 | "CURVE", 15 x 00 | as-server | 31 x 00                        each way
    HELLO      05 "HELLO" | 01 00 | 72 x 00 | c 32 | nonce 8 | box(c to S) of 64 x 00                 client, 200 bytes
    WELCOME    07 "WELCOME" | nonce 16 | box(S to c) of (s 32, cookie 96)                             server, 168 bytes
    INITIATE   08 "INITIATE" | cookie 96 | nonce 8 | box(c to s) of (C 32, nonce 16, vouch 80, properties)
    READY      05 "READY" | nonce 8 | box(s to c) of properties                                       server
    frame      (0 or 2) size | 07 "MESSAGE" | nonce 8 | box of (flags: 1 another follows, 2 a command; body)

The vouch is box(C to s) of (c, S): it proves the client's identity. A short nonce is preceded by 16 letters that name
its use, and only increases within a connection. So each frame is secret, unchanged and in its place; only sizes and
times are visible. The cookie is random and the server compares it, as the server keeps each connection's state in any
case.

Source: RFC 26/CurveZMQ and 25/ZMTP-CURVE of ZeroMQ. Not thread-safe.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from nacl.bindings import (
    crypto_box_beforenm,
    crypto_box_easy_afternm,
    crypto_box_keypair,
    crypto_box_open_easy_afternm,
    crypto_scalarmult_base,
)
from nacl.exceptions import CryptoError

from client_stub.zmtp.connection import (
    COMMAND_BYTES_MAX,
    SKIPPED_BYTES_MAX,
    Buffers,
    KeyNotKnown,
    ZmtpConnection,
    ZmtpError,
    command,
    greeting,
    properties,
    ready_properties,
    short_text,
)
from client_stub.zmtp.frames import (
    COMMAND,
    FRAMES_MAX,
    HEADER_BYTES_MAX,
    LONG,
    LONG_HEAD,
    MESSAGE_BYTES_MAX,
    MORE,
    U64,
    Buffer,
)

MECHANISM: Final = b"CURVE".ljust(20, b"\0")
BOX_BYTES: Final = 16
"""The bytes that a box adds to its contents."""
FRAME_EXTRA_BYTES: Final = 33
"""The bytes that encryption adds to a frame's body: name, nonce, box and flags."""
COOKIE_BYTES: Final = 96
REFUSED_STATUS: Final = b"400"
"""The status in ERROR to a client whose key is not known, as libzmq's servers send it."""
_INNER_COMMAND: Final = 2
_MESSAGE: Final = b"\x07MESSAGE"
_TO_SERVER: Final = b"CurveZMQMESSAGEC"
_TO_CLIENT: Final = b"CurveZMQMESSAGES"


class KeyPair(NamedTuple):
    """A Curve25519 key pair, 32 bytes each."""

    public: bytes
    secret: bytes

    @classmethod
    def new(cls) -> KeyPair:
        public, secret = crypto_box_keypair()
        return cls(public, secret)

    @classmethod
    def of_secret(cls, secret: bytes) -> KeyPair:
        return cls(crypto_scalarmult_base(secret), secret)


class CurveConnection(ZmtpConnection):
    """One end of a connection: encrypts and decrypts frames, and counts nonces. A frame is decrypted once all of it
    has arrived.
    """

    __slots__ = (
        "_nonce",
        "_opened",
        "_opened_bytes",
        "_own",
        "_peer_nonce",
        "_receives",
        "_sends",
        "_shared",
        "opening",
    )

    def __init__(
        self,
        peer_types: frozenset[bytes],
        buffers: Buffers,
        *,
        is_server: bool,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        super().__init__(peer_types, buffers, message_bytes_max=message_bytes_max)
        self.opening = greeting(MECHANISM, as_server=is_server)
        """The first bytes of this end, sent without waiting for the peer's."""
        self._sends, self._receives = (_TO_CLIENT, _TO_SERVER) if is_server else (_TO_SERVER, _TO_CLIENT)
        self._own = KeyPair(b"", b"")
        """The key pair of this connection only."""
        self._shared = b""
        """The shared secret of both ends' keys of this connection; empty until they are known."""
        self._nonce = self._peer_nonce = 0
        self._opened: list[memoryview] = []
        """Decrypted frames of a message that has not arrived completely."""
        self._opened_bytes = 0

    @property
    def has_part(self) -> bool:
        return bool(self._opened) or super().has_part

    def close(self) -> None:
        self._drop_opened()
        super().close()

    def skip_long_messages(self, buffers: Buffers, message_bytes_max: int) -> None:
        self._buffers.count(-self._opened_bytes)
        buffers.count(self._opened_bytes)
        super().skip_long_messages(buffers, message_bytes_max)

    def encode(self, frames: Sequence[Buffer]) -> list[Buffer]:
        """One message as buffers to be written one after another, each frame encrypted."""
        last = len(frames) - 1
        buffers: list[Buffer] = []
        for place, frame in enumerate(frames):
            self._seal(MORE if place < last else 0, bytes(frame), buffers)
        return buffers

    def next_message(self) -> list[memoryview] | None:
        view = self._view
        if view is None:
            return None
        if not self._greeted and not self._greet(view):
            return None
        self.skipped_bytes = 0
        while True:
            if self._left_to_skip:
                if not self._skip_frame(view):
                    return None
                self.skipped_bytes = self._skipped
                return self._drop_opened()
            at, end = self._start, self._end
            if end == at:
                self._give_back(view)
                return None
            flags = view[at]
            if flags & ~(LONG | COMMAND):
                raise ZmtpError(f"a frame with flags {flags:#x} where none is expected")
            head = 9 if flags & LONG else 2
            if end - at < head:
                self._wanted = head
                return None
            size = U64.unpack_from(view, at + 1)[0] if flags & LONG else view[at + 1]
            if not self._ready:
                if not flags & COMMAND or head + size > COMMAND_BYTES_MAX:
                    raise ZmtpError(f"no command of at most {COMMAND_BYTES_MAX} bytes before READY")
            elif self._opened_bytes + size > self._message_bytes_max + FRAME_EXTRA_BYTES:
                if not self._skips or not self._opened or size > SKIPPED_BYTES_MAX:
                    raise ZmtpError(f"a message of more than {self._message_bytes_max} bytes")
                # Only the decrypted frame says whether another follows, so a frame that is too long counts as the
                # last.
                self._start += head
                self._wanted = 0
                self._left_to_skip = self._skipped = size
                continue
            elif not self._opened and size > HEADER_BYTES_MAX + FRAME_EXTRA_BYTES:
                raise ZmtpError(f"a first frame of more than {HEADER_BYTES_MAX} bytes")
            if end - at < head + size:
                self._wanted = head + size
                return None
            body = bytes(view[at + head : at + head + size])
            self._start = at + head + size
            if not self._ready:
                self._command(body)
            elif self._open_frame(body):
                return self._drop_opened()

    def _open_frame(self, body: bytes) -> bool:
        """Decrypt a frame. Returns True when it was the last of its message."""
        if body[:8] != _MESSAGE or len(body) < FRAME_EXTRA_BYTES:
            raise ZmtpError("a frame that is no MESSAGE of CURVE")
        plain = self._open(body[8:16], self._receives, body[16:], self._shared)
        flags = plain[0]
        if flags & _INNER_COMMAND:
            if flags != _INNER_COMMAND or self._opened or len(plain) > COMMAND_BYTES_MAX:
                raise ZmtpError(f"a command with flags {flags:#x}, or longer than {COMMAND_BYTES_MAX} bytes")
            self._command(plain[1:])
            return False
        if flags & ~MORE:
            raise ZmtpError(f"a frame with flags {flags:#x} where none is expected")
        self._opened.append(memoryview(plain)[1:])
        self._opened_bytes += len(plain)
        self._buffers.count(len(plain))
        if flags and len(self._opened) == FRAMES_MAX:
            raise ZmtpError(f"a message of more than {FRAMES_MAX} frames")
        return not flags

    def _skip_frame(self, view: memoryview) -> bool:
        """Discard the bytes that have arrived of a frame that is too long. Returns True at its end."""
        gone = min(self._left_to_skip, self._end - self._start)
        self._start += gone
        self._left_to_skip -= gone
        if self._left_to_skip:
            self._give_back(view)
        return not self._left_to_skip

    def _drop_opened(self) -> list[memoryview]:
        frames, self._opened = self._opened, []
        self._buffers.count(-self._opened_bytes)
        self._opened_bytes = 0
        return frames

    def _greet(self, view: memoryview) -> bool:
        return self._greet_by(view, MECHANISM)

    def _pong(self, context: bytes) -> bytes:
        buffers: list[Buffer] = []
        self._seal(_INNER_COMMAND, b"\x04PONG" + context, buffers)
        return b"".join(buffers)

    def _seal(self, flags: int, body: bytes, buffers: list[Buffer]) -> None:
        nonce = self._next_nonce()
        box = crypto_box_easy_afternm(bytes((flags,)) + body, self._sends + nonce, self._shared)
        size = len(box) + 16
        head = LONG_HEAD.pack(LONG, size) if size > 255 else bytes((0, size))
        buffers.append(head + _MESSAGE + nonce)
        buffers.append(box)

    def _next_nonce(self) -> bytes:
        self._nonce += 1
        return U64.pack(self._nonce)

    def _open(self, nonce: bytes, use: bytes, box: bytes, shared: bytes) -> bytes:
        """The contents of a box with a short nonce. Raises ZmtpError for a box of other keys or one that was received
        before.
        """
        if len(nonce) != U64.size:
            raise ZmtpError("a box of CURVE without its nonce")
        number = U64.unpack(nonce)[0]
        if number <= self._peer_nonce:
            raise ZmtpError("a frame of CURVE came twice, or out of its place")
        self._peer_nonce = number
        return _opened(box, use + nonce, shared, use)


class CurveServer(CurveConnection):
    """The daemon's end. ``is_known(public_key)`` is called once the client has proved that it owns the key.

    ``keys`` are the daemon's key pairs: a client knows one of them, and its HELLO shows which. A key that is not known
    is answered by ERROR, among ``replies``; any byte that arrives after it raises ZmtpError.
    """

    __slots__ = ("_cookie", "_is_known", "_keys", "_met_key", "_peer_short", "_refused", "peer_key")

    def __init__(
        self,
        peer_types: frozenset[bytes],
        buffers: Buffers,
        keys: Sequence[KeyPair],
        is_known: Callable[[bytes], bool],
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        super().__init__(peer_types, buffers, is_server=True, message_bytes_max=message_bytes_max)
        self._keys = keys
        self._met_key = b""
        """The public key of those in ``keys`` that the client knows."""
        self._is_known = is_known
        self._cookie = self._peer_short = b""
        self._refused = False
        self.peer_key = b""
        """The client's long-term public key, once it has proved to own it."""

    def _command(self, body: bytes) -> None:
        if self._ready:
            super()._command(body)
            return
        if self._refused:
            raise ZmtpError("its key is in no table [clients.NAME]")
        name, rest = short_text(body)
        if name == b"HELLO" and not self._cookie:
            self._hello(rest)
        elif name == b"INITIATE" and self._cookie:
            self._initiate(rest)
        else:
            raise ZmtpError(f"the command {name[:20]!r} where HELLO and INITIATE are expected")

    def _hello(self, body: bytes) -> None:
        if len(body) != 194 or body[:2] != b"\x01\x00":
            raise ZmtpError("a HELLO of CURVE that is not of version 1.0")
        self._peer_short = body[74:106]
        shared = self._meet(body[106:114], body[114:])
        # Made only now, so that a peer that only connects costs no key generation.
        self._own = KeyPair.new()
        self._cookie = os.urandom(COOKIE_BYTES)
        nonce = os.urandom(16)
        box = crypto_box_easy_afternm(self._own.public + self._cookie, b"WELCOME-" + nonce, shared)
        self.replies.append(command(b"WELCOME", nonce + box))

    def _meet(self, nonce: bytes, box: bytes) -> bytes:
        """The shared secret of HELLO and WELCOME, with the key of ours for which the client made its HELLO."""
        fault = ZmtpError("a HELLO of CURVE to a daemon without a key")
        for keys in self._keys:
            shared = _shared(self._peer_short, keys.secret)
            try:
                plain = _opened(box, b"CurveZMQHELLO---" + nonce, shared, b"HELLO")
            except ZmtpError as error:
                fault = error
                continue
            if plain != bytes(64):
                raise ZmtpError("a HELLO of CURVE with something in it")
            self._peer_nonce = U64.unpack(nonce)[0]
            self._met_key = keys.public
            return shared
        raise fault

    def _initiate(self, body: bytes) -> None:
        cookie, nonce, box = body[:96], body[96:104], body[104:]
        if len(box) < BOX_BYTES + 128 or not hmac.compare_digest(cookie, self._cookie):
            raise ZmtpError("an INITIATE of CURVE that does not follow its WELCOME")
        shared = _shared(self._peer_short, self._own.secret)
        plain = self._open(nonce, b"CurveZMQINITIATE", box, shared)
        key, vouch_nonce, vouch = plain[:32], plain[32:48], plain[48:128]
        proof = _opened(vouch, b"VOUCH---" + vouch_nonce, _shared(key, self._own.secret), b"VOUCH")
        if not hmac.compare_digest(proof, self._peer_short + self._met_key):
            raise ZmtpError("a vouch of CURVE for another connection")
        self._check_type(properties(plain[128:]))
        if not self._is_known(key):
            self._refused = True
            self.replies.append(command(b"ERROR", bytes((len(REFUSED_STATUS),)) + REFUSED_STATUS))
            return
        self.peer_key, self._shared = key, shared
        nonce = self._next_nonce()
        box = crypto_box_easy_afternm(ready_properties(b"ROUTER"), b"CurveZMQREADY---" + nonce, shared)
        self.replies.append(command(b"READY", nonce + box))
        self._ready = True


class CurveClient(CurveConnection):
    """The stub's end. ``server_key`` is the daemon's long-term public key."""

    __slots__ = ("_hello_shared", "_keys", "_server_key")

    def __init__(
        self, peer_types: frozenset[bytes], buffers: Buffers, keys: KeyPair, server_key: bytes
    ) -> None:
        super().__init__(peer_types, buffers, is_server=False)
        self._own = KeyPair.new()
        self._keys = keys
        self._server_key = server_key
        self._hello_shared = _shared(server_key, self._own.secret)

    def _greet(self, view: memoryview) -> bool:
        if not super()._greet(view):
            return False
        nonce = self._next_nonce()
        box = crypto_box_easy_afternm(bytes(64), b"CurveZMQHELLO---" + nonce, self._hello_shared)
        self.replies.append(command(b"HELLO", b"\x01\x00" + bytes(72) + self._own.public + nonce + box))
        return True

    def _command(self, body: bytes) -> None:
        name, rest = short_text(body)
        if self._ready:
            super()._command(body)
        elif name == b"ERROR":
            raise KeyNotKnown(
                "the daemon does not know this client's public key: it is to be in curve.public.keys of a table "
                "[clients.NAME]"
            )
        elif name == b"WELCOME" and not self._shared:
            self._welcome(rest)
        elif name == b"READY" and self._shared:
            self._check_type(properties(self._open(rest[:8], b"CurveZMQREADY---", rest[8:], self._shared)))
            self._ready = True
        else:
            raise ZmtpError(f"the command {name[:20]!r} where WELCOME and READY are expected")

    def _welcome(self, body: bytes) -> None:
        plain = _opened(body[16:], b"WELCOME-" + body[:16], self._hello_shared, b"WELCOME")
        if len(plain) != 32 + COOKIE_BYTES:
            raise ZmtpError("a WELCOME of CURVE with another length")
        server_short, cookie = plain[:32], plain[32:]
        self._shared = _shared(server_short, self._own.secret)
        vouch_nonce, nonce = os.urandom(16), self._next_nonce()
        vouch = crypto_box_easy_afternm(
            self._own.public + self._server_key,
            b"VOUCH---" + vouch_nonce,
            _shared(server_short, self._keys.secret),
        )
        plain = self._keys.public + vouch_nonce + vouch + ready_properties(b"DEALER")
        box = crypto_box_easy_afternm(plain, b"CurveZMQINITIATE" + nonce, self._shared)
        self.replies.append(command(b"INITIATE", cookie + nonce + box))


def _shared(public: bytes, secret: bytes) -> bytes:
    try:
        return crypto_box_beforenm(public, secret)
    except (CryptoError, RuntimeError, ValueError):  # a point of low order, which is no valid key
        raise ZmtpError("a key of CURVE that is none") from None


def _opened(box: bytes, nonce: bytes, shared: bytes, use: bytes) -> bytes:
    try:
        return crypto_box_open_easy_afternm(box, nonce, shared)
    except (CryptoError, RuntimeError, ValueError, TypeError):
        raise ZmtpError(
            f"a box of CURVE ({use.decode().strip('-')}) that does not open: made for another key, or changed"
        ) from None
