"""ClusterLinks: the links of one process to the brokers, by node id (``second_of`` it for a second one).

Says when a broker may be connected to, closes what is idle, overdue or gone from the cluster, and tells its
owner of every link that becomes usable or is lost. One per process (worker, controller).
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING

from sidecar.common.clock import MonotonicClock
from sidecar.common.condition import SILENT_MS
from sidecar.common.model import Node, broker_of
from sidecar.net.broker_link import BrokerLink
from sidecar.net.connector import SocketBuffers
from sidecar.net.link_security import LinkSecurity
from sidecar.protocol.connection_states import ConnectionConfig, ConnectionStates

if TYPE_CHECKING:
    from sidecar.net.authentication import Authenticator

log = logging.getLogger(__name__)

TIMER_MS_MIN = 5.0
"""Deadlines closer together than this are looked at in one go."""

SECOND_MAX_IDLE_MS = 30_000.0
"""A broker's second connection is used in bursts. Between them it is closed before a firewall on the way forgets it,
which nobody would notice before request.timeout.ms; nothing waits for it to be opened again."""

OnState = Callable[[int, bool, str | None], None]
OnResponse = Callable[[BrokerLink, int, bytes, float], None]


def _ignore_response(link: BrokerLink, correlation_id: int, body: bytes, now_ms: float) -> None:
    raise AssertionError(f"{link} delivered answer {correlation_id} that nobody awaits")


def _ignore_state(node_id: int, connected: bool, error: str | None) -> None:
    return


class ClusterLinks:
    """At most one link per node id. Belongs to the loop's thread.

    ``on_state(node_id, connected, error)``: True when a link has become ready; False when a link is lost
    or an attempt failed, with the sentence why (None when closed by us in good order). Everything in
    flight on that link is lost then. ``on_response(link, correlation_id, body, now_ms)``: answers to
    ``BrokerLink.send_buffers``. ``says_first_refusal``: log a refused login also when no broker is connected.
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
        says_first_refusal: bool = False,
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
        self._has_throttled = False
        """Any link, ever: until then nobody need look whether one is throttled."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = inf
        self._is_closed = False
        self._says_first_refusal = says_first_refusal
        self._said: set[int] = set()
        """Brokers of which the log has why they cannot be connected to."""
        self._authenticator = authenticator
        if authenticator is not None:
            authenticator.on_change(self._credentials_changed)

    def report_to(self, *, on_state: OnState, on_response: OnResponse) -> None:
        """Give an owner that was made after the links its events, from now on."""
        self._on_state = on_state
        self._on_response = on_response

    def use(self, config: ConnectionConfig) -> None:
        """Use these settings for every connection that is opened from now on; open ones stay as they are."""
        self._config = config
        self._states.use(config)

    # Asking for a link

    def ready(self, node: Node) -> BrokerLink | None:
        """The link to ``node`` if it can take a request now; else None, and a connect is started if allowed.

        None as well while the broker throttles us (rule S5). ``on_state`` tells when to ask again after a
        connect; ``next_attempt_delay_ms`` when a backoff or a throttle ends.
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
        """The ready link to that node, throttled or not; never starts anything."""
        link = self._links.get(node_id)
        return link if link is not None and link.is_ready else None

    def stalled_since_ms(self, node_id: int) -> float | None:
        """Since when the kernel has taken no byte of those that wait; None: none wait, or there is no ready link."""
        link = self.link(node_id)
        return None if link is None else link.stalled_since_ms

    def is_ready(self, node_id: int) -> bool:
        """Whether a request could be sent to that node now; never starts anything."""
        link = self._links.get(node_id)
        if link is None or not link.is_ready:
            return False
        return not self._has_throttled or not self._states.is_throttled(node_id, self._clock.now_ms())

    def next_attempt_delay_ms(self, node_id: int, now_ms: float) -> float:
        """When to call ``ready`` again for this node: what is left of its backoff or throttle, 0 when it
        can be used or connected now, ``inf`` while connecting (``on_state`` will tell)."""
        return self._states.delay_ms(node_id, now_ms)

    @property
    def connection_count(self) -> int:
        """Links that are ready."""
        return sum(link.is_ready for link in self._links.values())

    @property
    def ready_links(self) -> list[BrokerLink]:
        return [link for link in self._links.values() if link.is_ready]

    # Notifying the links

    def throttle(self, node_id: int, throttle_ms: float) -> None:
        """Mute that link for this long (throttle_time_ms of a response)."""
        if throttle_ms > 0:
            self._has_throttled = True
            self._states.throttle(node_id, self._clock.now_ms() + throttle_ms)

    def update_nodes(self, nodes: Iterable[Node]) -> None:
        """The brokers there are now: links to brokers that left, or moved to another address, are closed."""
        known = {node.id: node for node in nodes}
        for node_id, link in list(self._links.items()):
            node = known.get(broker_of(node_id))
            # A bootstrap address (negative id) is not a broker of the list; its user closes it.
            if node_id >= 0 and (node is None or node[1:3] != link.node[1:3]):
                link.close(
                    f"{link.node} is no longer part of the cluster." if node is None else "It has moved."
                )
                self._states.forget(node_id)

    def close(self, node_id: int, reason: str | None = None) -> bool:
        """Close that link now, in order as ``BrokerLink.close`` says; False when there is none. With a reason the
        next connect backs off."""
        link = self._links.get(node_id)
        if link is None:
            return False
        link.close(reason)
        return True

    def close_all(self) -> None:
        """Close every link; none is opened after this."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for link in list(self._links.values()):
            link.close(None)

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
        self._said.discard(link.node.id)
        self._schedule(link.last_used_ms + self._max_idle_ms(link.node.id))
        self._on_state(link.node.id, True, None)

    def _link_closed(self, link: BrokerLink, error: str | None) -> None:
        node_id = link.node.id
        if self._links.get(node_id) is link:
            del self._links[node_id]
        if error is None:
            self._states.closed(node_id)
        else:
            self._states.disconnected(node_id, self._clock.now_ms(), error, is_refused=link.is_refused)
            log.debug("Link to %s lost: %s", link.node, error)
            if link.has_tls_failed or link.is_refused:
                self._say_refused(link, error)
        self._on_state(node_id, False, error)

    def _say_refused(self, link: BrokerLink, error: str) -> None:
        """One broker alone is news, until it is connected. When no broker answers, the controller says so once."""
        if link.node.id in self._said:
            return
        is_first = self._says_first_refusal and link.is_refused and not self._said
        if is_first or any(each.is_ready for each in self._links.values()):
            self._said.add(link.node.id)
            log.warning("%s", error)

    def _credentials_changed(self) -> None:
        """Sessions that want a newer token may be renewed, and refused logins need not wait any longer."""
        self._states.login_changed()
        if self._timer is not None:
            self._timer.cancel()
        self._check()

    def last_error(self, node_id: int) -> str | None:
        """Why the node's last link was lost, or could not be made; None while it is ready."""
        return self._states.last_error(node_id)

    def has_refused(self, node_id: int) -> bool:
        """Whether the last attempt to connect to it failed."""
        return self._states.has_refused(node_id)

    def slow_step(self, node_id: int, now_ms: float) -> str:
        """The wait of an attempt to connect that has lasted so long that the broker cannot be used; else empty."""
        link = self._links.get(node_id)
        if link is None or link.is_ready or now_ms - link.last_used_ms < SILENT_MS:
            return ""
        return link.step

    def is_refused(self, node_id: int) -> bool:
        """Whether the node refused our login when it was last tried."""
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
        """Close what is overdue or idle; set the timer for what comes next."""
        self._timer = None
        self._timer_at_ms = inf
        now_ms = self._clock.now_ms()
        for link in list(self._links.values()):
            if not link.is_ready:
                continue
            link.check_deadlines(now_ms)
            if link.is_closed:
                continue
            deadline_ms = link.next_deadline_ms()
            if deadline_ms is not None:
                self._schedule(deadline_ms)
            max_idle_ms = self._max_idle_ms(link.node.id)
            # What is waiting for an answer is in use, however long it takes.
            idle_until_ms = link.last_used_ms + max_idle_ms
            if link.in_flight_count or link.unsent_count:
                self._schedule(now_ms + max_idle_ms)
            elif idle_until_ms <= now_ms:
                link.close(None)
            else:
                self._schedule(idle_until_ms)
