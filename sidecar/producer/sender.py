"""Sender: decides what goes to which broker when, and what each answer means (rules S1–S5, A6–A8). Sans-IO.

The driver calls :meth:`Sender.poll` after every event and at ``next_wakeup_ms``, executes the effects in
order, and feeds back what happened. Behaviour after Kafka's ``Sender`` and ``NetworkClient``; where it
differs for the idempotent lane, see producer_id.py.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Protocol

from client_stub.wire import LocalCode, Persistence
from sidecar.common.errors import Code, classify
from sidecar.producer.effects import (
    CloseLink,
    Completed,
    Connect,
    Effect,
    InitProducerId,
    NeedMetadata,
    Renumbered,
    SendProduce,
    Split,
)
from sidecar.producer.in_flight import InFlightRequests, ProduceRequest
from sidecar.producer.lanes import IDEMPOTENT_LANE, LANES

if TYPE_CHECKING:
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.backoff import Backoff
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.partition_queue import PartitionQueue
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.producer_id import ProducerIds
    from sidecar.producer.record_accumulator import RecordAccumulator

log = logging.getLogger(__name__)

UNSENT_PER_NODE_MAX = 2
"""One request partly written and one prepared behind it; more would only hold request buffers."""


class LinkView(Protocol):
    """What the core may know about connections. Asked once or twice per broker and poll."""

    def is_ready(self, node_id: int) -> bool:
        """Connected and versions negotiated."""

    def has_room(self, node_id: int) -> bool:
        """A request buffer is there for one more request to this broker."""


class PartitionAnswer(Protocol):
    """One partition of a Produce response (``sidecar.protocol.produce.PartitionResult``)."""

    @property
    def topic(self) -> str | None: ...
    @property
    def topic_id(self) -> bytes | None: ...
    @property
    def partition(self) -> int: ...
    @property
    def error_code(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def append_time_ms(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def record_errors(self) -> Sequence[tuple[int, str | None]]: ...
    @property
    def error_message(self) -> str | None: ...


class SenderCounts:
    """Totals since start, for the driver to publish. Plain integers, single writer."""

    __slots__ = (
        "batches_expired",
        "batches_retried",
        "batches_sent",
        "batches_split",
        "bytes_sent",
        "late_answers",
        "record_errors",
        "request_errors",
        "requests",
        "throttle_ms",
    )

    def __init__(self) -> None:
        self.batches_expired = 0
        self.batches_retried = 0
        self.batches_sent = 0
        self.batches_split = 0
        self.bytes_sent = 0
        self.late_answers = 0
        self.record_errors = 0
        self.request_errors = 0
        self.requests = 0
        self.throttle_ms = 0


class Sender:
    """Single-threaded: the worker's loop. No clock inside; every method that needs one takes ``now_ms``."""

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        ids: ProducerIds,
        *,
        backoff: Backoff,
    ) -> None:
        self.counts = SenderCounts()
        self._config = config
        self._accumulator = accumulator
        self._ids = ids
        self._backoff = backoff
        self._in_flight = InFlightRequests(config.max_in_flight_requests_per_connection)
        self._request_ids = count(1)
        self._effects: list[Effect] = []
        self._completed: list[ProducerBatch] = []
        self._stale_topics: set[str] = set()
        self._leaderless_asked: frozenset[str] = frozenset()
        self._leaderless_ask_again_ms = 0.0
        self._muted_until_ms: dict[int, float] = {}
        self._first_lane = 0
        self._wake_now = True
        self._closing = False

    # --- the loop -------------------------------------------------------------------------------------------

    def poll(self, snapshot: MetadataSnapshot, links: LinkView, now_ms: float) -> list[Effect]:
        """Do all that can be done now. Costs per broker with work and per due batch, nothing per idle
        partition.
        """
        accumulator = self._accumulator
        accumulator.advance(snapshot, now_ms)
        self._expire_batches(now_ms)
        self._time_out_requests(now_ms)
        self._wake_now = False
        effects, self._effects = self._effects, []
        if self._completed:
            effects.append(Completed(tuple(self._completed)))
            self._completed = []
        if self._config.enable_idempotence and self._ids.take_init_request(now_ms):
            effects.append(InitProducerId())
        self._ask_for_metadata(effects, now_ms)
        for node_id in accumulator.ready_nodes():
            if self._muted_until_ms.get(node_id, 0.0) > now_ms:
                continue
            if not links.is_ready(node_id):
                effects.append(Connect(node_id))
                continue
            self._send_to(node_id, links, now_ms, effects)
        return effects

    @property
    def next_wakeup_ms(self) -> float:
        """Monotonic ms when :meth:`poll` must be called again though nothing happens; infinity when never.

        What waits for an event (an answer, a link, room for a request, metadata) is not counted: the driver
        polls after events.
        """
        if self._wake_now or self._effects or self._completed:
            return 0.0
        accumulator = self._accumulator
        wakeup_ms = min(accumulator.next_due_ms, accumulator.next_expiry_ms, self._in_flight.next_deadline_ms)
        if self._config.enable_idempotence:
            wakeup_ms = min(wakeup_ms, self._ids.next_init_ms)
        if accumulator.leaderless:
            wakeup_ms = min(wakeup_ms, self._leaderless_ask_again_ms)
        if self._muted_until_ms:
            wakeup_ms = min(wakeup_ms, *self._muted_until_ms.values())
        return wakeup_ms

    def wake(self) -> None:
        """Poll at the next opportunity (after an append that said so)."""
        self._wake_now = True

    def _send_to(self, node_id: int, links: LinkView, now_ms: float, effects: list[Effect]) -> None:
        self._muted_until_ms.pop(node_id, None)
        in_flight = self._in_flight
        room = UNSENT_PER_NODE_MAX - in_flight.unsent(node_id)
        lanes_left = list(LANES[self._first_lane :] + LANES[: self._first_lane])
        while lanes_left and room > 0 and in_flight.can_send(node_id) and links.has_room(node_id):
            lane = lanes_left.pop(0)
            batches = self._accumulator.drain(node_id, lane, self._config.max_request_size, now_ms)
            if not batches:
                continue
            lanes_left.append(lane)
            room -= 1
            request = ProduceRequest(
                id=next(self._request_ids),
                node_id=node_id,
                lane=lane,
                acks=self._config.acks_of(lane),
                batches=batches,
                created_ms=now_ms,
                timeout_ms=int(self._config.request_timeout_ms),
                deadline_ms=now_ms + self._config.request_timeout_ms,
            )
            in_flight.add(request)
            self.counts.requests += 1
            self.counts.batches_sent += len(batches)
            self.counts.bytes_sent += request.size_bytes
            effects.append(SendProduce(node_id, request))
        self._first_lane = (self._first_lane + 1) % len(LANES)

    def _ask_for_metadata(self, effects: list[Effect], now_ms: float) -> None:
        topics = frozenset(self._stale_topics)
        self._stale_topics.clear()
        leaderless = self._accumulator.leaderless
        if leaderless:
            missing = frozenset(queue.topic for queue in leaderless)
            if now_ms >= self._leaderless_ask_again_ms or not missing <= self._leaderless_asked:
                self._leaderless_asked = missing
                self._leaderless_ask_again_ms = now_ms + self._config.retry_backoff_max_ms
                topics |= missing
        elif self._leaderless_asked:
            self._leaderless_asked = frozenset()
            self._leaderless_ask_again_ms = 0.0
        if topics:
            effects.append(NeedMetadata(topics))

    # --- what happened to a request -------------------------------------------------------------------------

    def on_request_sent(self, request: ProduceRequest, now_ms: float) -> None:
        """The kernel has taken all bytes of the request. With acks=0 that is all there will ever be."""
        request.sent = True
        if request.acks == 0 and self._in_flight.end(request):
            for batch in request.batches:
                self._accumulator.release(batch)
                if batch.done(persistence=Persistence.POSSIBLY_PERSISTED):
                    self._finish(batch)
                self._settled(batch.queue, now_ms)
        self._wake_now = True

    def on_request_not_sent(self, request: ProduceRequest, now_ms: float) -> None:
        """The driver could not prepare the request (no buffer) and no byte of it left: as if never drained.

        Identities stay; no attempt is counted.
        """
        if self._in_flight.end(request):
            self._take_back(request, now_ms)

    def on_batch_unsendable(
        self, request: ProduceRequest, batch: ProducerBatch, text: str, now_ms: float
    ) -> None:
        """The encoder did not get the bytes it should (a bug or damage): the batch leaves the request and
        fails.

        Call before any byte of the request is sent; the request then goes without the batch, and may be empty
        (then report it by :meth:`on_request_not_sent`).
        """
        request.batches.remove(batch)
        self._accumulator.release(batch)
        batch.in_doubt = True
        self._fail(batch, LocalCode.ENCODE_MISMATCH, text, now_ms)

    def on_produce_response(
        self, request: ProduceRequest, results: Iterable[PartitionAnswer], throttle_ms: int, now_ms: float
    ) -> None:
        """An answer came. Late ones (the request has timed out meanwhile) and doubled entries change
        nothing."""
        if throttle_ms > 0:
            self.counts.throttle_ms += throttle_ms
            self._muted_until_ms[request.node_id] = now_ms + throttle_ms
        if not self._in_flight.end(request):
            self.counts.late_answers += 1
            return
        open_batches = {(batch.topic, batch.partition): batch for batch in request.batches}
        for result in results:
            topic = result.topic
            if topic is None and result.topic_id is not None:
                topic = request.topic_names.get(result.topic_id)
            batch = open_batches.pop((topic or "", result.partition), None)
            if batch is not None:
                self._accumulator.release(batch)
                self._answer(batch, result, now_ms)
                self._settled(batch.queue, now_ms)
        for batch in open_batches.values():
            self._accumulator.release(batch)
            text = f"Broker {request.node_id} left {batch.topic}-{batch.partition} out of its answer."
            self._error(batch, Code.NETWORK_EXCEPTION, text, now_ms)
            self._settled(batch.queue, now_ms)
        self._wake_now = True

    def on_disconnect(
        self, node_id: int, now_ms: float, *, unsent: Collection[int] = (), reason: str = ""
    ) -> None:
        """The link is gone. ``unsent``: ids of requests of which the kernel had not taken a single byte.

        The others may have reached the broker: their batches are in doubt and are sent again as they are.
        """
        requests = self._in_flight.end_all(node_id)
        self._muted_until_ms.pop(node_id, None)
        for request in requests:
            if request.id in unsent:
                self._take_back(request, now_ms)
                continue
            self.counts.request_errors += 1
            text = f"The connection to broker {node_id} ended before it answered: {reason or 'closed by it'}."
            for batch in request.batches:
                self._accumulator.release(batch)
                self._error(batch, Code.NETWORK_EXCEPTION, text, now_ms)
            for batch in request.batches:
                self._settled(batch.queue, now_ms)
        if requests:
            self._wake_now = True

    def _take_back(self, request: ProduceRequest, now_ms: float) -> None:
        for batch in request.batches:
            self._accumulator.release(batch)
            if not batch.is_done:
                self._accumulator.reenqueue(batch, retry_at_ms=0.0, now_ms=now_ms)
            self._settled(batch.queue, now_ms)

    def _time_out_requests(self, now_ms: float) -> None:
        for node_id in self._in_flight.timed_out(now_ms):
            reason = f"no answer within request.timeout.ms={self._config.request_timeout_ms:g}"
            self._effects.append(CloseLink(node_id, reason))
            self.on_disconnect(node_id, now_ms, reason=reason)

    # --- what an answer means -------------------------------------------------------------------------------

    def _answer(self, batch: ProducerBatch, result: PartitionAnswer, now_ms: float) -> None:
        code = result.error_code
        if code == Code.NONE:
            self._succeed(batch, result.base_offset, result.append_time_ms)
        elif code == Code.DUPLICATE_SEQUENCE_NUMBER and batch.lane == IDEMPOTENT_LANE:
            self._succeed(batch, -1, -1)  # it is there, but the broker no longer knows where
        elif batch.is_done:
            self.counts.late_answers += 1
        elif code in (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE) and batch.count > 1:
            self._split(batch, now_ms)
        elif code == Code.INVALID_RECORD and len(result.record_errors) > 0 and batch.count > 1:
            self._fail_records(batch, result, now_ms)
        else:
            self._error(
                batch, code, result.error_message or "", now_ms, log_start_offset=result.log_start_offset
            )

    def _succeed(self, batch: ProducerBatch, base_offset: int, append_time_ms: int) -> None:
        if batch.lane == IDEMPOTENT_LANE:
            self._ids.acked(batch)
        if batch.done(base_offset=base_offset, append_time_ms=append_time_ms):
            self._finish(batch)
        else:
            self.counts.late_answers += 1

    def _error(
        self, batch: ProducerBatch, code: int, text: str, now_ms: float, *, log_start_offset: int = -1
    ) -> None:
        row = classify(code)
        if row.stale_metadata:
            self._stale_topics.add(batch.topic)
        if batch.is_done:
            return
        self.counts.record_errors += 1
        batch.last_error = row.name
        idempotent = batch.lane == IDEMPOTENT_LANE
        if row.persistence != Persistence.NOT_PERSISTED:
            batch.in_doubt = True
        if idempotent and code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
            retry = self._out_of_order(batch)
        elif idempotent and code == Code.UNKNOWN_PRODUCER_ID:
            retry = self._unknown_producer_id(batch, log_start_offset)
        else:
            retry = row.retriable
        # A batch that the broker may have is not given up for having been tried often: only its deadline ends
        # it.
        tries_left = batch.attempts < self._config.retries or (idempotent and batch.in_doubt)
        if retry and tries_left:
            batch.attempts += 1
            self.counts.batches_retried += 1
            retry_at_ms = now_ms + self._backoff.delay_ms(batch.attempts)
            self._accumulator.reenqueue(batch, retry_at_ms=retry_at_ms, now_ms=now_ms)
        else:
            self._fail(batch, code, text or row.text, now_ms)

    def _out_of_order(self, batch: ProducerBatch) -> bool:
        """The broker lacks the batch and misses something before it. With an earlier one unsettled that is
        the reason, and it goes first; else its own sequence is the gap, and it needs another (Kafka:
        ``canRetry``)."""
        if batch.doubtful_parent:
            # Half of a batch that may be there as a whole is refused with the same code: nothing is proved.
            batch.in_doubt = True
            return not self._ids.is_first(batch)
        batch.in_doubt = False
        if self._ids.is_first(batch):
            self._ids.request_renumbering(batch)
        return True

    def _unknown_producer_id(self, batch: ProducerBatch, log_start_offset: int) -> bool:
        """The broker forgot the producer id. Where the log starts unknown: ask again as it is. Else start
        over under a new epoch, unless an earlier attempt may be in the log: nobody could recognise the second
        copy."""
        if log_start_offset == -1:
            return True
        if batch.in_doubt or batch.doubtful_parent:
            batch.in_doubt = True
            return False
        self._ids.request_renumbering(batch)
        return True

    def _split(self, batch: ProducerBatch, now_ms: float) -> None:
        pieces = batch.split()
        log.info("splitting %r: it is too large for the topic's max.message.bytes", batch)
        self.counts.batches_split += 1
        self._accumulator.forget(batch)
        if batch.has_sequence:
            self._ids.replace(batch, pieces)
        self._effects.append(Split(batch, pieces))
        self._accumulator.replace(batch, pieces, now_ms)

    def _fail_records(self, batch: ProducerBatch, result: PartitionAnswer, now_ms: float) -> None:
        """INVALID_RECORD with record errors: those fail alone, the rest is sent again as new batches (rule
        A6).
        """
        texts = dict(result.record_errors)
        bad, good = batch.isolate(texts)
        if not bad:  # the indexes are none of ours: the batch fails whole
            batch.children = ()
            self._error(batch, result.error_code, result.error_message or "", now_ms)
            return
        batch.in_doubt = False
        if batch.has_sequence:
            self._ids.failed(batch)
        self._accumulator.forget(batch)
        self._effects.append(Split(batch, (*good, *bad)))
        row = classify(result.error_code)
        for piece in bad:
            text = texts[piece.order - batch.order] or result.error_message or row.text
            piece.done(code=result.error_code, persistence=Persistence.NOT_PERSISTED, text=text)
            piece.queued = False
            self._completed.append(piece)
        for piece in good:
            piece.attempts += 1
        self._accumulator.replace(batch, good, now_ms)

    def _fail(self, batch: ProducerBatch, code: int, text: str, now_ms: float) -> None:
        """Give the batch up. ``in_doubt`` decides what the caller is told about the log."""
        if batch.is_done:
            return
        # On the wire counts as in doubt: what was given to the driver may be sent before this is known there.
        batch.in_doubt = batch.in_doubt or batch.on_wire
        doubtful = batch.in_doubt
        if batch.lane == IDEMPOTENT_LANE and batch.has_sequence:
            self._ids.failed(batch)
        persistence = Persistence.POSSIBLY_PERSISTED if doubtful else Persistence.NOT_PERSISTED
        if batch.done(code=code, persistence=persistence, text=text):
            self._finish(batch)
        self._settled(batch.queue, now_ms)

    def _finish(self, batch: ProducerBatch) -> None:
        self._accumulator.forget(batch)
        self._completed.append(batch)

    def _settled(self, queue: PartitionQueue, now_ms: float) -> None:
        """After any change to a partition's batches: settle its sequences, put it where it belongs now."""
        if queue.sequences is not None:
            had_id = self._ids.identity.is_valid
            renumbered = self._ids.resolve(queue)
            if renumbered:
                self._effects.append(Renumbered(tuple(reversed(renumbered))))
            if had_id and not self._ids.identity.is_valid:
                self._wake_now = True
        self._accumulator.touch(queue, now_ms)

    def _expire_batches(self, now_ms: float) -> None:
        for batch in self._accumulator.expired(now_ms):
            self.counts.batches_expired += 1
            waited = now_ms - batch.created_ms
            text = (
                f"Expiring {batch.count} record(s) for {batch.topic}-{batch.partition}: {waited:.0f} ms have "
                f"passed since they were appended (delivery.timeout.ms={self._config.delivery_timeout_ms:g}); "
                f"the batch was {batch.where()}."
            )
            self._fail(batch, LocalCode.EXPIRED, text, now_ms)

    # --- the producer id ------------------------------------------------------------------------------------

    def on_producer_id(self, producer_id: int, epoch: int, now_ms: float) -> None:
        """InitProducerId succeeded. An answer with id -1 counts as COORDINATOR_LOAD_IN_PROGRESS."""
        try:
            self._ids.initialized(producer_id, epoch)
        except ValueError:
            self.on_producer_id_error(Code.COORDINATOR_LOAD_IN_PROGRESS, now_ms)
            return
        self._accumulator.touch_all(IDEMPOTENT_LANE, now_ms)
        self._wake_now = True

    def on_producer_id_error(self, code: int, now_ms: float, text: str = "") -> None:
        """InitProducerId failed (NETWORK_EXCEPTION when its link ended). It is asked again after a backoff;
        when the refusal is final (not authorised), what waits for the id fails meanwhile, and later records
        may succeed."""
        if not self._ids.init_failed(code, now_ms):
            return
        for batch in self._accumulator.incomplete():
            if batch.lane == IDEMPOTENT_LANE and not batch.has_sequence:
                self._fail(batch, code, text or classify(code).text, now_ms)

    # --- the end --------------------------------------------------------------------------------------------

    def fail_partitions(
        self, topic: str, partitions: Iterable[int] | None, code: int, text: str, now_ms: float
    ) -> None:
        """Fail what waits for these partitions (deleted topics: rule U5). What is on the wire gets its own
        answer.
        """
        for batch in self._accumulator.batches_of(topic, partitions):
            self._fail(batch, code, text, now_ms)

    def begin_close(self, now_ms: float) -> None:
        """Graceful close (rule S2): linger ends; go on polling until :attr:`is_idle`, then stop."""
        self._closing = True
        self._accumulator.begin_close(now_ms)
        self._wake_now = True

    def force_close(self, now_ms: float) -> None:
        """Fail every incomplete batch to its submitter; one more poll gives them as Completed."""
        self.begin_close(now_ms)
        for batch in self._accumulator.incomplete():
            text = (
                f"The daemon was closed before {batch.count} record(s) for {batch.topic}-{batch.partition} "
                f"were delivered; the batch was {batch.where()}."
            )
            self._fail(batch, LocalCode.ABORTED, text, now_ms)

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def is_idle(self) -> bool:
        """Nothing unsent, nothing in flight, nothing decided and untold."""
        return not (self._accumulator.has_incomplete or len(self._in_flight) or self._completed)

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)

    def in_flight_to(self, node_id: int) -> int:
        return self._in_flight.count(node_id)
