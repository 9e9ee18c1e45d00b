"""The common part of the security scenarios: one real Kafka with every kind of listener, loads, and what they may
cost."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sidecar.tools.testing.certificates import LOCAL_HOSTS, CertificateAuthority
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_listeners import SCRAM, Listener
from sidecar.tools.testing.steady_load import SteadyClient, judge
from sidecar.tools.testing.tcp_relay import TcpRelay
from sidecar.tools.testing.token_server import TokenServer
from sidecar.tools.testing.waiting import wait_until

from .harness import FAST

USERS = {"alice": "alice's password", "bob": "bob's password"}
"""Alice may do everything, Bob nothing that he is not granted."""
CLIENT_SECRET = "the client's secret"
CONNECTIONS_MAX = 60
"""Within 10 s, whatever is wrong."""
LOG_LINES_MAX = 6
SESSION_MS = 4000
USUAL_BACKOFF = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1000}
"""Scenarios hurry (FAST), but not where connections are counted."""
_serial = itertools.count(1)


@contextmanager
def secure_cluster(tokens: TokenServer) -> Iterator[KafkaCluster]:
    authority = CertificateAuthority()
    passwords = {"mechanisms": ("PLAIN", *SCRAM), "users": USERS}
    expired = authority.issue("broker", hosts=LOCAL_HOSTS, begins_s=-7200, ends_s=-3600)
    early = authority.issue("broker", hosts=LOCAL_HOSTS, begins_s=3600, ends_s=7200)
    listeners = [
        Listener("SSL", relayed=True),
        Listener("SSL", "MUTUAL", client_auth="required", relayed=True),
        Listener("SSL", "OLD_TLS", tls=("TLSv1.2",)),
        Listener("SSL", "NEW_TLS", tls=("TLSv1.3",)),
        Listener("SSL", "ELSEWHERE", certificate=authority.issue("broker", hosts=("broker.example",))),
        Listener("SSL", "EXPIRED", certificate=expired, relayed=True),
        Listener("SSL", "EARLY", certificate=early),
        Listener("SASL_PLAINTEXT", relayed=True, **passwords),  # type: ignore[arg-type]
        Listener("SASL_SSL", relayed=True, **passwords),  # type: ignore[arg-type]
        Listener("SASL_PLAINTEXT", "SHORT", relayed=True, reauth_ms=SESSION_MS, **passwords),  # type: ignore[arg-type]
        Listener(
            "SASL_SSL",
            "TOKENS",
            mechanisms=("OAUTHBEARER",),
            jwks=tokens.jwks,
            reauth_ms=SESSION_MS,
            relayed=True,
        ),
    ]
    with KafkaCluster(
        light=True, listeners=listeners, authority=authority, acls=True, super_users=["alice"]
    ) as cluster:
        yield cluster


def new_topic(kafka: KafkaCluster, partitions: int = 1) -> str:
    name = f"secure-{next(_serial)}"
    kafka.create_topics({name: partitions})
    return name


def settings_for(
    kafka: KafkaCluster, listener: str, mechanism: str = "", user: str = ""
) -> dict[str, object]:
    """A daemon's, to come in by that listener."""
    return {**FAST, **kafka.client_settings(listener, mechanism, user)}


class Costs:
    """Costs of a lasting fault from now on: connections at a relay, and lines in the daemon's log."""

    def __init__(self, relay: TcpRelay, daemon: SidecarDaemon | None = None) -> None:
        self._relay = relay
        self._daemon = daemon
        self._connections = len(relay.accepted_s)
        self._lines = self._line_count()

    def _line_count(self) -> int:
        return 0 if self._daemon is None else sum(1 for _ in self._daemon.log_lines())

    def check(self) -> None:
        """In any 10 s not too many connections; in all not too many lines."""
        moments = self._relay.accepted_s[self._connections :]
        most = max((sum(1 for each in moments if 0 <= each - first < 10) for first in moments), default=0)
        assert most <= CONNECTIONS_MAX, f"{most} connections in 10 s"
        lines = self._line_count() - self._lines
        assert self._daemon is None or lines <= LOG_LINES_MAX, self._daemon.log_tail()

    @property
    def connections(self) -> int:
        return len(self._relay.accepted_s) - self._connections


def sessions_are_renewed(
    kafka: KafkaCluster, relay: TcpRelay, client: SteadyClient, load_s: float, connections_max: int = 2
) -> None:
    """SE-03: a load over sessions that end: nothing lost, doubled or failed, and hardly a new connection."""
    wait_until(lambda: len(client.outcomes) > 100, "the first records")
    before, began_s = len(relay.accepted_s), time.monotonic()
    wait_until(lambda: seconds_since(began_s) > load_s, "the load", timeout_s=2 * load_s)
    client.finish()
    assert len(relay.accepted_s) - before <= connections_max
    judge(kafka.bootstrap_servers, client.topic, [client])


def seconds_since(moment_s: float) -> float:
    return time.monotonic() - moment_s
