"""FaultProxy: a proxy between clients and a real Kafka that applies rules to their requests.

::

    with KafkaCluster() as kafka, FaultProxy(kafka.bootstrap_servers) as proxy:
        start_client(proxy.bootstrap_servers)
        lost = proxy.add(on(Api.PRODUCE, topic="orders").cut_answer())
        ...
        lost.wait()

All connections of clients go through it: in Metadata, FindCoordinator, DescribeCluster and Produce answers it replaces
the brokers' addresses by its own, with one port per broker. PLAINTEXT only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
from collections import deque
from typing import Any

from sidecar.tools.testing.fault_server import (
    Channel,
    Connection,
    ConnectionLost,
    Exchange,
    FaultServer,
    read_frame,
)
from sidecar.tools.testing.kafka_frames import Api, Request, Unreadable, write_answer
from sidecar.tools.testing.refusals import refused

CONNECT_TIMEOUT_S = 10.0


class FaultProxy(FaultServer):
    """Use as a context manager, or :meth:`start` and ``stop``; scripting as in FaultServer, from any thread.

    Rules with ``refuse`` refuse the whole request, even if it has other partitions than the rule names. Broker ids are
    those of the real brokers; bootstrap addresses have ids -1, -2, ... ``log_max`` bounds the log of requests (and the
    memory of a run of hours); None keeps all.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        host: str = "127.0.0.1",
        receive_buffer_bytes: int | None = None,
        log_max: int | None = None,
    ) -> None:
        super().__init__(host=host, receive_buffer_bytes=receive_buffer_bytes, log_max=log_max)
        self._brokers: dict[int, tuple[str, int]] = {}
        self._bootstrap: list[int] = []
        for number, address in enumerate(bootstrap_servers.split(","), 1):
            name, _, port = address.strip().rpartition(":")
            self._brokers[-number] = name, int(port)
            self._bootstrap.append(-number)

    @property
    def bootstrap_servers(self) -> str:
        """The ``bootstrap.servers`` for clients."""
        return ",".join(self.address(node) for node in self._bootstrap)

    def start(self) -> None:
        for node in self._bootstrap:
            self.listen(node)

    def open_channel(self, connection: Connection) -> Channel:
        with self._lock:
            address = self._brokers[connection.node]
        return _Upstream(socket.create_connection(address, CONNECT_TIMEOUT_S), connection)

    def translate(self, request: Request, entity: Any) -> Any:
        if request.api == Api.METADATA:
            for topic in entity.topics:
                if getattr(topic, "topic_id", None) is not None and topic.name is not None:
                    self.topic_names[topic.topic_id] = topic.name
        if request.api in (Api.METADATA, Api.DESCRIBE_CLUSTER):
            key = "node_id" if request.api == Api.METADATA else "broker_id"
            return dataclasses.replace(
                entity, brokers=tuple(self._moved(each, int(getattr(each, key))) for each in entity.brokers)
            )
        if request.api == Api.PRODUCE and hasattr(entity, "node_endpoints"):
            nodes = tuple(self._moved(each, int(each.node_id)) for each in entity.node_endpoints)
            return dataclasses.replace(entity, node_endpoints=nodes)
        if request.api == Api.FIND_COORDINATOR:
            if hasattr(entity, "coordinators"):
                found = tuple(self._moved(each, int(each.node_id)) for each in entity.coordinators)
                return dataclasses.replace(entity, coordinators=found)
            return self._moved(entity, int(entity.node_id))
        return None

    def _moved(self, place: Any, node: int) -> Any:
        """``place`` (with host and port) with the address of this proxy's listener for that broker."""
        if node < 0:
            return place
        with self._lock:
            self._brokers[node] = str(place.host), int(place.port)
        return dataclasses.replace(place, host=self._host, port=self.listen(node).port)


class _Upstream(Channel):
    """The connection to the real broker; a thread passes its answers back."""

    def __init__(self, sock: socket.socket, connection: Connection) -> None:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._connection = connection
        self._waiting: deque[Exchange] = deque()
        threading.Thread(target=self._read_answers, daemon=True, name="fault-upstream").start()

    def submit(self, exchange: Exchange) -> None:
        request = exchange.request
        if exchange.refusal is not None:
            assert exchange.rule is not None
            entity = refused(request, exchange.refusal, exchange.rule.text)
            exchange.complete(write_answer(request.correlation_id, entity))
            return
        if not exchange.ready.is_set():
            self._waiting.append(exchange)
        self._sock.sendall(struct.pack(">i", len(request.frame)) + request.frame)

    def _read_answers(self) -> None:
        try:
            while True:
                answer = read_frame(self._sock)
                exchange = self._waiting.popleft()
                (correlation_id,) = struct.unpack_from(">i", answer)
                if correlation_id != exchange.request.correlation_id:
                    raise ConnectionLost("the broker answered out of order")
                exchange.complete(answer)
        except (OSError, Unreadable, IndexError):
            while self._waiting:
                self._waiting.popleft().lose()
            self._connection.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
