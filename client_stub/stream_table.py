"""StreamTable: all streams of one client, whose turn it is to send, and what a lost daemon does to them. Sans-IO.

What concerns one stream, the session asks of its ``AckWindow``.
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
    """Owned by the session. Stream numbers are never used twice, so late messages for old ones find nobody."""

    def __init__(self) -> None:
        self.released: list[Submission] = []
        """Submissions whose bytes are no longer ours to keep, since the last take."""
        self.finished: list[Submission] = []
        """Submissions whose every record has its fate, since the last take."""
        self.by_topic: dict[str, AckWindow] = {}
        self.by_number: dict[int, AckWindow] = {}
        self.hold_reasons: dict[str, str] = {}
        """By topic, why the worker holds its stream; callers read it. Nothing of this concerns a topic that moves."""
        self.turns: deque[AckWindow] = deque()
        """Windows with something to send, in turns, so that one topic does not starve the others."""
        self.flushing: set[int] = set()
        """Numbers of streams whose FLUSH is still to be sent."""
        self._next_number = 1
        self._have_turns: set[int] = set()

    def __iter__(self) -> Iterator[AckWindow]:
        """All windows; safe against restarts while iterating."""
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
        """The next in turn; its sender calls :meth:`pass_turn`."""
        turns = self.turns
        while turns:
            window = turns[0]
            if window.sent_count < len(window.queue) and not window.held:
                return window, window.queue[window.sent_count]
            turns.popleft()
            self._have_turns.discard(window.number)
        return None

    def pass_turn(self, window: AckWindow) -> None:
        """The window whose turn it is has sent one: the next one's turn, and its own again if it has more."""
        if window.sent_count < len(window.queue):
            self.turns.rotate(-1)
        else:
            self.turns.popleft()
            self._have_turns.discard(window.number)

    def fail_next(self, window: AckWindow, error: DeliveryFailed) -> None:
        """The submission whose turn it is cannot travel: it fails alone, what is behind it goes on."""
        submission = window.drop_next()
        submission.fail(error)
        self.finish(submission)

    def request_flush(self, windows: Iterable[AckWindow]) -> None:
        """Send without linger what these windows have now."""
        for window in windows:
            if window.queue or window.accepted:
                window.flush_to_seq = window.next_seq - 1
                self.repeat_flush(window)

    def repeat_flush(self, window: AckWindow) -> None:
        if window.flush_to_seq > window.flush_sent_seq and (window.queue or window.accepted):
            self.flushing.add(window.number)

    def flush_goes_with(self, window: AckWindow, submission: Submission) -> bool:
        """True when the flush that is due goes up to this submission, which is being sent; it counts as sent."""
        if window.number not in self.flushing or window.flush_seq_due() != submission.seq:
            return False
        window.flush_sent_seq = submission.seq
        self.flushing.discard(window.number)
        return True

    def next_flush(self) -> tuple[int, int] | None:
        """(stream, up to seq) of a FLUSH that is due now; it counts as sent."""
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
        """Send again from ``from_seq`` on, once nothing holds it; returns the bytes that are no longer under way."""
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
        """A worker has welcomed the client: it has each stream up to a position, and holds some."""
        for window in self:
            position, window.held = positions.get(window.number, (0, False))
            window.rewind(0)
            if not window.held:
                self.hold_reasons.pop(window.topic, None)
            first = window.queue[0].seq if window.queue else window.next_seq
            if position < first - 1:
                # Its memory is older than its last ACCEPTED: those frames are gone here. The stream restarts.
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
        """Some submission without its end has waited since before ``than_ms``."""
        return any(submission.queued_ms < than_ms for window in self for submission in window.undecided())

    # --- ends ---------------------------------------------------------------------------------------

    def restart(self, window: AckWindow, text: str, *, older_than_ms: float = -inf) -> None:
        """The daemon's memory of this stream is gone: what was sent fails as possibly persisted.

        What was never sent goes on in a new stream, unless it has waited since before ``older_than_ms``.
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
        """Fail all of a stream; ``error_of(sent)`` makes each submission's error."""
        for submission in window.undecided():
            submission.fail(error_of(submission.sent))
            self.finish(submission)
        self._drop(window)

    def finish(self, submission: Submission) -> None:
        """Every record of it has its fate; its bytes, if we still have them, go."""
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
