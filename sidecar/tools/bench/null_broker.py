"""A broker that answers at once and keeps nothing. It shows the limit of a producer without the broker's own.

Record bytes are not even read: the kernel drops them in the socket (recv with MSG_TRUNC, tcp(7)). So each request
costs a few system calls, however large it is. Nothing is checked. Run as a process, ``python -m
sidecar.tools.bench.null_broker '{"bench": 6}'`` prints its address and lives until its stdin closes.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import threading
import time
from typing import Final

from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_server import ConnectionLost, Exchange, Listener
from sidecar.tools.testing.kafka_frames import Api, read_request

PRODUCE_VERSION: Final = 9
"""The version that is read here: flexible, topics by name. Every present client speaks it."""
_HEADER: Final = struct.Struct(">ihhih")
_BATCH_HEADER_BYTES: Final = 61
_PEEK_BYTES: Final = 4096
_DROP_BYTES: Final = 1 << 20


class NullBroker(FakeBroker):
    """A FakeBroker for all requests except Produce. Offsets grow as they should."""

    def __init__(self, topics: dict[str, int]) -> None:
        super().__init__(topics, versions={Api.PRODUCE: (3, PRODUCE_VERSION)})
        self._ends: dict[tuple[bytes, int], int] = {}

    def accepted(self, listener: Listener, sock: socket.socket) -> None:
        threading.Thread(target=self._serve, args=(listener.node, sock), daemon=True).start()

    def next_offset(self, topic: bytes, partition: int, count: int) -> int:
        """The base offset of ``count`` more records; a partition's requests come by one connection."""
        base = self._ends.get((topic, partition), 0)
        self._ends[topic, partition] = base + count
        return base

    def _serve(self, node: int, sock: socket.socket) -> None:
        stream = _Stream(sock)
        with contextlib.suppress(OSError), sock:
            while True:
                size, api, version, correlation_id, name_bytes = _HEADER.unpack(stream.take(_HEADER.size))
                left = size - (_HEADER.size - 4)
                if api == Api.PRODUCE and version == PRODUCE_VERSION:
                    answer = self._swallow(stream, correlation_id, max(0, name_bytes))
                else:
                    frame = _HEADER.pack(size, api, version, correlation_id, name_bytes)[4:] + stream.take(
                        left
                    )
                    answer = self._ordinary(node, frame)
                if answer:
                    sock.sendall(struct.pack(">i", len(answer)) + answer)

    def _ordinary(self, node: int, frame: bytes) -> bytes | None:
        request = read_request(
            frame, node=node, connection=0, at_s=time.monotonic(), topic_names=self.topic_names
        )
        if request.api == Api.PRODUCE:
            raise ConnectionLost(f"Produce v{request.version} is not read here")
        return self.answer(node, Exchange(request, None))

    def _swallow(self, stream: _Stream, correlation_id: int, name_bytes: int) -> bytes | None:
        """Read one Produce v9 after its correlation id. Returns its answer, unless the client waits for none."""
        stream.take(name_bytes)
        stream.tags()
        stream.take(stream.size())
        (acks,) = struct.unpack(">h", stream.take(2))
        stream.take(4)
        answer = bytearray(struct.pack(">i", correlation_id) + b"\0")
        topics = stream.uvarint() - 1
        _put_uvarint(answer, topics + 1)
        for _ in range(topics):
            name = stream.take(stream.size())
            _put_uvarint(answer, len(name) + 1)
            answer += name
            partitions = stream.uvarint() - 1
            _put_uvarint(answer, partitions + 1)
            for _ in range(partitions):
                (index,) = struct.unpack(">i", stream.take(4))
                records_bytes = stream.size()
                header = stream.take(min(records_bytes, _BATCH_HEADER_BYTES))
                stream.drop(records_bytes - len(header))
                (last_delta,) = struct.unpack_from(">i", header, 23)
                base = self.next_offset(name, index, last_delta + 1)
                # index, code, base offset, append time, log start, no record errors, no message, no tags
                answer += struct.pack(">ihqqq", index, 0, base, -1, 0) + b"\x01\0\0"
                stream.tags()
            answer += b"\0"
            stream.tags()
        stream.tags()
        answer += struct.pack(">i", 0) + b"\0"
        return bytes(answer) if acks else None


class _Stream:
    """A socket read in small pieces; bytes to be dropped never leave the kernel."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""
        self._position = 0
        self._bin = bytearray(_DROP_BYTES)

    def take(self, count: int) -> bytes:
        while len(self._buffer) - self._position < count:
            more = self._sock.recv(max(_PEEK_BYTES, count))
            if not more:
                raise ConnectionLost("the client is gone")
            self._buffer = self._buffer[self._position :] + more
            self._position = 0
        taken = self._buffer[self._position : self._position + count]
        self._position += count
        return taken

    def drop(self, count: int) -> None:
        have = min(count, len(self._buffer) - self._position)
        self._position += have
        count -= have
        while count:
            dropped = self._sock.recv_into(self._bin, min(count, _DROP_BYTES), socket.MSG_TRUNC)
            if not dropped:
                raise ConnectionLost("the client is gone")
            count -= dropped

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def size(self) -> int:
        """A compact length; null counts as empty."""
        return max(0, self.uvarint() - 1)

    def tags(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            self.take(self.uvarint())


def _put_uvarint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def main() -> int:
    with NullBroker(json.loads(sys.argv[1])) as broker:
        print(broker.bootstrap_servers, flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
