"""StreamOpenings: handles the first submission of a stream, which needs a row in the table of topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from client_stub.contract.wire import TOPIC_BYTES_MAX, Kind, LocalCode
from sidecar.producer.lanes import ACKS_ALL, IDEMPOTENT_LANE
from sidecar.shm.layout import STREAMS_MAX
from sidecar.worker.streams.refusal import MalformedFrame, Refusal
from sidecar.worker.streams.session import ClientSession, StreamState
from sidecar.worker.stubs.name_queue import NameQueue, StreamKey

if TYPE_CHECKING:
    from sidecar.shm.slots import Counters
    from sidecar.worker.streams.client_limits import ClientLimits
    from sidecar.worker.streams.outboxes import Outboxes
    from sidecar.worker.streams.topic_queue import TopicQueue
    from sidecar.worker.topics.topics import Topics

NO_ROW_YET: Final = "the daemon's table of topics has room only for topics that Kafka has"
NO_LANE: Final = (
    "The stage of the record was not opened: this worker has as many transactional ids as it can have."
)
TABLE_FULL: Final = (
    "The daemon's table of topics is full; a topic makes room when the clients that used it are gone."
)


class StreamOpenings:
    """Opens streams. Belongs to the worker's loop."""

    def __init__(self, topics: Topics, limits: ClientLimits, outboxes: Outboxes, counters: Counters) -> None:
        self.on_useless: Callable[[ClientSession], None] = lambda session: None
        """Called for a submission that opens nothing. Set by the stub port."""
        self._topics = topics
        self._limits = limits
        self._outboxes = outboxes
        self._counters = counters
        self.queue = NameQueue()

    def may_open(self, session: ClientSession, stream_id: int, seq: int) -> bool:
        """Whether this submission of an unknown stream may open it: it is the first, and does not wait for a row
        already.
        """
        if StreamKey(session, stream_id) in self.queue.waiting:
            self._counters.inc("frames_resent_total")
            return False
        if seq != 1:
            self._ask_for_the_first(session, stream_id, seq)
            self.on_useless(session)
            return False
        return True

    def open(self, session: ClientSession, stream_id: int, topic: Any, now_ms: float) -> StreamState | None:
        """Open a stream whose first submission is here and valid. No state is made before that."""
        if not 0 < stream_id <= 0xFFFFFFFF:
            raise MalformedFrame(f"stream {stream_id} is not a stream number")
        if not isinstance(topic, str) or not 0 < len(topic.encode()) <= TOPIC_BYTES_MAX:
            self._refuse(session, stream_id, "INVALID_TOPIC", f"Topic name {topic!r} is not valid.")
            return None
        if len(session.streams) >= STREAMS_MAX:
            text = f"This client sends to {STREAMS_MAX} topics already, the most one may; close it or use another."
            self._refuse(session, stream_id, "TOO_MANY_STREAMS", text)
            return None
        refusal = self._limits.refusal_of(session, topic)
        transaction = None if session.lane is None else session.lane.manager
        queue = self._topics.open(
            topic,
            len(session.streams),
            now_ms,
            session.row.pid,
            is_wanted=refusal is None,
            transaction=transaction,
            is_staged=session.stages is not None,
        )
        if queue is None:
            may_wait = refusal is None and not self._topics.is_known(topic)
            if may_wait and self.queue.join(StreamKey(session, stream_id), topic, now_ms):
                self._topics.ask_for(topic)
                self._outboxes.send(session, [Kind.HOLD, stream_id, 1, NO_ROW_YET])
            else:
                self._refuse(session, stream_id, "TOPIC_TABLE_FULL", TABLE_FULL)
            return None
        session.row.place_stream(stream_id, queue.chain.chain_id)
        stream = StreamState(session, stream_id, queue, 0)
        stream.refusal = refusal or _acks_refusal(queue)
        session.streams[stream_id] = stream
        session.unopened.discard(stream_id)
        return stream

    def refuse_without_lane(self, session: ClientSession, stream_id: int, seq: int) -> None:
        """Refuse the first submission of a stage that got no lane, as its client has heard. Its stub takes it back, and
        drops it with the stage: one that it believed to be under way would be awaited by the seal of the next stage.
        """
        if seq == 1:
            self._awaits_the_first(session, stream_id)
            self._outboxes.send(session, [Kind.REFUSED, "TOPIC_TABLE_FULL", NO_LANE, stream_id])

    def next_due_ms(self) -> float:
        """When the first stream that waits for a row tries again, monotonic ms."""
        return self.queue.next_check_ms

    def names_known(self) -> None:
        """Resume the streams whose topic names new metadata confirms."""
        self._resume(self.queue.take_known(self._topics.is_known))

    def names_due(self, now_ms: float) -> None:
        """Resume the streams for which a row is free by now, and those that waited long enough."""

        def may_open(key: StreamKey, topic: str) -> bool:
            session = key.session
            transaction = None if session.lane is None else session.lane.manager
            return self._topics.may_open(
                topic,
                len(session.streams),
                now_ms,
                session.row.pid,
                transaction,
                session.stages is not None,
            )

        self._resume(self.queue.take_due(may_open, now_ms))

    def forget(self, session: ClientSession) -> None:
        """Forget the streams of a session that ended."""
        self._ask_no_more(self.queue.take_of(session))

    def _resume(self, left: list[tuple[StreamKey, str]]) -> None:
        self._ask_no_more(left)
        for key, _ in left:
            if key.session.attached:
                self._awaits_the_first(key.session, key.stream_id)
                self._outboxes.send(key.session, [Kind.RESUME, key.stream_id, 1])

    def _ask_no_more(self, left: list[tuple[StreamKey, str]]) -> None:
        """Stop asking for the topics of streams that left the queue, unless another stream waits for the same topic."""
        if left:
            awaited = {wait.topic for wait in self.queue.waiting.values()}
            for _, topic in left:
                if topic not in awaited:
                    self._topics.asks_no_more(topic)

    def _refuse(self, session: ClientSession, stream_id: int, code: str, text: str) -> None:
        self._awaits_the_first(session, stream_id)
        self._outboxes.send(session, [Kind.REFUSED, code, text, stream_id])
        self.on_useless(session)

    def _ask_for_the_first(self, session: ClientSession, stream_id: int, seq: int) -> None:
        """Ask the stub to begin an unknown stream with seq 1. This is sent once, and no state is made for the
        stream.
        """
        if seq < 1:
            raise MalformedFrame(f"seq {seq} is before the first")
        self._counters.inc("frames_resent_total")
        if self._awaits_the_first(session, stream_id):
            self._outboxes.send(session, [Kind.RESEND, stream_id, 1])

    @staticmethod
    def _awaits_the_first(session: ClientSession, stream_id: int) -> bool:
        """Note that the stub is told to begin a stream with seq 1, so that what it had sent after that is dropped
        without an answer. False if it was told already, or is to be told no more.
        """
        if stream_id in session.unopened or len(session.unopened) >= STREAMS_MAX:
            return False
        session.unopened.add(stream_id)
        return True


def _acks_refusal(queue: TopicQueue) -> Refusal | None:
    """Why a topic cannot be sent to in a transaction; None if it can, or outside of one."""
    settings = queue.settings
    if queue.transaction is None or settings is None or settings.lane == IDEMPOTENT_LANE:
        return None
    why = "enable.idempotence=false" if settings.acks == ACKS_ALL else f"acks={settings.acks}"
    text = f"Topic {queue.topic} has {why}. In a transaction it needs acks=all and enable.idempotence=true."
    return Refusal(LocalCode.TXN_WRONG_STATE, text)
