"""Rules of the fault kit: the requests that they match, and the actions on a request and its answer.

::

    rule = proxy.add(on(Api.PRODUCE, topic="orders", times=2).cut_answer())
    rule.wait(hits=2)

The same rules drive the fault proxy (in front of a real Kafka) and the fake broker. The first rule that matches a
request takes it; rules are tried in the order in which they were added.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from sidecar.tools.testing.kafka_frames import Request
from sidecar.tools.testing.waiting import ConditionTimeout

ALWAYS: Final = sys.maxsize
WAIT_S: Final = 20.0


class Rule:
    """Made by :func:`on`; actions are added by chaining, before the rule is given to a proxy or broker.

    Thread-safe once added. Actions on the request come first (``delay``, ``hold``, then one of ``cut`` and
    ``refuse``), then those on the answer (``answer_with``, ``edit_answer``, ``delay_answer``,
    ``hold_answer``, then one of ``drop_answer`` and ``cut_answer``).
    """

    def __init__(
        self,
        api: int | None,
        *,
        topic: str | None,
        partition: int | None,
        node: int | None,
        skip: int,
        times: int | None,
        where: Callable[[Request], bool] | None,
    ) -> None:
        self.api, self.topic, self.partition, self.node = api, topic, partition, node
        self._skip = skip
        self._times = times
        self._where = where
        self.delay_ms = 0.0
        self.holds = False
        self.cuts = False
        self.refusals: tuple[int, ...] = ()
        self.codes: tuple[int, ...] = ()
        self.text: str | None = None
        self.edit: Callable[[Any], Any] | None = None
        self.answer_delay_ms = 0.0
        self.holds_answer = False
        self.drops_answer = False
        self.cuts_answer = False
        self.gate = threading.Event()
        self._hits = 0
        self._removed = False
        self._changed = threading.Condition()

    # --- actions on the request ----------------------------------------------------------------------------

    def delay(self, ms: float) -> Rule:
        """Delay the request, and with it all later ones on the same connection."""
        self.delay_ms = ms
        return self

    def hold(self) -> Rule:
        """Hold the request, and all later ones on its connection, until :meth:`release`. It is then passed on even if
        the client has given up: the broker gets it late.
        """
        self.holds = True
        return self

    def cut(self) -> Rule:
        """Close the connection; the broker never sees the request."""
        self.cuts = True
        return self

    def refuse(self, *codes: int, text: str | None = None) -> Rule:
        """Answer with an error; the broker never sees the request. Several codes are used one per hit, with as many
        hits as codes unless ``times`` says otherwise (the last code is then repeated).
        """
        self.refusals, self.text = codes, text
        return self

    # --- actions on the answer -----------------------------------------------------------------------------

    def answer_with(self, *codes: int, text: str | None = None) -> Rule:
        """The broker carries out the request, but answers with these error codes."""
        self.codes, self.text = codes, text
        return self

    def edit_answer(self, edit: Callable[[Any], Any]) -> Rule:
        """Replace the answer: ``edit`` gets kio's entity of it and returns the one to send."""
        self.edit = edit
        return self

    def delay_answer(self, ms: float) -> Rule:
        self.answer_delay_ms = ms
        return self

    def hold_answer(self) -> Rule:
        """Hold the answer, and all later answers on the connection, until :meth:`release`."""
        self.holds_answer = True
        return self

    def drop_answer(self) -> Rule:
        """The answer never comes; the connection stays."""
        self.drops_answer = True
        return self

    def cut_answer(self) -> Rule:
        """Close the connection when the broker has answered: the request was carried out, but the client does not
        know.
        """
        self.cuts_answer = True
        return self

    # --- while it is in force ------------------------------------------------------------------------------

    @property
    def hits(self) -> int:
        """The number of requests that it has taken."""
        return self._hits

    def release(self) -> None:
        """Release everything it holds; it holds nothing from now on."""
        self.gate.set()

    def remove(self) -> None:
        """Release, and take no further request."""
        with self._changed:
            self._removed = True
        self.gate.set()

    def wait(self, hits: int = 1, *, timeout_s: float = WAIT_S) -> None:
        """Wait until it has taken that many requests. Raises ConditionTimeout (an AssertionError)."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._hits >= hits, timeout_s):
                raise ConditionTimeout(
                    f"after {timeout_s:g} s the rule has {self._hits} hits instead of {hits}"
                )

    def take(self, request: Request) -> int | None:
        """The number of the hit (from 0), or None when the request is not for this rule."""
        if self.api not in (None, request.api) or self.node not in (None, request.node):
            return None
        if not request.concerns(self.topic, self.partition):
            return None
        if self._where is not None and not self._where(request):
            return None
        with self._changed:
            if self._removed or self._hits >= self._limit:
                return None
            if self._skip > 0:
                self._skip -= 1
                return None
            self._hits += 1
            self._changed.notify_all()
            return self._hits - 1

    def means(self, topic: str | None, partition: int) -> bool:
        """Whether the rule applies to that partition."""
        return self.topic in (None, topic) and self.partition in (None, partition)

    @property
    def _limit(self) -> int:
        return self._times if self._times is not None else max(1, len(self.refusals), len(self.codes))

    def refusal(self, hit: int) -> int | None:
        return self.refusals[min(hit, len(self.refusals) - 1)] if self.refusals else None

    def code(self, hit: int) -> int | None:
        return self.codes[min(hit, len(self.codes) - 1)] if self.codes else None


def on(
    api: int | None = None,
    *,
    topic: str | None = None,
    partition: int | None = None,
    node: int | None = None,
    skip: int = 0,
    times: int | None = None,
    where: Callable[[Request], bool] | None = None,
) -> Rule:
    """A rule for requests of ``api`` (None: any), by default for one of them.

    ``topic`` and ``partition`` are those in a Produce request, and ``node`` is the broker's id. The first ``skip``
    matches pass untouched; ``times`` may be ALWAYS. ``where`` is called last and must be fast.
    """
    return Rule(api, topic=topic, partition=partition, node=node, skip=skip, times=times, where=where)


class RuleBook:
    """The rules in force and the log of requests (the newest ``log_max``; None: all). Thread-safe."""

    def __init__(self, log_max: int | None = None) -> None:
        self._rules: list[Rule] = []
        self._requests: deque[Request] = deque(maxlen=log_max)
        self._lock = threading.Lock()

    def add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Remove every rule and release everything they hold."""
        with self._lock:
            rules, self._rules = self._rules, []
        for rule in rules:
            rule.remove()

    def take(self, request: Request) -> tuple[Rule, int] | None:
        """Log the request and find its rule."""
        with self._lock:
            self._requests.append(request)
            rules = list(self._rules)
        for rule in rules:
            hit = rule.take(request)
            if hit is not None:
                return rule, hit
        return None

    def requests(self, api: int | None = None, topic: str | None = None) -> list[Request]:
        """Requests so far, oldest first."""
        with self._lock:
            found = list(self._requests)
        return [each for each in found if api in (None, each.api) and each.concerns(topic, None)]
