"""CURVE: the handshake of both ends, and encrypted frames, as mechanisms. Sans-IO. Needs PyNaCl.

C and S are the lasting key pairs of client and server, c and s those of one connection; all are Curve25519::

    HELLO      05 "HELLO" | 01 00 | 72 x 00 | c 32 | nonce 8 | box(c to S) of 64 x 00                 client, 200 bytes
    WELCOME    07 "WELCOME" | nonce 16 | box(S to c) of (s 32, cookie 96)                             server, 168 bytes
    INITIATE   08 "INITIATE" | cookie 96 | nonce 8 | box(c to s) of (C 32, nonce 16, vouch 80, metadata)
    READY      05 "READY" | nonce 8 | box(s to c) of metadata                                         server
    frame      (0 or 2) size | 07 "MESSAGE" | nonce 8 | box of (flags: 1 another follows, 2 a command; body)

The vouch is box(C to s) of (c, S): it proves the client's identity. A short nonce is preceded by 16 letters that name
its use, and only increases within a connection. So each frame is secret, unchanged and in its order; only sizes and
times are visible. The cookie is random and the server compares it, as the server keeps each connection's state in any
case.

Source: RFC 26/CurveZMQ and 25/ZMTP-CURVE of ZeroMQ. Not thread-safe.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from nacl.bindings import (
    crypto_box_beforenm,
    crypto_box_easy_afternm,
    crypto_box_open_easy_afternm,
    crypto_scalarmult_base,
)
from nacl.exceptions import CryptoError

from client_stub.zmtp.frames import COMMAND, LONG, LONG_HEAD, MORE, U64, Buffer, ZmtpError, command
from client_stub.zmtp.keys import KEY_BYTES
from client_stub.zmtp.mechanism import Mechanism, Metadata, PeerRefused, greeting, metadata, read_metadata

BOX_BYTES: Final = 16
"""The bytes that a box adds to its contents."""
COOKIE_BYTES: Final = 96
REFUSED_STATUS: Final = b"400"
"""The status in ERROR to a client whose key is not known, as libzmq's servers send it."""
_INNER_COMMAND: Final = 2
_MESSAGE: Final = b"\x07MESSAGE"
_HEAD_BYTES: Final = len(_MESSAGE) + U64.size
_TO_SERVER: Final = b"CurveZMQMESSAGEC"
_TO_CLIENT: Final = b"CurveZMQMESSAGES"

Random: TypeAlias = Callable[[int], bytes]
"""Returns so many bytes that nobody can guess."""


class KeyPair(NamedTuple):
    """A Curve25519 key pair, 32 bytes each."""

    public: bytes
    secret: bytes

    @classmethod
    def new(cls, random: Random = os.urandom) -> KeyPair:
        return cls.of_secret(random(KEY_BYTES))

    @classmethod
    def of_secret(cls, secret: bytes) -> KeyPair:
        return cls(crypto_scalarmult_base(secret), secret)


