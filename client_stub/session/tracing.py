"""Tracing: a session that hands the moments of its records and of its connection to a program's callable. Io thread
only.

A producer with ``trace`` has a ``TracedSession``; one without has a ``Session``, which knows nothing of this file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgpack

from client_stub.contract.wire import Kind, Outcome, OutcomeKind
from client_stub.errors import error_for
from client_stub.native.hot import unpack_outcomes
from client_stub.outbox.callback_log import CallbackLog
from client_stub.outbox.submission import Submission
from client_stub.session.ack_window import AckWindow
from client_stub.session.attachment import Attachment
from client_stub.session.client_identity import ClientIdentity
from client_stub.session.session import Session
from client_stub.session.states import SessionEvent, State
from client_stub.session.streams import Streams

Trace: TypeAlias = Callable[[str, dict[str, Any]], object]
"""``trace(moment, info)``: docs/stub-api.md has the moments, and what ``info`` has of each."""

_MOMENTS: Final = MappingProxyType(
    {
        SessionEvent.WAKE: "connection.opening",
        SessionEvent.PAUSE_OVER: "connection.opening",
        SessionEvent.WELCOME: "connection.attached",
        SessionEvent.AWAY: "connection.lost",
        SessionEvent.FATAL: "connection.refused",
        SessionEvent.CLOSE: "connection.closed",
    }
)


class Tracer:
    """The callable of one producer. What it raises is logged, and does no harm."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._log = CallbackLog()

    def __call__(self, moment: str, info: dict[str, Any]) -> None:
        try:
            self._trace(moment, info)
        except BaseException:
            self._log.failed("A trace", "the producer continues")


class _TracedSubmission:
    """What is known of one submission from its first moment to its last."""

    __slots__ = ("attempts", "left", "number", "topic")

    def __init__(self, number: int, submission: Submission) -> None:
        self.number = number
        self.topic = submission.topic
        self.left = submission.count
        self.attempts = 0

    def info(self, count: int, **more: Any) -> dict[str, Any]:
        return {"submission": self.number, "topic": self.topic, "count": count, **more}

    def decided(self, count: int, **more: Any) -> dict[str, Any]:
        """The same of records that have their outcome now. A record has one, so repeats count nothing."""
        count = min(count, self.left)
        self.left -= count
        return self.info(count, left=self.left, **more)


class TracedAttachment(Attachment):
    tracer: Tracer

    def _move(self, event: SessionEvent) -> None:
        super()._move(event)
        moment = _MOMENTS.get(event)
        if moment is None:
            return
        info: dict[str, Any] = {}
        if event in (SessionEvent.AWAY, SessionEvent.FATAL):
            info["reason"] = self.last_word
        elif event is SessionEvent.WELCOME:
            info["worker_epoch"] = self.worker_epoch
        self.tracer(moment, info)


class TracedStreams(Streams):
    tracer: Tracer

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._traced: dict[Submission, _TracedSubmission] = {}

    def queued(self, submission: Submission) -> None:
        traced = self._traced[submission] = _TracedSubmission(next(self._numbers), submission)
        self.tracer("records.queued", traced.info(submission.count, bytes=submission.payload_bytes))

    def sent(self, window: AckWindow) -> None:
        """The last submission of ``window`` that was sent is handed to the socket."""
        submission = window.queue[window.sent_count - 1]
        traced = self._traced.get(submission)
        if traced is None:
            return  # its outcomes have overtaken the acceptance, and a new worker gets it again
        traced.attempts += 1
        self.tracer(
            "records.sent",
            traced.info(
                submission.count,
                bytes=submission.payload_bytes,
                stream=window.number,
                seq=submission.seq,
                attempt=traced.attempts,
            ),
        )

    def find(self, outcome: Outcome) -> _TracedSubmission | None:
        """The submission of an outcome that has arrived, before it is applied."""
        window = self.windows.get(outcome.stream)
        if window is None:
            return None
        submission = window.accepted.get(outcome.seq) or next(
            (each for each in window.queue if each.seq == outcome.seq), None
        )
        return None if submission is None else self._traced.get(submission)

    def accept(self, credit_bytes: int, positions: Iterable[tuple[int, int]]) -> bool:
        before = len(self._released)
        is_more = super().accept(credit_bytes, positions)
        for submission in self._released[before:]:
            traced = self._traced.get(submission)
            if traced is not None:  # else its outcomes have overtaken this, and are all there
                self.tracer("records.accepted", traced.info(submission.count, seq=submission.seq))
        return is_more

    def completed(self, window: AckWindow, submission: Submission) -> None:
        super().completed(window, submission)
        self._traced.pop(submission, None)

    def finish(self, submission: Submission) -> None:
        super().finish(submission)
        traced = self._traced.pop(submission, None)
        if traced is not None and traced.left:
            self.tracer("records.failed", traced.decided(traced.left, error=submission.first_error))


class TracedSession(Session):
    _attachment_type = TracedAttachment
    _streams_type = TracedStreams
    attachment: TracedAttachment
    streams: TracedStreams

    def __init__(
        self,
        tracer: Tracer,
        identity: ClientIdentity,
        *,
        delivery_timeout_ms: float,
        partitioning: int = 0,
        transactional: tuple[str, int] | None = None,
        stages: bool = False,
    ) -> None:
        super().__init__(
            identity,
            delivery_timeout_ms=delivery_timeout_ms,
            partitioning=partitioning,
            transactional=transactional,
            stages=stages,
        )
        self.attachment.tracer = self.streams.tracer = self._tracer = tracer

    def add(self, submissions: Iterable[Submission], now_ms: float, *, flush: bool = False) -> None:
        submissions = list(submissions)
        for submission in submissions:
            self.streams.queued(submission)
        super().add(submissions, now_ms, flush=flush)

    def next_frames(self) -> list[Any] | None:
        frames = super().next_frames()
        if frames is not None and len(frames) > 1:
            head = msgpack.unpackb(frames[0])
            if head[0] == Kind.SUBMIT:
                self.streams.sent(self.streams.windows[head[2]])
        return frames

    def receive_worker(self, frames: list[bytes], now_ms: float) -> None:
        decided = self._decided(frames)
        super().receive_worker(frames, now_ms)
        for traced, outcome in decided:
            if outcome.kind == OutcomeKind.FAILED:
                error = error_for(outcome.code, outcome.text, outcome.persistence)
                info = traced.decided(outcome.count, partition=outcome.partition, error=error)
                self._tracer("records.failed", info)
            else:
                info = traced.decided(
                    outcome.count, partition=outcome.partition, base_offset=outcome.base_offset
                )
                self._tracer("records.acknowledged", info)

    def _decided(self, frames: list[bytes]) -> list[tuple[_TracedSubmission, Outcome]]:
        """The outcomes of a message that were not seen before, with their submissions, which may end with it."""
        if self.attachment.state is not State.ATTACHED or len(frames) < 2:
            return []
        message = msgpack.unpackb(frames[0])
        if not isinstance(message, list) or not message or message[0] != Kind.OUTCOMES:
            return []
        return [
            (traced, outcome)
            for outcome in unpack_outcomes(frames[1])
            if outcome.number > self._outcomes_seen and (traced := self.streams.find(outcome)) is not None
        ]
