"""ClusterLinks: the links of one process to the brokers, by node id (``second_of`` it for a second link).

It decides when a broker may be connected to, and closes links that are idle, overdue, or of brokers that left the
cluster. Its owner is informed of every link that becomes usable or is lost. One per process (worker, controller).
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from math import inf
from typing import TYPE_CHECKING

from sidecar.common.clock import MonotonicClock
from sidecar.common.condition import SILENT_MS
from sidecar.common.model import Node, broker_of
from sidecar.net.kafka.broker_link import BrokerLink
from sidecar.net.kafka.connector import SocketBuffers
from sidecar.net.kafka.link_security import LinkSecurity
from sidecar.protocol.connection_states import ConnectionConfig, ConnectionStates

if TYPE_CHECKING:
    from sidecar.net.kafka.authentication import Authenticator

log = logging.getLogger(__name__)

TIMER_MS_MIN = 5.0
"""Deadlines closer together than this many ms are handled at once."""

SECOND_MAX_IDLE_MS = 30_000.0
"""Idle time in ms after which a broker's second connection is closed. It is used in bursts. A firewall may forget it
in between, which would be noticed only after request.timeout.ms. Nothing waits for it to be opened again.
"""

OnState = Callable[[int, bool, str | None], None]
OnResponse = Callable[[BrokerLink, int, bytes, float], None]


def _ignore_response(link: BrokerLink, correlation_id: int, body: bytes, now_ms: float) -> None:
    raise AssertionError(f"{link} delivered answer {correlation_id} that nobody awaits")


def _ignore_state(node_id: int, connected: bool, error: str | None) -> None:
    return


class ClusterLinks:
    """At most one link per node id. Belongs to the loop's thread.

    ``on_state(node_id, connected, error)``: True when a link has become ready; False when a link was lost or an
    attempt failed, with a sentence that says why (None if it was closed normally here). All requests in flight on that
    link are lost then. ``on_response(link, correlation_id, body, now_ms)``: answers to ``BrokerLink.send_buffers``.
    ``logs_first_refusal``: log a refused login even if no broker is connected.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        client_id: str | None,
        config: ConnectionConfig,
        security: LinkSecurity,
        on_state: OnState = _ignore_state,
        on_response: OnResponse = _ignore_response,
        authenticator: Authenticator | None = None,
        logs_first_refusal: bool = False,
        clock: MonotonicClock | None = None,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._config = config
        self._client_id = client_id
        self._security = security
        self._on_state = on_state
        self._on_response = on_response
        self._clock = clock or MonotonicClock()
        self._states = ConnectionStates(self._config, random)
        self._links: dict[int, BrokerLink] = {}
        self.connected: dict[int, BrokerLink] = {}
        """Those that are ready, even if throttled. Others only read it."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = inf
        self._is_closed = False
        self._logs_first_refusal = logs_first_refusal
        self._logged: set[int] = set()
        """Brokers whose connection failure was logged."""
        self._authenticator = authenticator
        if authenticator is not None:
            authenticator.on_change(self._credentials_changed)

    def report_to(self, *, on_state: OnState, on_response: OnResponse) -> None:
        """Set the callbacks of an owner that was made after the links."""
        self._on_state = on_state
        self._on_response = on_response

    def use(self, config: ConnectionConfig) -> None:
        """Use these settings for every connection that is opened from now on; open ones stay as they are."""
        self._config = config
        self._states.use(config)

    # Asking for a link

    def ready(self, node: Node) -> BrokerLink | None:
        """The link to ``node`` if it can take a request now. Otherwise None, and a connect is started if allowed.

        Also None while the broker throttles this client (rule S5). ``on_state`` reports the end of a connect;
        ``next_attempt_delay_ms`` gives the end of a backoff or throttle.
        """
        now_ms = self._clock.now_ms()
        link = self._links.get(node.id)
        if link is not None and link.node[:3] != node[:3]:
            # The broker moved to another address under the same id.
            self._states.forget(node.id)
            link.close(f"{link.node} has a new address, {node.host}:{node.port}.")
            self._states.forget(node.id)
            link = None
        if link is not None:
            usable = link.is_ready and not self._states.is_throttled(node.id, now_ms)
            return link if usable else None
        if not self._is_closed and self._states.may_connect(node.id, now_ms):
            self._connect(node)
        return None

    def link(self, node_id: int) -> BrokerLink | None:
        """The ready link to that node, even if throttled. Never starts a connect."""
        return self.connected.get(node_id)

    def stalled_since_ms(self, node_id: int) -> float | None:
        """Monotonic ms since which the kernel has taken no byte of the link's queue; None if that is empty, or the
        link is not ready.
        """
        link = self.link(node_id)
        return None if link is None else link.stalled_since_ms

    def is_ready(self, node_id: int) -> bool:
        """Whether a request could be sent to that node now. Never starts a connect."""
        return node_id in self.connected and not self._states.is_throttled(node_id, self._clock.now_ms())

    def next_attempt_delay_ms(self, node_id: int, now_ms: float) -> float:
        """Time in ms until ``ready`` should be called again for this node: the rest of its backoff or throttle, or 0
        if it can be used or connected now. ``inf`` while it is connecting; ``on_state`` will report the end of that.
        """
        return self._states.delay_ms(node_id, now_ms)

    @property
    def connection_count(self) -> int:
        """Number of ready links."""
        return len(self.connected)

    @property
    def ready_links(self) -> list[BrokerLink]:
        return list(self.connected.values())

    @property
    def transaction_version(self) -> int:
        """The finalised ``transaction.version``, as the broker with the latest features told it; 0 without a link."""
        latest = max(self.connected.values(), key=lambda link: link.offered.features_epoch, default=None)
        return 0 if latest is None else latest.offered.transaction_version

    # Notifying the links

    def throttle(self, node_id: int, throttle_ms: float) -> None:
        """Send nothing on that link for this many ms (throttle_time_ms of a response)."""
        if throttle_ms > 0:
            self._states.throttle(node_id, self._clock.now_ms() + throttle_ms)

    def update_nodes(self, nodes: Iterable[Node]) -> None:
        """Follow a new list of brokers: close links to brokers that left or have a new address."""
        known = {node.id: node for node in nodes}
        self._security.keep({(node.host, node.port) for node in known.values()})
        with ExitStack() as ends:  # runs all of them, even if one fails
            for node_id, link in self._links.items():
                node = known.get(broker_of(node_id))
                # A bootstrap address (negative id) is not in the list of brokers; its user closes it.
                if node_id >= 0 and (node is None or node[1:3] != link.node[1:3]):
                    ends.callback(self._states.forget, node_id)
                    left = f"{link.node} is no longer part of the cluster."
                    ends.callback(link.close, left if node is None else "It has moved.")

    def close(self, node_id: int, reason: str | None = None) -> bool:
        """Close that link now, as ``BrokerLink.close``. False if there is none. With a reason, the next connect backs
        off.
        """
        link = self._links.get(node_id)
        if link is None:
            return False
        link.close(reason)
        return True

    def close_all(self) -> None:
        """Close all links. None is opened after this."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        with ExitStack() as ends:  # runs all of them, even if one fails
            for link in self._links.values():
                ends.callback(link.close, None)

    # Inside

    def _connect(self, node: Node) -> None:
        timeout_ms = self._states.connecting(node.id)
        link = BrokerLink(
            self._loop,
            node,
            client_id=self._client_id,
            clock=self._clock,
            setup_timeout_ms=timeout_ms,
            request_timeout_ms=self._config.request_timeout_ms,
            security=self._security,
            buffers=SocketBuffers(self._config.send_buffer_bytes, self._config.receive_buffer_bytes),
            authenticator=self._authenticator,
            on_ready=self._link_ready,
            on_response=self._on_response,
            on_closed=self._link_closed,
            on_deadline=self._schedule,
        )
        self._links[node.id] = link
        link.connect()

    def _link_ready(self, link: BrokerLink) -> None:
        self._states.ready(link.node.id)
        self.connected[link.node.id] = link
        self._logged.discard(link.node.id)
        self._schedule(link.last_used_ms + self._max_idle_ms(link.node.id))
        self._on_state(link.node.id, True, None)

    def _link_closed(self, link: BrokerLink, error: str | None) -> None:
        node_id = link.node.id
        if self._links.get(node_id) is link:
            del self._links[node_id]
            self.connected.pop(node_id, None)
        if error is None:
            self._states.closed(node_id)
        else:
            self._states.disconnected(node_id, self._clock.now_ms(), error, is_refused=link.is_refused)
            log.debug("Link to %s lost: %s", link.node, error)
            if link.has_tls_failed or link.is_refused:
                self._log_refused(link, error)
        self._on_state(node_id, False, error)

    def _log_refused(self, link: BrokerLink, error: str) -> None:
        """Log why one broker cannot be connected to, once until it is connected. If no broker answers, the controller
        logs that.
        """
        if link.node.id in self._logged:
            return
        is_first = self._logs_first_refusal and link.is_refused and not self._logged
        if is_first or self.connected:
            self._logged.add(link.node.id)
            log.warning("%s", error)

    def _credentials_changed(self) -> None:
        """Use new credentials: renew sessions that wait for them, and end the backoff of refused logins."""
        self._states.login_changed()
        # Not at once: the caller may be the task that fetches tokens, and a link's failure must not end that.
        self._schedule(self._clock.now_ms())

    def last_error(self, node_id: int) -> str | None:
        """Why the node's last link was lost or could not be made; None while it is ready."""
        return self._states.last_error(node_id)

    def has_refused(self, node_id: int) -> bool:
        """Whether the last attempt to connect to the node failed."""
        return self._states.has_refused(node_id)

    def slow_step(self, node_id: int, now_ms: float) -> str:
        """Phrase for the step at which connecting to the node has hung for so long that it cannot be used; else ""."""
        link = self._links.get(node_id)
        if link is None or link.is_ready or now_ms - link.last_used_ms < SILENT_MS:
            return ""
        return link.step

    def is_refused(self, node_id: int) -> bool:
        """Whether the node refused the login at the last attempt."""
        return self._states.is_refused(node_id)

    def _max_idle_ms(self, node_id: int) -> float:
        most_ms = self._config.connections_max_idle_ms
        most_ms = most_ms if most_ms >= 0 else inf
        return most_ms if broker_of(node_id) == node_id else min(most_ms, SECOND_MAX_IDLE_MS)

    def _schedule(self, at_ms: float) -> None:
        if self._is_closed or at_ms >= self._timer_at_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = at_ms
        delay_ms = max(TIMER_MS_MIN, at_ms - self._clock.now_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._check)

    def _check(self) -> None:
        """Close overdue and idle links, and set the timer for the next check."""
        self._timer = None
        self._timer_at_ms = inf
        now_ms = self._clock.now_ms()
        with ExitStack() as checks:  # runs all of them, even if one fails
            for link in self.ready_links:
                checks.callback(self._check_link, link, now_ms)

    def _check_link(self, link: BrokerLink, now_ms: float) -> None:
        try:
            link.check_deadlines(now_ms)
        except Exception as error:
            link.close(f"Watching {link.node} failed: {type(error).__name__}: {error}")
            raise
        if link.is_closed:
            return
        deadline_ms = link.next_deadline_ms()
        if deadline_ms is not None:
            self._schedule(deadline_ms)
        max_idle_ms = self._max_idle_ms(link.node.id)
        # A link that waits for an answer is in use, however long that takes.
        idle_until_ms = link.last_used_ms + max_idle_ms
        if link.in_flight_count or link.unsent_count:
            self._schedule(now_ms + max_idle_ms)
        elif idle_until_ms <= now_ms:
            link.close(None)
        else:
            self._schedule(idle_until_ms)
