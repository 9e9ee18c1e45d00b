"""ConnectionStates: decides, per node, when a broker may be connected to (again). Sans-IO.

Reconnect backoff, setup timeout and throttling follow Kafka's client (Kafka: ClusterConnectionStates; KIP-144,
KIP-601, KIP-219).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sidecar.common.backoff import ExponentialBackoff

LOGIN_BACKOFF_MS_MIN: Final = 1_000.0
LOGIN_BACKOFF_GROWTH: Final = 4.0
"""After a refused login the next attempt waits reconnect.backoff.max.ms, at least a second; later ones up to four
times that.
"""


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """Times in milliseconds, by Kafka's names with underscores (made by ``config_of``)."""

    reconnect_backoff_ms: float
    reconnect_backoff_max_ms: float
    socket_connection_setup_timeout_ms: float
    socket_connection_setup_timeout_max_ms: float
    connections_max_idle_ms: float
    """Negative: idle connections are kept."""
    request_timeout_ms: float
    send_buffer_bytes: int
    """SO_SNDBUF; -1 for the system's default. The next one is SO_RCVBUF, likewise."""
    receive_buffer_bytes: int


class ConnectionStatus(Enum):
    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    READY = "ready"


@dataclass(slots=True)
class _NodeState:
    status: ConnectionStatus = ConnectionStatus.DISCONNECTED
    failures: int = 0
    setup_failures: int = 0
    may_connect_at_ms: float = 0.0
    throttled_until_ms: float = 0.0
    last_error: str | None = None
    refusals: int = 0
    """Number of logins refused in a row."""


class ConnectionStates:
    """Connection state by node id. Not thread-safe."""

    def __init__(self, config: ConnectionConfig, random: Callable[[], float]) -> None:
        self._nodes: dict[int, _NodeState] = {}
        self._random = random
        self.use(config)

    def use(self, config: ConnectionConfig) -> None:
        """Use changed settings for backoffs and setup timeouts from the next attempt on."""
        self._reconnect = ExponentialBackoff(
            config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, self._random
        )
        self._setup = ExponentialBackoff(
            config.socket_connection_setup_timeout_ms,
            config.socket_connection_setup_timeout_max_ms,
            self._random,
        )
        most_ms = max(config.reconnect_backoff_max_ms, LOGIN_BACKOFF_MS_MIN)
        self._login = ExponentialBackoff(most_ms, most_ms * LOGIN_BACKOFF_GROWTH, self._random)

    def last_error(self, node_id: int) -> str | None:
        """Why the last connection to the node ended or failed; None while it is ready."""
        state = self._nodes.get(node_id)
        return None if state is None else state.last_error

    def has_refused(self, node_id: int) -> bool:
        """Whether the last attempt to connect failed, by the network or by the login."""
        state = self._nodes.get(node_id)
        return state is not None and (state.setup_failures > 0 or state.refusals > 0)

    def is_refused(self, node_id: int) -> bool:
        """Whether the node refused the login at the last attempt."""
        state = self._nodes.get(node_id)
        return state is not None and state.refusals > 0

    def login_changed(self) -> None:
        """Allow attempts at once at nodes that refused the old credentials."""
        for state in self._nodes.values():
            if state.refusals and state.status is ConnectionStatus.DISCONNECTED:
                state.may_connect_at_ms = 0.0

    def may_connect(self, node_id: int, now_ms: float) -> bool:
        """Whether a new attempt is allowed: the node is disconnected and its backoff is over."""
        state = self._nodes.get(node_id)
        if state is None:
            return True
        return state.status is ConnectionStatus.DISCONNECTED and now_ms >= state.may_connect_at_ms

    def connecting(self, node_id: int) -> float:
        """Note an attempt. Returns its timeout in ms, from connect to negotiated, per address."""
        state = self._nodes.setdefault(node_id, _NodeState())
        state.status = ConnectionStatus.CONNECTING
        return self._setup.backoff_ms(state.setup_failures)

    def ready(self, node_id: int) -> None:
        """Note that the node is connected and negotiated. Earlier failures are forgotten."""
        state = self._nodes.setdefault(node_id, _NodeState())
        state.status = ConnectionStatus.READY
        state.failures = state.setup_failures = state.refusals = 0
        state.last_error = None

    def disconnected(
        self, node_id: int, now_ms: float, error: str | None, *, is_refused: bool = False
    ) -> None:
        """Note a failed attempt or a lost connection. The next attempt waits for its backoff.

        ``is_refused``: the login was refused. Trying again soon would not help, and costs the broker work.
        """
        state = self._nodes.setdefault(node_id, _NodeState())
        if is_refused:
            state.may_connect_at_ms = now_ms + self._login.backoff_ms(state.refusals)
            state.refusals += 1
        else:
            if state.status is ConnectionStatus.CONNECTING:
                state.setup_failures += 1
            state.may_connect_at_ms = now_ms + self._reconnect.backoff_ms(state.failures)
            state.failures += 1
            state.refusals = 0
        state.status = ConnectionStatus.DISCONNECTED
        state.throttled_until_ms = 0.0
        state.last_error = error

    def closed(self, node_id: int) -> None:
        """Note a normal close by this side (for instance when idle): no backoff follows."""
        state = self._nodes.setdefault(node_id, _NodeState())
        state.status = ConnectionStatus.DISCONNECTED
        state.throttled_until_ms = 0.0

    def throttle(self, node_id: int, until_ms: float) -> None:
        """Note a throttle until ``until_ms`` (throttle_time_ms, rule S5)."""
        state = self._nodes.setdefault(node_id, _NodeState())
        state.throttled_until_ms = max(state.throttled_until_ms, until_ms)

    def is_throttled(self, node_id: int, now_ms: float) -> bool:
        state = self._nodes.get(node_id)
        return state is not None and now_ms < state.throttled_until_ms

    def delay_ms(self, node_id: int, now_ms: float) -> float:
        """Time until it pays to look at this node again: the rest of a backoff or throttle, and 0 when it is ready or
        a connect is allowed. ``inf`` while connecting: an event will tell."""
        state = self._nodes.get(node_id)
        if state is None:
            return 0.0
        if state.status is ConnectionStatus.CONNECTING:
            return float("inf")
        until = (
            state.throttled_until_ms if state.status is ConnectionStatus.READY else state.may_connect_at_ms
        )
        return max(0.0, until - now_ms)

    def forget(self, node_id: int) -> None:
        """Forget a node that left the cluster or has a new address."""
        self._nodes.pop(node_id, None)
