"""AckWindow: one stream's submissions from the caller to their outcomes. Sans-IO, io thread only.

``Session`` moves submissions through it; here are the steps back, which ``StreamRecovery`` takes.

::

    queue (not accepted, in order of seq)                 accepted (by seq, waiting for outcomes)
    [ sent | sent | unsent | unsent ... ]  --ACCEPTED-->  { seq: submission }  --outcomes-->  gone
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from client_stub.outbox.submission import Submission


class AckWindow:
    """The window of one stream (client, topic). ``number`` identifies the stream on the wire; a client uses each
    number once.
    """

    __slots__ = (
        "accepted",
        "admission_ms",
        "flush_sent_seq",
        "flush_to_seq",
        "has_turn",
        "held",
        "is_leaving",
        "next_seq",
        "number",
        "queue",
        "refusal",
        "refusals",
        "sent_count",
        "topic",
        "used_ms",
    )

    def __init__(self, number: int, topic: str) -> None:
        self.number = number
        self.topic = topic
        self.next_seq = 1
        self.queue: deque[Submission] = deque()
        self.sent_count = 0
        """How many submissions at the head of ``queue`` were sent to the present worker but not accepted yet."""
        self.accepted: dict[int, Submission] = {}
        self.held = False
        """Whether it may not send: the worker holds it, or it waits to be admitted (``StreamAdmission``)."""
        self.is_leaving = False
        """Whether it sends nothing more, so that a topic that waits can take its place."""
        self.admission_ms = 0.0
        """When it was admitted, or when it may ask again after a refusal."""
        self.refusal = ""
        """The code with which the worker refused to open it the last time."""
        self.refusals = 0
        """How often it did."""
        self.used_ms = 0.0
        """When a submission was last added."""
        self.has_turn = False
        """Whether it is among the windows that take turns to send."""
        self.flush_to_seq = 0
        self.flush_sent_seq = 0

    def drop_next(self) -> Submission:
        """Remove the next submission to send.

        The present worker has received neither this one nor any after it, so the later ones move up by one seq and the
        stream has no gap.
        """
        submission = self.queue[self.sent_count]
        del self.queue[self.sent_count]
        for later in islice(self.queue, self.sent_count, None):
            later.seq -= 1
        self.next_seq -= 1
        if self.flush_to_seq >= submission.seq:
            self.flush_to_seq -= 1
        return submission

    def rewind(self, from_seq: int) -> int:
        """Go back to ``from_seq``, so that it and all later ones are sent again. Returns the payload bytes that are no
        longer under way.
        """
        bytes_back = 0
        while self.sent_count and self.queue[self.sent_count - 1].seq >= from_seq:
            self.sent_count -= 1
            bytes_back += self.queue[self.sent_count].payload_bytes
        # A FLUSH that arrives before its records has no effect, so it is sent again after them.
        self.flush_sent_seq = min(self.flush_sent_seq, max(0, from_seq - 1))
        return bytes_back

    def not_taken(self) -> None:
        """Mark the submissions still in ``queue`` as not sent: the daemon has none of them and will never have them."""
        for submission in self.queue:
            submission.sent = False

    def flush_seq_due(self) -> int | None:
        """The seq to send in a FLUSH now; None for no FLUSH. Everything up to this seq was sent, and some of it has no
        outcome yet.
        """
        if self.flush_to_seq <= self.flush_sent_seq or self.held:
            return None
        if self.sent_count < len(self.queue) and self.queue[self.sent_count].seq <= self.flush_to_seq:
            return None
        return self.flush_to_seq

    @property
    def is_at_rest(self) -> bool:
        """Whether each record that the worker may have has its outcome, and nothing more is sent for now."""
        may_have_more = self.accepted or (self.queue and self.queue[0].sent)
        return not may_have_more and (self.is_leaving or not (self.queue or self.held))

    @property
    def repeats(self) -> bool:
        """Whether it went back: what it sends next was sent before, and the worker may take that yet."""
        return self.sent_count < len(self.queue) and self.queue[self.sent_count].sent

    @property
    def last_seq(self) -> int:
        """The seq before the first that was not accepted."""
        return self.queue[0].seq - 1 if self.queue else self.next_seq - 1

    def undecided(self) -> list[Submission]:
        return [*self.accepted.values(), *self.queue]
