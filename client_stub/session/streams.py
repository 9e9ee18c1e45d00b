"""Streams: the streams of one client, from the first submission of a topic to the end of its stream. Sans-IO.

``Session`` moves submissions through their windows; here they are opened, admitted, failed and ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from client_stub.contract.wire import Kind, LocalCode
from client_stub.errors import DeliveryFailed, SidecarError
from client_stub.outbox.submission import Submission
from client_stub.session.ack_window import AckWindow
from client_stub.session.effects import ErrorOf
from client_stub.session.refusals import refusal_error
from client_stub.session.stream_admission import StreamAdmission

NOT_ADMITTED: Final = (
    "this producer has as many topics under way as one may, and waits until one of them rests"
)
_LEAVES: Final = (
    "another topic of this producer has its turn, as more are under way than one may have at a time"
)


class Streams:
    """The streams of one session, which reads and moves what is in them. Io thread only."""

    def __init__(self) -> None:
        self.windows: dict[int, AckWindow] = {}
        """Stream number → its window. Numbers are never reused, so late messages for old streams are ignored."""
        self.by_topic: dict[str, AckWindow] = {}
        self.in_use: dict[int, AckWindow] = {}
        """Windows with something undecided, and perhaps some without: a flush checks no others."""
        self.turns: deque[AckWindow] = deque()
        """Windows with something to send; they take turns, so that no topic starves another."""
        self.flushing: set[int] = set()
        """Numbers of streams whose FLUSH is to be sent."""
        self.orders: deque[list[Any]] = deque()
        """Messages for the worker that go before any other: streams that end, and linger that ends with them."""
        self.hold_reasons: dict[str, str] = {}
        """Topic → the reason why its stream sends nothing. Callers read it. A topic that sends has no entry."""
        self.refused_topics: list[tuple[str, SidecarError]] = []
        """Topics that the daemon refuses, with the error for later sends. The io thread takes them."""
        self.admission = StreamAdmission()
        self.credit_bytes = self.accepted_bytes = self.sent_bytes = 0
        """What the worker takes in all; what it has accepted since WELCOME; what is under way to it."""
        self.ends_at_acceptance = False
        """Whether a record has no outcome but its acceptance, as those of stages."""
        self.has_progress = False
        """Whether ``take_progress`` would return anything."""
        self.has_outcomes = False
        """Whether a record got its outcome since then, even if its submission is not complete."""
        self._released: list[Submission] = []
        self._finished: list[Submission] = []
        self._next_number = 1

    # --- what becomes of submissions ----------------------------------------------------------------

    def accept(self, credit_bytes: int, positions: Iterable[tuple[int, int]]) -> bool:
        """Record (stream, seq) up to which the worker has everything. Returns whether that is more than before; repeats
        are harmless.
        """
        self.credit_bytes = credit_bytes
        is_more = False
        for number, up_to_seq in positions:
            window = self.windows.get(number)
            if window is None:
                continue
            queue = window.queue
            while queue and queue[0].seq <= up_to_seq:
                submission = queue.popleft()
                if window.sent_count:
                    window.sent_count -= 1
                    self.sent_bytes -= submission.payload_bytes
                    self.accepted_bytes += submission.payload_bytes
                submission.was_accepted = submission.sent = True  # sent, even if DRAINING has said otherwise
                if self.ends_at_acceptance:
                    submission.remaining = 0
                    self._finished.append(submission)
                elif submission.remaining > 0:  # what was sent is closed: ``remaining`` is final
                    window.accepted[submission.seq] = submission
                self._released.append(submission)
                is_more = self.has_progress = True
        return is_more

    def completed(self, window: AckWindow, submission: Submission) -> None:
        """Note that outcomes of the worker have completed a submission."""
        window.accepted.pop(submission.seq, None)
        self._finished.append(submission)
        self.has_progress = True

    def finish(self, submission: Submission) -> None:
        """Note that every record of a submission has failed here, and release its bytes unless ``accept`` has."""
        self._finished.append(submission)
        if not submission.was_accepted:
            self._released.append(submission)
        self.has_progress = True

    def take_progress(self) -> tuple[list[Submission], list[Submission], bool]:
        """Submissions whose bytes can be freed, those with all outcomes known, and whether any record got its outcome,
        since the last call.
        """
        progress = self._released, self._finished, self.has_outcomes or bool(self._finished)
        self._released, self._finished, self.has_outcomes, self.has_progress = [], [], False, False
        return progress

    def fail(self, window: AckWindow, error_of: ErrorOf) -> None:
        for submission in window.undecided():
            submission.fail(error_of(submission.sent))
            self.finish(submission)
        self.drop(window)

    def fail_all(self, error_of: ErrorOf) -> None:
        for window in list(self.windows.values()):
            self.fail(window, error_of)

    def fail_late(self, oldest_ms: float, waited_ms: float) -> None:
        """Fail submissions of streams that are not admitted which have waited since before ``oldest_ms``, for
        ``waited_ms``.
        """
        for window in self.admission.waiting():
            if window.queue and window.queue[0].queued_ms < oldest_ms:
                reason = self.hold_reasons.get(window.topic, NOT_ADMITTED).rstrip(".")
                text = (
                    f"The record for topic {window.topic} has waited {waited_ms:.0f} ms (delivery_timeout_ms) for a "
                    f"place at the daemon: {reason}."
                )
                error = topic_error(window.refusal or "TOO_MANY_STREAMS", text)
                kept = []
                for submission in window.queue:
                    if submission.queued_ms < oldest_ms:
                        submission.fail(error)
                        self.finish(submission)
                    else:
                        kept.append(submission)
                self.end(window, kept)

    @property
    def undecided(self) -> bool:
        return any(
            window.accepted or any(not submission.completed for submission in window.queue)
            for window in self.in_use.values()
        )

    def has_older(self, than_ms: float) -> bool:
        """Whether an undecided submission has waited since before ``than_ms``."""
        return any(
            each.queued_ms < than_ms for window in self.windows.values() for each in window.undecided()
        )

    # --- turns to send ------------------------------------------------------------------------------

    def next_window(self) -> AckWindow | None:
        """The window whose turn it is to send; None when no window has anything to send."""
        turns = self.turns
        while turns:
            window = turns[0]
            if window.sent_count < len(window.queue) and not window.held:
                return window
            turns.popleft()
            window.has_turn = False
        return None

    def has_credit(self, payload_bytes: int) -> bool:
        """Whether so many bytes may be sent now. More than the whole credit may be when nothing else is under way."""
        left_bytes = self.credit_bytes - self.accepted_bytes
        return self.sent_bytes + payload_bytes <= left_bytes or (not self.sent_bytes and left_bytes > 0)

    def send_next(self, window: AckWindow) -> bool:
        """Count the next submission of the window whose turn it is as under way; then it is the next one's turn.

        Returns whether the window's flush ends at this submission and travels with it.
        """
        submission = window.queue[window.sent_count]
        submission.sent = True
        self.sent_bytes += submission.payload_bytes
        window.sent_count += 1
        if window.sent_count < len(window.queue):
            self.turns.rotate(-1)
        else:
            self.turns.popleft()
            window.has_turn = False
        if window.flush_to_seq != submission.seq or window.number not in self.flushing:
            return False
        window.flush_sent_seq = submission.seq
        self.flushing.discard(window.number)
        return True

    def flush(self) -> None:
        """Let the present submissions of all streams go without linger."""
        for window in list(self.in_use.values()):
            if not (window.queue or window.accepted):
                del self.in_use[window.number]
                continue
            window.flush_to_seq = window.next_seq - 1
            if window.flush_to_seq > window.flush_sent_seq:
                self.flushing.add(window.number)

    def next_flush(self) -> tuple[int, int] | None:
        """(stream, up to seq) of a FLUSH that is due now; it then counts as sent."""
        for number in list(self.flushing):
            window = self.windows.get(number)
            if window is None or window.flush_to_seq <= window.flush_sent_seq:
                self.flushing.discard(number)
                continue
            seq = window.flush_seq_due()
            if seq is not None:
                window.flush_sent_seq = seq
                self.flushing.discard(number)
                return number, seq
        return None

    def rewind(self, window: AckWindow, from_seq: int) -> None:
        """Go back to ``from_seq``, so that it and all later ones are sent again."""
        self.sent_bytes -= window.rewind(from_seq)

    def send_on(self, window: AckWindow) -> None:
        """Give a window that went back its turn, and repeat its flush."""
        if window.flush_to_seq > window.flush_sent_seq and (window.queue or window.accepted):
            self.flushing.add(window.number)
        if window.sent_count < len(window.queue) and not (window.held or window.has_turn):
            window.has_turn = True
            self.turns.append(window)

    # --- from the first submission to the end -------------------------------------------------------

    def open(self, topic: str, now_ms: float) -> AckWindow:
        """Open a stream, which waits until ``admit``."""
        window = AckWindow(self._next_number, topic)
        window.used_ms = now_ms
        self._next_number += 1
        self.windows[window.number] = self.by_topic[topic] = window
        self.admission.enqueue(window)
        self.hold_reasons[topic] = NOT_ADMITTED
        return window

    def admit(self, now_ms: float) -> bool:
        """Admit the streams that wait, as far as others are at rest. Returns whether any still waits."""
        admission = self.admission
        while admission.queue:
            if len(admission.admitted) >= admission.limit and not self._end_resting():
                for window in admission.let_leave(now_ms):
                    self.hold_reasons[window.topic] = _LEAVES
                    self.orders.append([Kind.FLUSH, window.number, window.last_seq + window.sent_count])
                break
            window = admission.admit_next(now_ms)
            self.hold_reasons.pop(window.topic, None)
            self.send_on(window)
        return admission.has_waiting

    def _end_resting(self) -> bool:
        """End the stream that is needed least. False if none is at rest.

        Each of its records has its outcome, so none of them can overtake one of a later stream of its topic. What is
        under way to the worker under its number was processed before: END_STREAM follows it on the same connection,
        and WELCOME ends what came by an earlier one.
        """
        window = self.admission.resting()
        if window is None:
            return False
        self.orders.append([Kind.END_STREAM, window.number, window.last_seq])
        self.end(window, window.queue)
        return True

    def end(self, window: AckWindow, kept: Sequence[Submission]) -> None:
        """End a window here. Its last submissions, which no daemon has, continue in a new stream, if there are any."""
        self.drop(window)
        if not kept:
            return
        fresh = self.open(window.topic, window.used_ms)
        fresh.flush_to_seq = sum(each.seq <= window.flush_to_seq for each in kept)
        for seq, submission in enumerate(kept, start=1):
            submission.seq = seq
        fresh.queue.extend(kept)
        fresh.next_seq += len(kept)
        self.in_use[fresh.number] = fresh

    def drop(self, window: AckWindow) -> None:
        self.windows.pop(window.number, None)
        self.in_use.pop(window.number, None)
        self.admission.drop(window)
        self.hold_reasons.pop(window.topic, None)
        if self.by_topic.get(window.topic) is window:
            del self.by_topic[window.topic]
        if window.has_turn:
            window.has_turn = False
            self.turns.remove(window)


def topic_error(code: str, text: str) -> DeliveryFailed:
    return refusal_error(code, text, unknown=LocalCode.TOPIC_REFUSED)
