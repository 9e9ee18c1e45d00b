"""Goal: every mechanism delivers on a real Kafka, and a session that ends is renewed under load (KIP-368)."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_stub import Producer
from client_stub.errors import AuthenticationFailed
from sidecar.tools.testing.daemon import StartDaemon, cli
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_listeners import SCRAM, Listener
from sidecar.tools.testing.steady_load import SteadyClient, judge
from sidecar.tools.testing.token_server import Fault, TokenServer
from sidecar.tools.testing.waiting import wait_until
from tests.scenarios.secure import sessions_are_renewed

pytestmark = [pytest.mark.kafka, pytest.mark.process]

ODD_PASSWORD = "p ä\u00a0\"',;=\\${x} #%"
ODD_USER = "b=o,b"
CLIENT_SECRET = "of the client"
USERS = {"alice": "alice's secret", "bob": ODD_PASSWORD}
MECHANISMS = ("PLAIN", *SCRAM)
REAUTH_MS = 4_000
LOAD_S = 15.0
_serial = itertools.count(1)


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenServer]:
    with TokenServer(clients={"alice": CLIENT_SECRET}) as server:
        yield server


@pytest.fixture(scope="module")
def kafka(tokens: TokenServer) -> Iterator[KafkaCluster]:
    listeners = [
        Listener("SASL_PLAINTEXT", mechanisms=MECHANISMS, users=USERS, relayed=True),
        Listener("SASL_PLAINTEXT", "ODD", mechanisms=SCRAM, users={ODD_USER: ODD_PASSWORD}),
        Listener(
            "SASL_PLAINTEXT",
            "SHORT",
            mechanisms=(*MECHANISMS, "OAUTHBEARER"),
            users=USERS,
            reauth_ms=REAUTH_MS,
            jwks=tokens.jwks,
            relayed=True,
        ),
    ]
    with KafkaCluster(light=True, listeners=listeners) as cluster:
        yield cluster


def new_topic(kafka: KafkaCluster, partitions: int = 2) -> str:
    topic = f"sasl-{next(_serial)}"
    kafka.create_topics({topic: partitions})
    return topic


def settings_for(kafka: KafkaCluster, listener: str, mechanism: str, user: str = "alice") -> dict[str, Any]:
    return {**kafka.client_settings(listener, mechanism, user), "daemon.workers": 1}


@pytest.mark.parametrize(
    ("listener", "mechanism", "user"),
    [
        ("SASL_PLAINTEXT", "PLAIN", "bob"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256", "bob"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-512", "alice"),
        ("ODD", "SCRAM-SHA-512", ODD_USER),
    ],
)
def test_each_mechanism_delivers(
    kafka: KafkaCluster, start_daemon: StartDaemon, listener: str, mechanism: str, user: str
) -> None:
    topic = new_topic(kafka)
    settings = settings_for(kafka, listener, mechanism, user)
    daemon = start_daemon(kafka.servers(listener), settings=settings)
    with Producer(run_dir=str(daemon.run_dir), client_name="sasl") as producer:
        assert producer.send(topic, value=b"x").result(timeout=30).offset == 0
    log = "".join(daemon.log_lines())
    assert settings["sasl.password"] not in log
    assert log.count("in clear text") == (1 if mechanism == "PLAIN" else 0)


def oauth_settings(kafka: KafkaCluster, tokens: TokenServer) -> dict[str, Any]:
    return {
        **settings_for(kafka, "SHORT", "OAUTHBEARER", ""),
        "sasl.oauthbearer.token.endpoint.url": tokens.token_url,
        "sasl.oauthbearer.client.id": "alice",
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
    }


@pytest.mark.parametrize(
    "mechanism",
    [
        "SCRAM-SHA-512",
        "OAUTHBEARER",
        pytest.param("PLAIN", marks=pytest.mark.long),
        pytest.param("SCRAM-SHA-256", marks=pytest.mark.long),
    ],
)
def test_sessions_are_renewed_under_load(
    kafka: KafkaCluster, tokens: TokenServer, start_daemon: StartDaemon, mechanism: str
) -> None:
    """15 s at 500 records/s over sessions of 4 s and tokens of 8 s: nothing lost, doubled or failed, no reconnect."""
    topic = new_topic(kafka)
    relay = kafka.relay("SHORT")
    tokens.lifetime_s = 8.0
    tokens.requests.clear()
    is_oauth = mechanism == "OAUTHBEARER"
    settings = oauth_settings(kafka, tokens) if is_oauth else settings_for(kafka, "SHORT", mechanism)
    daemon = start_daemon(kafka.servers("SHORT"), settings=settings | {"daemon.workers": 2})
    client = SteadyClient(daemon.run_dir, topic, "steady", burst=5, pause_s=0.01)
    sessions_are_renewed(kafka, relay, client, LOAD_S)
    # One token for controller and workers, each fetched when 80 to 85 % of the one before was over.
    assert len(tokens.requests) in ({3, 4} if is_oauth else {0})


# ---- what goes wrong


def test_records_that_wait_for_a_refused_login_fail_with_its_cause(
    kafka: KafkaCluster, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """The topic is known, its connections are cut, and the password file is wrong by then; later it is right again."""
    topic = new_topic(kafka)
    password = tmp_path / "password"
    password.write_text(USERS["alice"])
    settings = settings_for(kafka, "SASL_PLAINTEXT", "SCRAM-SHA-512") | {
        "sasl.password.file": password,
        "delivery.timeout.ms": 3_000,
        "request.timeout.ms": 1_000,
        "linger.ms": 0,
    }
    del settings["sasl.password"]
    daemon = start_daemon(kafka.servers("SASL_PLAINTEXT"), settings=settings)
    with Producer(run_dir=str(daemon.run_dir), client_name="rotated") as producer:
        producer.send(topic, value=b"x").result(timeout=30)
        password.write_text("wrong")
        kafka.relay("SASL_PLAINTEXT").cut()
        error = producer.send(topic, value=b"y").exception(timeout=30)
        assert isinstance(error, AuthenticationFailed), error
        assert 'SCRAM-SHA-512, user "alice"' in str(error)
        password.write_text("")  # half written: the password before stays
        wait_until(
            lambda: any("The secret that was read last stays" in line for line in daemon.log_lines()),
            "the warning",
        )
        password.write_text(USERS["alice"])
        wait_until(
            lambda: producer.send(topic, value=b"z").exception(timeout=30) is None, "the login", timeout_s=30
        )
    assert sum("login is refused" in line for line in daemon.log_lines()) <= 6


@pytest.mark.parametrize("fault", [Fault.UNAUTHORIZED, Fault.FORGED, Fault.HTML])
def test_a_token_that_is_not_to_be_had_or_not_taken(
    kafka: KafkaCluster, tokens: TokenServer, start_daemon: StartDaemon, fault: Fault
) -> None:
    """An authentication error within 10 s, nothing delivered and no tight loop; then tokens come again."""
    topic = new_topic(kafka)
    tokens.lifetime_s, tokens.fault = 3_600.0, fault
    tokens.requests.clear()
    before = len(kafka.relay("SHORT").accepted_s)
    try:
        settings = oauth_settings(kafka, tokens) | {
            "max.block.ms": 3_000,
            "sasl.login.retry.backoff.max.ms": 2_000,
        }
        daemon = start_daemon(kafka.servers("SHORT"), settings=settings, wait=False)
        daemon.wait_published()
        with Producer(run_dir=str(daemon.run_dir), client_name="token") as producer:
            error = producer.send(topic, value=b"x").exception(timeout=10)
            assert isinstance(error, AuthenticationFailed), error
            assert len(tokens.requests) <= 20
            assert len(kafka.relay("SHORT").accepted_s) - before <= 30
            tokens.fault = None
            # Also after a forged one, which lives for an hour as far as anybody but the broker knows.
            wait_until(
                lambda: producer.send(topic, value=b"y").exception(timeout=30) is None,
                "tokens again",
                timeout_s=40,
            )
    finally:
        tokens.fault = None
    assert CLIENT_SECRET not in "".join(daemon.log_lines())


def test_doctor_fetches_a_token_and_logs_in(kafka: KafkaCluster, tokens: TokenServer, tmp_path: Path) -> None:
    tokens.lifetime_s = 3_600.0
    settings = {
        **oauth_settings(kafka, tokens),
        "bootstrap.servers": kafka.servers("SHORT"),
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
    }
    del settings["daemon.workers"]
    config = tmp_path / "sidecar.toml"
    config.write_text("[kafka]\n" + "".join(f'"{name}" = "{value}"\n' for name, value in settings.items()))
    config.chmod(0o600)

    def doctor() -> str:
        done = subprocess.run(
            [*cli("doctor"), "-c", str(config), "--run-dir", str(tmp_path / "run")],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert CLIENT_SECRET not in done.stdout + done.stderr
        return done.stdout

    shown = doctor()
    assert "There is a token of alice for 3," in shown and "takes the login by OAUTHBEARER" in shown, shown
    tokens.fault = Fault.UNAUTHORIZED
    try:
        assert "refuses with HTTP status 401" in doctor()
    finally:
        tokens.fault = None


def test_a_reload_changes_password_and_mechanism_under_load(
    kafka: KafkaCluster, tokens: TokenServer, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """The next renewal logs in as the file says by then: another password, then a token. Nothing is lost or failed."""
    topic = new_topic(kafka)
    tokens.lifetime_s = 3_600.0
    tokens.requests.clear()
    security = kafka.security()
    security.set_scram_user("fred", "first", "SCRAM-SHA-256")
    file = tmp_path / "sidecar.toml"
    file.touch(0o600)

    def write(settings: dict[str, Any]) -> None:
        names = (name for name in settings if name.startswith("sasl."))
        file.write_text("[kafka]\n" + "".join(f'"{name}" = "{settings[name]}"\n' for name in names))

    fred = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "fred", "sasl.password": "first"}
    write(fred)
    daemon = start_daemon(
        kafka.servers("SHORT"), settings={"security.protocol": "SASL_PLAINTEXT"}, config=file
    )
    client = SteadyClient(daemon.run_dir, topic, "reloaded", burst=5, pause_s=0.02)
    wait_until(lambda: len(client.outcomes) > 100, "the first records")
    security.set_scram_user("fred", "second", "SCRAM-SHA-256")
    for settings in (fred | {"sasl.password": "second"}, oauth_settings(kafka, tokens)):
        write(settings)
        done = daemon.command("reload")
        assert done.returncode == 0, done.stderr
        assert "second" not in done.stdout and CLIENT_SECRET not in done.stdout
        reloaded_s = time.monotonic()
        # Each open session ends within 4 s, so by then every link has logged in again.
        wait_until(
            lambda: client.last_delivered_s - reloaded_s > 2 * REAUTH_MS / 1000,  # noqa: B023
            "records after the renewals",
            timeout_s=30,
        )
    assert len(tokens.requests) == 1
    client.finish()
    judge(kafka.bootstrap_servers, topic, [client])
