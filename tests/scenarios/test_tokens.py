"""OAUTHBEARER against a real Kafka that proves each token: SE-05."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from client_stub import errors
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.steady_load import SteadyClient
from sidecar.tools.testing.token_server import Fault, TokenServer
from sidecar.tools.testing.waiting import wait_until

from .harness import Sender, accounts_balance
from .secure import (
    CLIENT_SECRET,
    USUAL_BACKOFF,
    Costs,
    new_topic,
    seconds_since,
    sessions_are_renewed,
    settings_for,
)
from .test_real_acls import balance

pytestmark = [pytest.mark.process, pytest.mark.kafka]

WAIT_MS = 5_000
TOKEN_LIVES_S = 6.0
LOAD_S = 10.0


@pytest.fixture
def issuer(tokens: TokenServer) -> Iterator[TokenServer]:
    """The token server, without a fault before and after."""
    yield tokens
    tokens.fault, tokens.lifetime_s = None, 3600.0


def oidc(kafka: KafkaCluster, tokens: TokenServer) -> dict[str, object]:
    return {
        **settings_for(kafka, "TOKENS", "OAUTHBEARER"),
        **USUAL_BACKOFF,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "alice",
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        "sasl.oauthbearer.token.endpoint.url": tokens.token_url,
    }


SHORT_LIVED = {
    "sasl.login.refresh.min.period.seconds": 1,
    "sasl.login.refresh.buffer.seconds": 1,
}


def tokens_are_renewed(
    kafka: KafkaCluster, issuer: TokenServer, client: SteadyClient, connections_max: int = 2
) -> None:
    """SE-05: a load of 10 s with tokens of 6 s over sessions of 4 s: renewed ahead of their end, on one connection."""
    wait_until(lambda: len(client.outcomes) > 100, "the first records")
    asked = len(issuer.requests)
    sessions_are_renewed(kafka, kafka.relay("TOKENS"), client, LOAD_S, connections_max)
    assert 2 <= len(issuer.requests) - asked <= LOAD_S


def test_se_05_short_lived_tokens(
    secure_kafka: KafkaCluster, start_daemon: StartDaemon, issuer: TokenServer
) -> None:
    """SE-05: tokens of 6 s over 10 s at 500 records/s, with two workers. They are fetched by the controller alone,
    ahead of their end; nothing is lost or failed, with hardly a new connection."""
    kafka, topic = secure_kafka, new_topic(secure_kafka, partitions=2)
    issuer.lifetime_s = TOKEN_LIVES_S
    settings = oidc(kafka, issuer) | SHORT_LIVED | {"daemon.workers": 2}
    daemon = start_daemon(kafka.servers("TOKENS"), settings=settings)
    client = SteadyClient(daemon.run_dir, topic, "steady", burst=5, pause_s=0.01)
    tokens_are_renewed(kafka, issuer, client)
    accounts_balance(daemon)


NO_TOKEN = SHORT_LIVED | {
    "max.block.ms": WAIT_MS,
    "request.timeout.ms": 2_000,
    "delivery.timeout.ms": WAIT_MS,
}


def no_good_token(
    kafka: KafkaCluster,
    issuer: TokenServer,
    sender: Sender,
    check: Callable[[], None] = lambda: None,
    mended_s: float = 30.0,
) -> errors.SidecarError:
    """SE-05: the record fails within 10 s, nothing is delivered, the endpoint is not stormed; once that is repaired,
    the same client delivers. ``check`` is called before the repair. Returns the record's error."""
    asked, began_s = len(issuer.requests), time.monotonic()
    error = sender.send().exception(20)
    assert error is not None
    assert CLIENT_SECRET not in str(error)
    assert seconds_since(began_s) < 10
    assert len(issuer.requests) - asked <= 30
    check()
    issuer.fault = None
    wait_until(
        lambda: sender.send().exception(20) is None,
        "a record after the endpoint was mended",
        timeout_s=mended_s,
    )
    balance(kafka, sender)
    return error


@pytest.mark.parametrize("fault", [Fault.EXPIRED, Fault.DOWN])
def test_se_05_no_good_token(
    secure_kafka: KafkaCluster, start_daemon: StartDaemon, issuer: TokenServer, fault: Fault
) -> None:
    """SE-05: an endpoint that is down, or gives expired tokens: records fail by that reason within
    10 s, nothing is delivered, the endpoint is not stormed; mended, the same daemon delivers."""
    words = {
        Fault.EXPIRED: "expired",
        Fault.DOWN: issuer.token_url,
    }
    kafka = secure_kafka
    issuer.fault = fault
    settings = oidc(kafka, issuer) | NO_TOKEN
    daemon = start_daemon(kafka.servers("TOKENS"), settings=settings, wait=False)
    daemon.wait_published()
    costs = Costs(kafka.relay("TOKENS"), daemon)
    with Sender(daemon, new_topic(kafka)) as sender:
        error = no_good_token(kafka, issuer, sender, costs.check)
    assert isinstance(error, errors.SidecarError)
    assert words[fault] in str(error), error
    accounts_balance(daemon)
