"""ProducePort: carries out SendProduce, and gives the brokers' answers to the core.

Order for each request: request buffer → descriptors → encode → socket. Requests of one broker leave in the order in
which they were drained, even if a later one is compressed sooner.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from sidecar.common.model import broker_of
from sidecar.kernel import SendMeter
from sidecar.protocol.connection import make_tuple
from sidecar.protocol.messages import ProtocolError
from sidecar.protocol.produce import (
    PRODUCE_TOPIC_ID_VERSION,
    ProduceTopic,
    decode_produce_response,
    encode_produce,
)

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock
    from sidecar.common.model import Node
    from sidecar.kernel import Histogram
    from sidecar.metadata.cache import MetadataCache
    from sidecar.net.kafka.broker_link import BrokerLink
    from sidecar.net.kafka.cluster_links import ClusterLinks
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.effects import SendProduce
    from sidecar.producer.in_flight import ProduceRequest
    from sidecar.producer.request_capacity import RequestBuffer, RequestBufferPool
    from sidecar.producer.sender import Sender
    from sidecar.shm.descriptors import DescriptorTable
    from sidecar.shm.histograms import SlotHistograms
    from sidecar.worker.brokers.request_encoder import CopiedBatch, EncodedBatch, RequestEncoder
    from sidecar.worker.turns import Turns

log = logging.getLogger(__name__)


class _Prepared:
    """A request on its way to its socket. ``encoded`` is None while a codec is still at work."""

    __slots__ = ("buffer", "encoded", "request")

    def __init__(
        self, request: ProduceRequest, buffer: RequestBuffer, encoded: list[EncodedBatch] | None
    ) -> None:
        self.request = request
        self.buffer = buffer
        self.encoded = encoded


class ProducePort:
    """Sends Produce requests. Belongs to the worker's loop. The links report answers and lost connections to it."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: MonotonicClock,
        config: ProducerConfig,
        cache: MetadataCache,
        buffers: RequestBufferPool,
        encoder: RequestEncoder,
        descriptors: DescriptorTable,
        histograms: SlotHistograms,
        sender: Sender,
        links: ClusterLinks,
        turns: Turns,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._config = config
        self._cache = cache
        self._buffers = buffers
        self._encoder = encoder
        self._descriptors = descriptors
        self._histograms = histograms
        self._meter = SendMeter(histograms.queue_times, histograms.batch_sizes, histograms.batch_counts)
        self._answer_times: dict[int, Histogram] = {}
        """Histogram of answer times by connection; both connections of a broker share one."""
        self.bytes_sent = 0
        """Bytes of Produce requests sent, after compression."""
        self._sender = sender
        self._links = links
        self._turns = turns
        self._preparing: dict[int, deque[_Prepared]] = {}
        self._awaited: dict[tuple[int, int], tuple[ProduceRequest, int]] = {}
        """(node, correlation id) → request and the version it was sent in."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._leader_endpoints: dict[int, Node] = {}
        """By broker: addresses that arrived with leader hints (KIP-951) since they were last taken."""

    @property
    def requests_saved(self) -> int:
        """Lower bound of the further requests that one client per process would have sent."""
        return self._meter.requests_saved

    def take_leader_endpoints(self) -> list[Node]:
        """Remove and return the addresses that arrived with leader hints."""
        endpoints, self._leader_endpoints = self._leader_endpoints, {}
        return list(endpoints.values())

    # --- effects -----------------------------------------------------------------------------------------------

    def close_link(self, node_id: int, reason: str) -> None:
        """Close a link at once. Its requests go back to the core, even if there is no such link any more."""
        if not self._links.close(node_id, reason):
            self.on_link_state(node_id, False, reason)

    def connect(self, node_id: int) -> None:
        node = self._cache.current.nodes.get(broker_of(node_id))
        if node is not None:
            self._links.ready(node._replace(id=node_id))

    def send(self, effect: SendProduce, now_ms: float) -> None:
        """Prepare and send one request. If that fails, the request goes back to the core as not sent."""
        request = effect.request
        buffer = request.buffer
        assert buffer is not None
        # An earlier effect may have ended the request's connection: then its batches are back in their queues.
        published_ms = time.time_ns() // 1_000_000
        if request.ended or not self._descriptors.publish(request.batches, published_ms):
            self._not_sent(request, buffer, now_ms)
            return
        encoded: list[EncodedBatch] | None = None
        plain: list[CopiedBatch] = []
        result = self._encoder.encode(request.batches, buffer.view)
        if result is not None:
            encoded, unsendable = result
        else:
            plain, unsendable = self._encoder.copy_records(request.batches, buffer.view)
        for batch, reason in unsendable:
            log.error("ALARM: the records of %r cannot be read back and are not sent: %s", batch, reason)
            self._sender.on_batch_unsendable(request, batch, reason, now_ms)
        if not request.batches:
            self._not_sent(request, buffer, now_ms)
        elif encoded is not None and request.node_id not in self._preparing:
            self._put(request, buffer, encoded, now_ms)
        else:
            prepared = _Prepared(request, buffer, encoded)
            self._preparing.setdefault(request.node_id, deque()).append(prepared)
            if encoded is None:
                task = self._loop.create_task(self._compress(prepared, plain))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def abandon(self, request: ProduceRequest) -> None:
        """Handle an exception in :meth:`send`, so that neither buffer nor batches wait for the request's timeout: its
        connection ends, and it goes back to the core.
        """
        if request.buffer is not None and request.buffer.lent and not request.begun:
            self._buffers.give(request.buffer)
        self.close_link(request.node_id, "a request to it could not be prepared")

    # --- events of the links -----------------------------------------------------------------------------------

    def on_response(self, link: BrokerLink, correlation_id: int, body: bytes, now_ms: float) -> None:
        """Give the answer to a Produce request to the core. One that cannot be read closes the link."""
        node_id = link.node.id
        request, version = self._awaited.pop((node_id, correlation_id))
        # kill point: answer.read
        times = self._answer_times.get(node_id)
        if times is None:
            times = self._answer_times[node_id] = self._histograms.of_broker(broker_of(node_id))
        times.observe((now_ms - request.created_ms) * 10)
        try:
            response = decode_produce_response(version, body)
        except ProtocolError as error:
            self._awaited[node_id, correlation_id] = request, version
            link.close(f"{link.node} answered a Produce request with something unreadable: {error}")
            return
        for node in response.node_endpoints:
            self._leader_endpoints[node.id] = node
        self._sender.on_produce_response(request, response.results, response.throttle_ms, now_ms)
        self._turns.wake()

    def on_link_state(self, node_id: int, connected: bool, error: str | None) -> None:
        """A link became usable, or was lost with everything in flight on it."""
        if not connected:
            for key in [key for key in self._awaited if key[0] == node_id]:
                del self._awaited[key]
            # Requests still being compressed never left: they have not begun, and the core takes them back unchanged.
            for prepared in self._preparing.pop(node_id, ()):
                if prepared.encoded is not None:
                    self._buffers.give(prepared.buffer)
                # Otherwise its codec still writes: the buffer goes back when that ends and finds the request ended.
            is_refused = self._links.is_refused(node_id)
            self._sender.on_disconnect(
                node_id, self._clock.now_ms(), reason=error or "", is_refused=is_refused
            )
        else:
            self._sender.lost_links.found(node_id)
        self._turns.wake()

    # --- inside ------------------------------------------------------------------------------------------------

    async def _compress(self, prepared: _Prepared, plain: list[CopiedBatch]) -> None:
        encoded = await self._encoder.compress(plain, prepared.buffer.view)
        if prepared.request.ended:  # its connection ended, and _preparing no longer has it
            self._buffers.give(prepared.buffer)
        else:
            prepared.encoded = encoded
            self._send_prepared(prepared.request.node_id)
        self._turns.wake()

    def _send_prepared(self, node_id: int) -> None:
        queue = self._preparing.get(node_id)
        while queue and queue[0].encoded is not None:
            ready = queue.popleft()
            assert ready.encoded is not None
            self._put(ready.request, ready.buffer, ready.encoded, self._clock.now_ms())
        if queue is not None and not queue:
            del self._preparing[node_id]

    def _not_sent(self, request: ProduceRequest, buffer: RequestBuffer, now_ms: float) -> None:
        self._buffers.give(buffer)
        self._sender.on_request_not_sent(request, now_ms)

    def _put(
        self, request: ProduceRequest, buffer: RequestBuffer, encoded: list[EncodedBatch], now_ms: float
    ) -> None:
        """Frame a request that is encoded, and send it on its link. The buffer goes back once its bytes have left."""
        node_id, acks = request.node_id, request.acks
        link = self._links.connected.get(node_id)
        if link is None:
            self._not_sent(request, buffer, now_ms)
            return
        version = link.produce_version
        if version is None:
            self._not_sent(request, buffer, now_ms)
            link.close(f"{link.node} offers no Produce version that this daemon speaks.")
            return
        transactional_id = None
        if request.transaction is not None:
            transactional_id = request.transaction.transactional_id
            version = min(version, request.transaction.produce_version)
        # Count the batches, and order them by topic.
        snapshot = self._cache.current
        has_ids = version >= PRODUCE_TOPIC_ID_VERSION
        topics: dict[str, ProduceTopic] = {}
        self._meter.begin_request()
        for batch, records in encoded:
            self._meter.count(batch.records, now_ms, batch.attempts == 0)
            name = batch.topic
            topic = topics.get(name)
            if topic is None:
                topic_id = snapshot.topic_id(name) if has_ids else None
                topic = topics[name] = make_tuple(ProduceTopic, (name, topic_id, []))
            topic.partitions.append((batch.partition, records))
        if has_ids:
            request.topic_names = {
                each.topic_id: each.name for each in topics.values() if each.topic_id is not None
            }
            if len(request.topic_names) < len(topics):
                version = PRODUCE_TOPIC_ID_VERSION - 1  # a broker that offers ids still understands names
        correlation_id = link.take_correlation_id()
        if acks != 0:
            self._awaited[node_id, correlation_id] = request, version
        buffers = encode_produce(
            version,
            correlation_id,
            self._config.client_id,
            acks,
            request.timeout_ms,
            transactional_id,
            topics.values(),
        )
        self.bytes_sent += sum(map(len, buffers))
        # kill point: send.begin
        request.begun = True
        if link.send_buffers(
            correlation_id,
            buffers,
            partial(self._on_taken, link, correlation_id, request, buffer),
            expect_response=acks != 0,
            deadline_ms=request.deadline_ms,
            now_ms=now_ms,
        ):
            self._buffers.give(buffer)
            if self._sender.on_request_sent(request, now_ms if acks else self._clock.now_ms()):
                self._turns.wake()

    def _on_taken(
        self,
        link: BrokerLink,
        correlation_id: int,
        request: ProduceRequest,
        buffer: RequestBuffer,
        complete: bool,
    ) -> None:
        """The kernel has all bytes of a request that had to wait, or its link has closed."""
        if not complete and correlation_id in link.untouched_at_close:
            request.begun = False
        self._buffers.give(buffer)
        if complete and self._sender.on_request_sent(request, self._clock.now_ms()):
            self._turns.wake()
