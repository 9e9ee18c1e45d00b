"""Users and passwords that the broker does not know, or not any more: SE-01 on a real Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from client_stub import Producer, errors
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.ledger import RecordId
from sidecar.tools.testing.steady_load import SteadyClient, judge
from sidecar.tools.testing.waiting import wait_until

from .harness import Sender, accounts_balance
from .secure import USUAL_BACKOFF, Costs, new_topic, seconds_since, settings_for
from .test_real_acls import balance

pytestmark = [pytest.mark.process, pytest.mark.kafka]

MECHANISM = "SCRAM-SHA-512"
WAIT_MS = 6_000
WITHDRAWN_S = 8.0
LASTS_S = 10.0


def is_about_the_login(error: BaseException | None, user: str) -> bool:
    return (
        isinstance(error, errors.AuthenticationFailed)
        and error.name == "SASL_AUTHENTICATION_FAILED"
        and f'{MECHANISM}, user "{user}"' in str(error)
        and "invalid credentials" in str(error)
    )


def settings_of(
    kafka: KafkaCluster, user: str, password: str, listener: str = "SASL_PLAINTEXT"
) -> dict[str, object]:
    """Of a SCRAM user that may be missing."""
    return {
        **settings_for(kafka, listener, MECHANISM, "alice"),
        "sasl.username": user,
        "sasl.password": password,
        **USUAL_BACKOFF,
    }


SHORT_WAIT = {"max.block.ms": WAIT_MS, "request.timeout.ms": 2_000, "delivery.timeout.ms": WAIT_MS}


def refused_without_a_user(sender: Sender) -> errors.SidecarError:
    """SE-01: the error of a record whose user does not exist, within 10 s."""
    began_s = time.monotonic()
    error = sender.send().exception(20)
    assert error is not None and seconds_since(began_s) < 10
    return error


def delivers_once_the_user_is_made(
    kafka: KafkaCluster, sender: Sender, user: str, password: str, timeout_s: float = 30.0
) -> None:
    """SE-01: by the same client, without a restart."""
    operator = kafka.security()
    operator.set_scram_user(user, password, MECHANISM)
    operator.grant(user, "WRITE", sender.topic)
    wait_until(
        lambda: sender.send().exception(20) is None, "a record after the user was made", timeout_s=timeout_s
    )
    balance(kafka, sender)


def test_se_01_a_user_that_is_not_there(secure_kafka: KafkaCluster, start_daemon: StartDaemon) -> None:
    """SE-01: a SCRAM user that does not exist. A record and a question for partitions fail by the login's own words
    within 10 s, with few connections and lines of the log meanwhile. Made later, the user is used without a restart."""
    kafka, password = secure_kafka, "carol's password"
    settings = settings_of(kafka, "carol", password) | SHORT_WAIT | {"daemon.workers": 2}
    daemon = start_daemon(kafka.servers("SASL_PLAINTEXT"), settings=settings, wait=False)
    daemon.wait_published()
    costs, began_s = Costs(kafka.relay("SASL_PLAINTEXT"), daemon), time.monotonic()
    with Sender(daemon, new_topic(kafka)) as sender:
        error = refused_without_a_user(sender)
        assert is_about_the_login(error, "carol"), error
        with pytest.raises(errors.SidecarError) as asked:
            sender.producer.partitions_for(sender.topic, timeout=WAIT_MS / 1000)
        assert is_about_the_login(asked.value, "carol"), asked.value
        for command in ("status", "topics"):
            shown = daemon.command(command)
            assert f'{MECHANISM}, user "carol"' in shown.stdout + shown.stderr, command
        wait_until(lambda: seconds_since(began_s) > LASTS_S, "ten seconds of refused logins")
        costs.check()
        assert costs.connections > 1, "it tries again"
        delivers_once_the_user_is_made(kafka, sender, "carol", password)
        accounts_balance(daemon)
    assert not any(password in line for line in daemon.log_lines())


def user_of_a_while(kafka: KafkaCluster, user: str, topic: str) -> dict[str, object]:
    """Make a user that may write to the topic; a client's settings for it, by the listener with sessions of 4 s."""
    password = f"{user}'s password"
    operator = kafka.security()
    operator.set_scram_user(user, password, MECHANISM)
    operator.grant(user, "WRITE", topic)
    return settings_of(kafka, user, password, "SHORT")


def a_password_withdrawn_for_a_while(
    kafka: KafkaCluster,
    user: str,
    client: SteadyClient,
    costs: Costs,
    meanwhile: Callable[[], None] = lambda: None,
    may_fail: Callable[[RecordId], bool] = lambda record: False,
) -> None:
    """SE-01: a user is removed at the broker. Open sessions end within 4 s and cannot be renewed. After 8 s without
    it records wait; none is lost, doubled or failed, and they flow again soon after the user is back. Connections and
    lines of the log stay few."""
    operator = kafka.security()
    operator.remove_scram_user(user, MECHANISM)
    removed_s = time.monotonic()
    wait_until(lambda: seconds_since(removed_s) > WITHDRAWN_S, "the password to be missing for a while")
    assert seconds_since(client.last_delivered_s) > 2, "no session outlives its 4 s"
    settled = len(client.outcomes)
    assert client.sent > settled + 500
    meanwhile()
    operator.set_scram_user(user, f"{user}'s password", MECHANISM)
    wait_until(lambda: len(client.outcomes) > settled, "records to flow again", timeout_s=15)
    costs.check()
    client.finish()
    judge(kafka.bootstrap_servers, client.topic, [client], may_fail=may_fail)


def test_se_01_a_password_withdrawn_for_a_while(
    secure_kafka: KafkaCluster, start_daemon: StartDaemon
) -> None:
    kafka, topic = secure_kafka, new_topic(secure_kafka, partitions=2)
    settings = user_of_a_while(kafka, "erna", topic) | {"daemon.workers": 2}
    daemon = start_daemon(kafka.servers("SHORT"), settings=settings)
    client = SteadyClient(daemon.run_dir, topic, "steady", burst=5, pause_s=0.01)
    wait_until(lambda: len(client.outcomes) > 100, "the first records")

    def what_was_known_stays_known() -> None:
        with Producer(run_dir=str(daemon.run_dir), client_name="asker") as asker:
            assert len(asker.partitions_for(topic)) == 2

    costs = Costs(kafka.relay("SHORT"), daemon)
    a_password_withdrawn_for_a_while(kafka, "erna", client, costs, what_was_known_stays_known)
    accounts_balance(daemon)
