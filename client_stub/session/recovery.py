"""Recovery: what is sent again to a worker, and which streams begin anew, after HOLD, RESEND, DRAINING, WELCOME and a
refusal. Sans-IO, io thread only.

Three outcomes of a stream, by what the worker says that it has of it:

- *re-send*: it has everything up to a position; the stream goes back to there and sends from there again.
- *resume*: the same for all streams, at a worker that has sent WELCOME.
- *restart*: it has less than an earlier one had accepted, or nothing at all. What it may have received fails as
  possibly persisted; what was never sent continues in a new stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from client_stub.contract.wire import Kind
from client_stub.errors import DeliveryFailed
from client_stub.outbox.submission import Submission, lost_error
from client_stub.outbox.wait_reasons import topics_text
from client_stub.session.ack_window import AckWindow
from client_stub.session.effects import ErrorOf
from client_stub.session.refusals import Lasts, lasts
from client_stub.session.streams import NOT_ADMITTED, Streams, topic_error
from client_stub.system.log import log


class Recovery:
    """The recovery of one session's streams."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def resend(self, number: int, from_seq: int, *, held: bool, reason: str) -> None:
        """Go back to ``from_seq``, to send from there once the stream is not held."""
        streams = self._streams
        window = streams.windows.get(number)
        if window is None or streams.admission.is_waiting(window):
            return
        streams.rewind(window, from_seq)
        window.is_leaving = False
        window.held = held
        if held:
            streams.hold_reasons[window.topic] = reason
        else:
            streams.hold_reasons.pop(window.topic, None)
        streams.send_on(window)

    def last_positions(self, positions: Iterable[tuple[int, int]]) -> bool:
        """Handle a worker's last message: it will never take anything beyond these positions. Returns as
        ``Streams.accept``.

        Everything after them therefore counts as never sent, and survives a successor that does not know this client.
        """
        streams = self._streams
        is_more = streams.accept(streams.credit_bytes, positions)
        for window in streams.windows.values():
            streams.rewind(window, 0)
            window.not_taken()
        return is_more

    def resume(
        self, credit_bytes: int, positions: Mapping[int, tuple[int, bool]], limit: object, now_ms: float
    ) -> bool:
        """Continue at a worker that has sent WELCOME: stream → (its position there, whether it is held), and how many
        streams it takes. Returns as ``Streams.admit``.
        """
        streams = self._streams
        streams.credit_bytes = credit_bytes
        streams.accepted_bytes = streams.sent_bytes = 0
        self._resume_admission(positions, limit)
        lost: dict[str, tuple[int, int]] = {}
        for window in list(streams.windows.values()):  # some are restarted
            if streams.admission.is_waiting(window):
                continue
            position, window.held = positions.get(window.number, (0, False))
            window.is_leaving = False
            window.rewind(0)
            if not window.held:
                streams.hold_reasons.pop(window.topic, None)
            first = window.queue[0].seq if window.queue else window.next_seq
            if position < first - 1:
                # The worker's state is older than its last ACCEPTED, and those frames are gone here, so the stream
                # restarts.
                lost[window.topic] = position + 1, first - 1
                self._restart(window, _lost)
                continue
            streams.accept(credit_bytes, ((window.number, position),))
            streams.send_on(window)
        if lost:
            seqs = next(iter(lost.values()))
            log.error("The daemon has lost accepted submissions %d to %d of %s.", *seqs, topics_text(lost))
        return streams.admit(now_ms)

    def _resume_admission(self, positions: Mapping[int, tuple[int, bool]], limit: object) -> None:
        """Find which streams this worker has.

        Its streams that have no window ended here while no worker could be told, or the worker did not read it.
        """
        streams, admission = self._streams, self._streams.admission
        admission.limit = limit if isinstance(limit, int) and limit > 0 else inf
        streams.orders.clear()
        if admission.limit < inf:
            for number, (position, _) in positions.items():
                if number not in streams.windows:
                    streams.orders.append([Kind.END_STREAM, number, position])
        admission.retry_refused(inf)
        free = admission.limit - sum(number in positions for number in admission.admitted)
        for number, window in list(admission.admitted.items()):
            if number not in positions and not window.last_seq:
                free -= 1
                if free < 0:  # opened before it was known how many there may be
                    window.rewind(0)
                    admission.drop(window)
                    admission.enqueue(window)
                    streams.hold_reasons[window.topic] = NOT_ADMITTED

    def refuse(self, number: int, code: str, text: str, now_ms: float) -> bool:
        """Handle the refusal of one stream. Returns whether it asks again."""
        streams = self._streams
        window = streams.windows.get(number)
        if window is None:
            return False
        passes = lasts(code) is Lasts.A_MOMENT and not (
            code == "TOO_MANY_STREAMS" and streams.admission.limit == inf  # a daemon that ends no streams
        )
        streams.rewind(window, 0)
        if passes and not window.last_seq:  # a worker that has taken nothing of it does not keep it
            window.not_taken()
            streams.admission.refuse(window, code, now_ms)
            streams.hold_reasons[window.topic] = text
            return True
        text = f"The daemon refused topic {window.topic}: {text}"
        # Before its records fail: whose record fails of it must see that the topic is refused.
        streams.refused_topics.append((window.topic, topic_error(code, text)))
        streams.fail(window, lambda sent: topic_error(code, text))
        return False

    def restart_all(self, error_of: ErrorOf, older_than_ms: float) -> None:
        """The daemon no longer knows this client: restart all streams."""
        for window in list(self._streams.windows.values()):
            self._restart(window, error_of, older_than_ms)

    def _restart(self, window: AckWindow, error_of: ErrorOf, older_than_ms: float = -inf) -> None:
        """The daemon no longer knows this stream: fail all that it may have received as possibly persisted.

        Submissions that were never sent continue in a new stream, unless they have waited since before
        ``older_than_ms``. It waits until ``Streams.admit``.
        """
        kept: list[Submission] = []
        for submission in window.undecided():
            if submission.sent or submission.queued_ms < older_than_ms:
                submission.fail(error_of(submission.sent))
                self._streams.finish(submission)
            else:
                kept.append(submission)
        self._streams.end(window, kept)


def _lost(sent: bool) -> DeliveryFailed:
    return lost_error(
        "The daemon lost records it had accepted; they may or may not be in the log.", maybe=sent
    )
