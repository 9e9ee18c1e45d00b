"""Users and passwords that the broker does not know, or not any more: SE-01 on a real Kafka."""

from __future__ import annotations

import time

import pytest

from client_stub import Producer, errors
from sidecar.testing.daemon import StartDaemon
from sidecar.testing.kafka_cluster import KafkaCluster
from sidecar.testing.steady_load import SteadyClient, judge
from sidecar.testing.waiting import wait_until

from .scene import Sender, accounts_balance
from .secure import USUAL_BACKOFF, Costs, new_topic, seconds_since, settings_for
from .test_real_acls import balance

pytestmark = [pytest.mark.process, pytest.mark.kafka]

MECHANISM = "SCRAM-SHA-512"
WAIT_MS = 6_000
WITHDRAWN_S = 8.0


def is_about_the_login(error: BaseException | None, user: str) -> bool:
    return error is not None and MECHANISM in str(error) and user in str(error)


def test_se_01_a_user_that_is_not_there(secure_kafka: KafkaCluster, start_daemon: StartDaemon) -> None:
    """SE-01: a SCRAM user that does not exist: a record and a question for partitions fail by the login's own words
    within 10 s; few connections and lines of the log meanwhile; made later, the user is used without a restart."""
    kafka, operator = secure_kafka, secure_kafka.security()
    topic = new_topic(kafka)
    settings = {
        **settings_for(kafka, "SASL_PLAINTEXT", MECHANISM, "alice"),
        "sasl.username": "carol",
        "sasl.password": "carol's password",
        "max.block.ms": WAIT_MS,
        "request.timeout.ms": 2_000,
        "delivery.timeout.ms": WAIT_MS,
        **USUAL_BACKOFF,
    }
    daemon = start_daemon(kafka.servers("SASL_PLAINTEXT"), settings=settings, wait=False)
    wait_until(lambda: daemon.command("status").returncode == 1, "a daemon without Kafka")
    costs = Costs(kafka.relay("SASL_PLAINTEXT"), daemon)
    with Sender(daemon, topic) as sender:
        began_s = time.monotonic()
        delivery = sender.send()
        with pytest.raises(errors.SidecarError) as asked:
            sender.producer.partitions_for(topic, timeout=WAIT_MS / 1000)
        assert is_about_the_login(asked.value, "carol"), asked.value
        assert is_about_the_login(delivery.exception(20), "carol"), delivery.exception(0)
        assert seconds_since(began_s) < 10
        shown = daemon.command("status")
        assert MECHANISM in shown.stdout + shown.stderr and "carol" in shown.stdout + shown.stderr
        costs.check()
        assert costs.connections > 1, "it tries again"
        operator.set_scram_user("carol", "carol's password", MECHANISM)
        operator.grant("carol", "WRITE", topic)
        wait_until(lambda: sender.send().exception(20) is None, "a record after the user was made")
        balance(kafka, sender)
        accounts_balance(daemon)


def test_se_01_a_password_withdrawn_for_a_while(
    secure_kafka: KafkaCluster, start_daemon: StartDaemon
) -> None:
    """A user is removed at the broker for 8 s, and all connections are cut: records wait, none is lost, doubled or
    failed, and they flow again soon after the user is back; meanwhile few connections and lines of the log."""
    kafka, operator = secure_kafka, secure_kafka.security()
    topic = new_topic(kafka, partitions=2)
    operator.set_scram_user("erna", "erna's password", MECHANISM)
    operator.grant("erna", "WRITE", topic)
    settings = {
        **settings_for(kafka, "SASL_PLAINTEXT", MECHANISM, "alice"),
        "sasl.username": "erna",
        "sasl.password": "erna's password",
        **USUAL_BACKOFF,
    }
    relay = kafka.relay("SASL_PLAINTEXT")
    daemon = start_daemon(kafka.servers("SASL_PLAINTEXT"), settings=settings)
    client = SteadyClient(daemon.run_dir, topic, "steady", burst=5, pause_s=0.01)
    wait_until(lambda: len(client.outcomes) > 100, "the first records")
    costs = Costs(relay, daemon)
    operator.remove_scram_user("erna", MECHANISM)
    relay.cut()
    cut_s = time.monotonic()
    wait_until(lambda: seconds_since(cut_s) > WITHDRAWN_S, "the password to be missing for a while")
    settled = len(client.outcomes)
    assert client.sent > settled + 1000
    with Producer(run_dir=str(daemon.run_dir), client_name="asker") as asker:
        assert len(asker.partitions_for(topic)) == 2, "what was known stays known"
    operator.set_scram_user("erna", "erna's password", MECHANISM)
    wait_until(lambda: len(client.outcomes) > settled, "records to flow again", timeout_s=15)
    costs.check()
    client.finish()
    judge(kafka.bootstrap_servers, topic, [client])
    accounts_balance(daemon)
