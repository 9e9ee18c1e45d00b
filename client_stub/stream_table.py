"""StreamTable: all streams of one client, their turns to send, and what happens to them when a daemon is lost.
Sans-IO.

The session asks the ``AckWindow`` of a stream about that stream itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf

from client_stub.ack_window import AckWindow
from client_stub.errors import DeliveryFailed
from client_stub.submission import Submission, lost_error

log = logging.getLogger("client_stub")


class StreamTable:
    """The streams of one session. Stream numbers are never reused, so late messages for old streams are ignored."""

    def __init__(self) -> None:
        self.released: list[Submission] = []
        """Submissions whose bytes can be freed, since the last take."""
        self.finished: list[Submission] = []
        """Submissions with all outcomes known, since the last take."""
        self.by_topic: dict[str, AckWindow] = {}
        self.by_number: dict[int, AckWindow] = {}
        self.hold_reasons: dict[str, str] = {}
        """Topic → the reason why the worker holds its stream. Callers read it. A topic that is not held has no
        entry.
        """
        self.turns: deque[AckWindow] = deque()
        """Windows with something to send; they take turns, so that no topic starves another."""
        self.flushing: set[int] = set()
        """Numbers of streams whose FLUSH is to be sent."""
        self._next_number = 1
        self._have_turns: set[int] = set()

    def __iter__(self) -> Iterator[AckWindow]:
        """All windows. Streams may be restarted during the iteration."""
        return iter(list(self.by_number.values()))

    @property
    def undecided(self) -> bool:
        return any(
            window.accepted or any(not submission.completed for submission in window.queue)
            for window in self.by_number.values()
        )

    # --- sending ------------------------------------------------------------------------------------

    def add(self, submission: Submission) -> None:
        window = self.by_topic.get(submission.topic) or self._open(submission.topic)
        window.add(submission)
        self.enlist(window)

    def enlist(self, window: AckWindow) -> None:
        """Give the window a turn if it has something to send."""
        if (
            window.sent_count < len(window.queue)
            and not window.held
            and window.number not in self._have_turns
        ):
            self._have_turns.add(window.number)
            self.turns.append(window)

    def next_to_send(self) -> tuple[AckWindow, Submission] | None:
        """(window, submission) of the next turn. After sending it, the caller calls :meth:`pass_turn`."""
        turns = self.turns
        while turns:
            window = turns[0]
            if window.sent_count < len(window.queue) and not window.held:
                return window, window.queue[window.sent_count]
            turns.popleft()
            self._have_turns.discard(window.number)
        return None

    def pass_turn(self, window: AckWindow) -> None:
        """Pass the turn on: the present window has sent a submission, and gets another turn later if it has more."""
        if window.sent_count < len(window.queue):
            self.turns.rotate(-1)
        else:
            self.turns.popleft()
            self._have_turns.discard(window.number)

    def fail_next(self, window: AckWindow, error: DeliveryFailed) -> None:
        """Fail the submission whose turn it is, which cannot be sent. The ones after it are not affected."""
        submission = window.drop_next()
        submission.fail(error)
        self.finish(submission)

    def request_flush(self, windows: Iterable[AckWindow]) -> None:
        """Send the present submissions of these windows without linger."""
        for window in windows:
            if window.queue or window.accepted:
                window.flush_to_seq = window.next_seq - 1
                self.repeat_flush(window)

    def repeat_flush(self, window: AckWindow) -> None:
        if window.flush_to_seq > window.flush_sent_seq and (window.queue or window.accepted):
            self.flushing.add(window.number)

    def flush_goes_with(self, window: AckWindow, submission: Submission) -> bool:
        """True when the due flush ends at this submission, which is being sent. The flush then counts as sent."""
        if window.number not in self.flushing or window.flush_seq_due() != submission.seq:
            return False
        window.flush_sent_seq = submission.seq
        self.flushing.discard(window.number)
        return True

    def next_flush(self) -> tuple[int, int] | None:
        """(stream, up to seq) of a FLUSH that is due now; it then counts as sent."""
        for number in list(self.flushing):
            window = self.by_number.get(number)
            if window is None or window.flush_to_seq <= window.flush_sent_seq:
                self.flushing.discard(number)
                continue
            seq = window.flush_seq_due()
            if seq is not None:
                window.flush_sent_seq = seq
                self.flushing.discard(number)
                return number, seq
        return None

    # --- what the worker says -----------------------------------------------------------------------

    def resend(self, window: AckWindow, from_seq: int, *, held: bool, reason: str) -> int:
        """Go back to ``from_seq``, to send from there once the stream is not held. Returns the bytes that are no
        longer under way.
        """
        bytes_back = window.rewind(from_seq)
        window.held = held
        if held:
            self.hold_reasons[window.topic] = reason
        else:
            self.hold_reasons.pop(window.topic, None)
        self.repeat_flush(window)
        self.enlist(window)
        return bytes_back

    def resume(self, positions: Mapping[int, tuple[int, bool]]) -> None:
        """Continue after a worker's WELCOME, which says up to which position it has each stream, and which streams it
        holds.
        """
        for window in self:
            position, window.held = positions.get(window.number, (0, False))
            window.rewind(0)
            if not window.held:
                self.hold_reasons.pop(window.topic, None)
            first = window.queue[0].seq if window.queue else window.next_seq
            if position < first - 1:
                # The worker's state is older than its last ACCEPTED, and those frames are gone here, so the stream
                # restarts.
                log.error(
                    "The daemon has lost accepted submissions %d to %d of %s.",
                    position + 1,
                    first - 1,
                    window.topic,
                )
                text = "The daemon lost records it had accepted; they may or may not be in the log."
                self.restart(window, text)
                continue
            self.released.extend(window.accept(position))
            self.repeat_flush(window)
            self.enlist(window)

    def has_older(self, than_ms: float) -> bool:
        """Whether an undecided submission has waited since before ``than_ms``."""
        return any(submission.queued_ms < than_ms for window in self for submission in window.undecided())

    # --- ends ---------------------------------------------------------------------------------------

    def restart(self, window: AckWindow, text: str, *, older_than_ms: float = -inf) -> None:
        """The daemon no longer knows this stream: fail all that was sent as possibly persisted.

        Submissions that were never sent continue in a new stream, unless they have waited since before
        ``older_than_ms``.
        """
        kept: list[Submission] = []
        for submission in window.undecided():
            if submission.sent or submission.queued_ms < older_than_ms:
                submission.fail(lost_error(text, maybe=submission.sent))
                self.finish(submission)
            else:
                kept.append(submission)
        self._drop(window)
        fresh = self._open(window.topic)
        for submission in kept:
            fresh.add(submission)
        if window.flush_to_seq:
            self.request_flush((fresh,))
        self.enlist(fresh)

    def fail(self, window: AckWindow, error_of: Callable[[bool], DeliveryFailed]) -> None:
        """Fail all submissions of a stream; ``error_of(sent)`` makes each one's error."""
        for submission in window.undecided():
            submission.fail(error_of(submission.sent))
            self.finish(submission)
        self._drop(window)

    def finish(self, submission: Submission) -> None:
        """Note that every record of a submission has its outcome, and release its bytes if it still has any."""
        self.finished.append(submission)
        if submission.held_bytes:
            self.released.append(submission)

    def _open(self, topic: str) -> AckWindow:
        window = AckWindow(self._next_number, topic)
        self._next_number += 1
        self.by_number[window.number] = self.by_topic[topic] = window
        return window

    def _drop(self, window: AckWindow) -> None:
        self.by_number.pop(window.number, None)
        if self.by_topic.get(window.topic) is window:
            del self.by_topic[window.topic]
        if window in self.turns:
            self.turns.remove(window)
        self._have_turns.discard(window.number)