class Curve(Mechanism):
    """What both ends have in common: encrypts and decrypts frames, and counts nonces."""

    __slots__ = ("_nonce", "_own", "_peer_nonce", "_random", "_receives", "_sends", "_shared", "_socket_type")

    name = b"CURVE"
    box_bytes = _HEAD_BYTES + BOX_BYTES + 1

    def __init__(self, socket_type: bytes, random: Random, *, is_server: bool) -> None:
        self._socket_type = socket_type
        self._random = random
        self.opening = greeting(self.name, as_server=is_server)
        self._sends, self._receives = (_TO_CLIENT, _TO_SERVER) if is_server else (_TO_SERVER, _TO_CLIENT)
        self._own = KeyPair(b"", b"")
        """The key pair of this connection only."""
        self._shared = b""
        """The shared secret of both ends' keys of this connection; empty until they are known."""
        self._nonce = self._peer_nonce = 0

    def encode(self, frames: Sequence[Buffer]) -> list[Buffer]:
        last = len(frames) - 1
        buffers: list[Buffer] = []
        for index, frame in enumerate(frames):
            self._seal(MORE if index < last else 0, bytes(frame), buffers)
        return buffers

    def command(self, name: bytes, rest: bytes) -> bytes:
        buffers: list[Buffer] = []
        self._seal(_INNER_COMMAND, bytes((len(name),)) + name + rest, buffers)
        return b"".join(buffers)

    def open(self, frame: memoryview) -> tuple[int, memoryview]:
        if bytes(frame[:8]) != _MESSAGE or len(frame) < self.box_bytes:
            raise ZmtpError("a frame that is not a MESSAGE of CURVE")
        nonce, box = bytes(frame[8:_HEAD_BYTES]), bytes(frame[_HEAD_BYTES:])
        plain = self._open(nonce, self._receives, box, self._shared)
        flags = plain[0]
        if flags & ~(MORE | _INNER_COMMAND):
            raise ZmtpError(f"a frame with flags {flags:#x} where none is expected")
        return flags & MORE | (COMMAND if flags & _INNER_COMMAND else 0), memoryview(plain)[1:]

    def _seal(self, flags: int, body: bytes, buffers: list[Buffer]) -> None:
        nonce = self._next_nonce()
        box = crypto_box_easy_afternm(bytes((flags,)) + body, self._sends + nonce, self._shared)
        size = len(box) + _HEAD_BYTES
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
            raise ZmtpError("a frame of CURVE came twice, or out of order")
        self._peer_nonce = number
        return _opened(box, use + nonce, shared, use)


class CurveServer(Curve):
    """The server's end. ``is_known(public_key)`` is called once the client has proved that it owns the key.

    ``keys`` are the server's key pairs: a client knows one of them, and its HELLO shows which. A key that is not known
    is answered by ERROR; any command after it raises ZmtpError.
    """

    __slots__ = ("_cookie", "_is_known", "_keys", "_met_key", "_peer_short", "_refused", "peer_key")

    def __init__(
        self,
        socket_type: bytes,
        keys: Sequence[KeyPair],
        is_known: Callable[[bytes], bool],
        random: Random = os.urandom,
    ) -> None:
        super().__init__(socket_type, random, is_server=True)
        self._keys = keys
        self._met_key = b""
        """The public key of those in ``keys`` that the client knows."""
        self._is_known = is_known
        self._cookie = self._peer_short = b""
        self._refused = False
        self.peer_key = b""
        """The client's long-term public key, once it has proved to own it."""

    def handshake(self, name: bytes, rest: bytes) -> tuple[bytes, Metadata | None]:
        if self._refused:
            raise ZmtpError("its key is not known")
        if name == b"HELLO" and not self._cookie:
            return self._hello(rest), None
        if name == b"INITIATE" and self._cookie:
            return self._initiate(rest)
        raise ZmtpError(f"the command {name[:20]!r} where HELLO and INITIATE are expected")

    def _hello(self, body: bytes) -> bytes:
        if len(body) != 194 or body[:2] != b"\x01\x00":
            raise ZmtpError("a HELLO of CURVE that is not of version 1.0")
        self._peer_short = body[74:106]
        shared = self._meet(body[106:114], body[114:])
        # Made only now, so that a peer that only connects costs no key generation.
        self._own = KeyPair.new(self._random)
        self._cookie = self._random(COOKIE_BYTES)
        nonce = self._random(16)
        box = crypto_box_easy_afternm(self._own.public + self._cookie, b"WELCOME-" + nonce, shared)
        return command(b"WELCOME", nonce + box)

    def _meet(self, nonce: bytes, box: bytes) -> bytes:
        """The shared secret of HELLO and WELCOME, with the key of ours for which the client made its HELLO."""
        fault = ZmtpError("a HELLO of CURVE to a server without a key")
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

    def _initiate(self, body: bytes) -> tuple[bytes, Metadata | None]:
        cookie, nonce, box = body[:96], body[96:104], body[104:]
        if len(box) < BOX_BYTES + 128 or not hmac.compare_digest(cookie, self._cookie):
            raise ZmtpError("an INITIATE of CURVE that does not follow its WELCOME")
        shared = _shared(self._peer_short, self._own.secret)
        plain = self._open(nonce, b"CurveZMQINITIATE", box, shared)
        key, vouch_nonce, vouch = plain[:32], plain[32:48], plain[48:128]
        proof = _opened(vouch, b"VOUCH---" + vouch_nonce, _shared(key, self._own.secret), b"VOUCH")
        if not hmac.compare_digest(proof, self._peer_short + self._met_key):
            raise ZmtpError("a vouch of CURVE for another connection")
        found = read_metadata(plain[128:])
        if not self._is_known(key):
            self._refused = True
            return command(b"ERROR", bytes((len(REFUSED_STATUS),)) + REFUSED_STATUS), None
        self.peer_key, self._shared = key, shared
        nonce = self._next_nonce()
        box = crypto_box_easy_afternm(metadata(self._socket_type), b"CurveZMQREADY---" + nonce, shared)
        return command(b"READY", nonce + box), found


