"""AckWindow: one stream's submissions between the caller and their outcomes. Sans-IO, io thread only.

::

    queue (not accepted, in order of seq)                 accepted (by seq, waiting for outcomes)
    [ sent | sent | unsent | unsent ... ]  --ACCEPTED-->  { seq: submission }  --outcomes-->  gone
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from client_stub.submission import Submission
from client_stub.wire import Outcome


class AckWindow:
    """A stream is (client, topic); ``number`` names it on the wire and is never used twice by a client."""

    __slots__ = (
        "accepted",
        "flush_sent_seq",
        "flush_to_seq",
        "held",
        "next_seq",
        "number",
        "queue",
        "sent_count",
        "topic",
    )

    def __init__(self, number: int, topic: str) -> None:
        self.number = number
        self.topic = topic
        self.next_seq = 1
        self.queue: deque[Submission] = deque()
        self.sent_count = 0
        """How many at the head of ``queue`` were sent to the present worker and are not accepted yet."""
        self.accepted: dict[int, Submission] = {}
        self.held = False
        self.flush_to_seq = 0
        self.flush_sent_seq = 0

    def add(self, submission: Submission) -> None:
        submission.seq = self.next_seq
        self.next_seq += 1
        self.queue.append(submission)

    def drop_next(self) -> Submission:
        """Take out the next to send: nothing of it or behind it was sent to the present worker, which has none of
        it, so those behind close up and the stream has no hole."""
        submission = self.queue[self.sent_count]
        del self.queue[self.sent_count]
        for later in islice(self.queue, self.sent_count, None):
            later.seq -= 1
        self.next_seq -= 1
        if self.flush_to_seq >= submission.seq:
            self.flush_to_seq -= 1
        return submission

    def accept(self, up_to_seq: int) -> list[Submission]:
        """The daemon has everything up to ``up_to_seq``; returns what is news. Repeats are harmless."""
        news: list[Submission] = []
        queue = self.queue
        while queue and queue[0].seq <= up_to_seq:
            submission = queue.popleft()
            if self.sent_count:
                self.sent_count -= 1
            submission.was_accepted = True
            if submission.remaining > 0:  # what is sent is sealed
                self.accepted[submission.seq] = submission
            news.append(submission)
        return news

    def rewind(self, from_seq: int) -> int:
        """Send again from ``from_seq`` on; returns the payload bytes that are no longer under way."""
        bytes_back = 0
        while self.sent_count and self.queue[self.sent_count - 1].seq >= from_seq:
            self.sent_count -= 1
            bytes_back += self.queue[self.sent_count].payload_bytes
        # A flush sent before its records arrived named nothing: it is repeated behind them.
        self.flush_sent_seq = min(self.flush_sent_seq, max(0, from_seq - 1))
        return bytes_back

    def not_taken(self) -> None:
        """The daemon has said that it has nothing of what is still in ``queue`` and will never have it."""
        for submission in self.queue:
            submission.sent = False

    def apply(self, outcome: Outcome) -> Submission | None:
        """Apply an outcome; returns the submission when this completed it. Unknown ones are ignored."""
        submission = self.accepted.get(outcome.seq)
        if submission is None:
            # An outcome may overtake ACCEPTED: both are sent at the end of a turn, from different queues.
            submission = next((s for s in self.queue if s.seq == outcome.seq), None)
            if submission is None:
                return None
        was_completed = submission.remaining <= 0
        submission.apply(outcome)
        if was_completed or submission.remaining > 0:
            return None
        self.accepted.pop(outcome.seq, None)
        return submission

    def flush_seq_due(self) -> int | None:
        """The seq to name in a FLUSH now: everything up to it was sent and some of it has no outcome yet."""
        if self.flush_to_seq <= self.flush_sent_seq or self.held:
            return None
        if self.sent_count < len(self.queue) and self.queue[self.sent_count].seq <= self.flush_to_seq:
            return None
        return self.flush_to_seq

    def undecided(self) -> list[Submission]:
        return [*self.accepted.values(), *self.queue]
