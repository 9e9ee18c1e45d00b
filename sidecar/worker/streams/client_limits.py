"""ClientLimits: applies the rules for clients: allowed topics by stream, and rates by name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import LocalCode
from sidecar.shm.rate_words import find_clock
from sidecar.worker.streams.rate_limit import RateLimit
from sidecar.worker.streams.refusal import Refusal

if TYPE_CHECKING:
    from sidecar.config.client_rules import ClientRules
    from sidecar.shm.segment import Segment
    from sidecar.shm.slots import Counters
    from sidecar.worker.streams.session import ClientSession, StreamState

DISCARD_TEXT: Final = "The record was discarded: {} (over.limit = discard)."


class ClientLimits:
    """Applies client rules. Belongs to the worker's loop. Without a rule a session costs nothing: its rate and
    refusals are None.
    """

    def __init__(
        self,
        rules: ClientRules,
        *,
        segment: Segment,
        workers: int,
        counters: Counters,
    ) -> None:
        self.rules = rules
        self._segment = segment
        self._workers = workers
        self._counters = counters
        self._rates: dict[str, RateLimit | None] = {}

    def use(self, rules: ClientRules) -> None:
        """Use new rules for later calls. :meth:`apply` brings them to sessions that exist."""
        self.rules = rules
        self._rates.clear()

    def apply(self, session: ClientSession) -> None:
        """Give a session its rate, and each of its streams its refusal, by the current rules."""
        session.rate = self._rate_of(session.name)
        for stream in session.streams.values():
            stream.refusal = self.refusal_of(session, stream.topic_queue.topic)
            if stream.refusal is None:
                stream.topic_queue.is_wanted = True

    def refusal_of(self, session: ClientSession, topic: str) -> Refusal | None:
        """Why the client's records for this topic fail at once; None if they are accepted."""
        rule = self.rules.of(session.name)
        text = None if rule is None else rule.topic_refusal(topic)
        return None if text is None else Refusal(LocalCode.TOPIC_UNAUTHORIZED, text)

    def discard(self, stream: StreamState, count: int, why: str) -> Refusal | None:
        """Discard records over the limit, if the client's rule says so, and count them. None: the client waits
        instead. Log and status show them with all failed records.
        """
        rule = self.rules.of(stream.session.name)
        if rule is None or not rule.discards:
            return None
        self._counters.inc("records_discarded_total", count)
        return Refusal(LocalCode.QUOTA_EXCEEDED, DISCARD_TEXT.format(why))

    def _rate_of(self, name: str) -> RateLimit | None:
        """The rate limit that all clients of that name share. Its clocks are shared by all workers."""
        rule = self.rules.of(name)
        if rule is None:
            return None  # keep nothing for arbitrary names
        if name not in self._rates:
            self._rates[name] = RateLimit.of_client(
                name,
                rate_bytes=rule.bytes_per_second,
                rate_records=rule.records_per_second,
                workers=self._workers,
                find_clock=partial(find_clock, self._segment),
            )
        return self._rates[name]