class CurveClient(Curve):
    """The client's end. ``server_key`` is the server's long-term public key."""

    __slots__ = ("_hello_shared", "_keys", "_server_key")

    def __init__(
        self, socket_type: bytes, keys: KeyPair, server_key: bytes, random: Random = os.urandom
    ) -> None:
        super().__init__(socket_type, random, is_server=False)
        self._own = KeyPair.new(random)
        self._keys = keys
        self._server_key = server_key
        self._hello_shared = _shared(server_key, self._own.secret)

    def greeted(self) -> bytes:
        nonce = self._next_nonce()
        box = crypto_box_easy_afternm(bytes(64), b"CurveZMQHELLO---" + nonce, self._hello_shared)
        return command(b"HELLO", b"\x01\x00" + bytes(72) + self._own.public + nonce + box)

    def handshake(self, name: bytes, rest: bytes) -> tuple[bytes, Metadata | None]:
        if name == b"ERROR":
            raise PeerRefused(rest[1:])
        if name == b"WELCOME" and not self._shared:
            return self._welcome(rest), None
        if name == b"READY" and self._shared:
            plain = self._open(rest[:8], b"CurveZMQREADY---", rest[8:], self._shared)
            return b"", read_metadata(plain)
        raise ZmtpError(f"the command {name[:20]!r} where WELCOME and READY are expected")

    def _welcome(self, body: bytes) -> bytes:
        plain = _opened(body[16:], b"WELCOME-" + body[:16], self._hello_shared, b"WELCOME")
        if len(plain) != KEY_BYTES + COOKIE_BYTES:
            raise ZmtpError("a WELCOME of CURVE with another length")
        server_short, cookie = plain[:KEY_BYTES], plain[KEY_BYTES:]
        self._shared = _shared(server_short, self._own.secret)
        vouch_nonce, nonce = self._random(16), self._next_nonce()
        vouch = crypto_box_easy_afternm(
            self._own.public + self._server_key,
            b"VOUCH---" + vouch_nonce,
            _shared(server_short, self._keys.secret),
        )
        plain = self._keys.public + vouch_nonce + vouch + metadata(self._socket_type)
        box = crypto_box_easy_afternm(plain, b"CurveZMQINITIATE" + nonce, self._shared)
        return command(b"INITIATE", cookie + nonce + box)


def _shared(public: bytes, secret: bytes) -> bytes:
    try:
        return crypto_box_beforenm(public, secret)
    except (CryptoError, RuntimeError, ValueError):  # a point of low order, which is no valid key
        raise ZmtpError("an invalid key of CURVE") from None


def _opened(box: bytes, nonce: bytes, shared: bytes, use: bytes) -> bytes:
    try:
        return crypto_box_open_easy_afternm(box, nonce, shared)
    except (CryptoError, RuntimeError, ValueError, TypeError):
        raise ZmtpError(
            f"a box of CURVE ({use.decode().strip('-')}) that does not open: made for another key, or changed"
        ) from None
