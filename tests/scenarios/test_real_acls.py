"""Real ACLs (StandardAuthorizer): SE-06, and SE-07 as far as it needs no transactions."""

from __future__ import annotations

import re
import time

import pytest

from client_stub import errors
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.ledger import Ledger
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

from .harness import Sender, accounts_balance, enter_records
from .peers import OpenSender
from .secure import Costs, new_topic, seconds_since, settings_for

pytestmark = [pytest.mark.process, pytest.mark.kafka]

AT_ONCE_S = 5.0
"""Beside a delivery.timeout.ms of two minutes."""


def balance(kafka: KafkaCluster, *senders: Sender) -> None:
    ledger = Ledger()
    for sender in senders:
        sender.enter(ledger)
        found = read_topic(kafka.bootstrap_servers, sender.topic)
        enter_records(ledger, sender.topic, ((each.value or b"", each.partition) for each in found))
    ledger.check()


def is_denied(error: errors.SidecarError | None) -> bool:
    return (
        isinstance(error, errors.TopicAuthorizationFailed)
        and error.name == "TOPIC_AUTHORIZATION_FAILED"
        and error.persistence == 0
    )


def settings_of_bob(kafka: KafkaCluster) -> dict[str, object]:
    settings = settings_for(kafka, "SASL_PLAINTEXT", "SCRAM-SHA-512", "bob")
    return {**settings, "metadata.max.age.ms": 1000}


def a_forbidden_topic_fails_alone(kafka: KafkaCluster, open_sender: OpenSender) -> list[errors.SidecarError]:
    """SE-06: records of a topic without any grant, or with DESCRIBE only, fail at once by Kafka's name. Those of an
    allowed topic are delivered meanwhile. After the grant both topics work without a restart, and fail again after it
    was withdrawn. Returns the errors."""
    operator = kafka.security()
    allowed, forbidden, described = (new_topic(kafka) for _ in range(3))
    operator.grant("bob", "WRITE", allowed)
    operator.grant("bob", "DESCRIBE", described)
    with open_sender(allowed) as good, open_sender(forbidden) as bad, open_sender(described) as seen:
        good.send()
        good.offsets()
        for _ in range(2):
            began_s = time.monotonic()
            for sender in (bad, seen):
                sender.send()
            good.send()
            for sender in (bad, seen):
                error = sender.deliveries[-1].exception(20)
                assert is_denied(error), error
            assert seconds_since(began_s) < AT_ONCE_S
            assert good.deliveries[-1].exception(20) is None
        for sender in (bad, seen):
            operator.grant("bob", "WRITE", sender.topic)
            wait_until(
                lambda sender=sender: sender.send().exception(20) is None,  # type: ignore[misc]
                f"a record of {sender.topic} after the grant",
            )
            operator.withdraw("bob", "WRITE", sender.topic)
            wait_until(
                lambda sender=sender: is_denied(sender.send().exception(20)),  # type: ignore[misc]
                f"a refusal of {sender.topic} after its grant",
            )
            good.send()
        balance(kafka, good, bad, seen)
        return [told.error for sender in (bad, seen) for told in sender.outcomes() if told.error is not None]


def test_se_06_a_forbidden_topic_fails_alone(secure_kafka: KafkaCluster, start_daemon: StartDaemon) -> None:
    """SE-06, and each error names its topic."""
    daemon = start_daemon(secure_kafka.servers("SASL_PLAINTEXT"), settings=settings_of_bob(secure_kafka))
    found = a_forbidden_topic_fails_alone(secure_kafka, lambda topic: Sender(daemon, topic))
    assert all(re.search(r"secure-\d", str(error)) for error in found), found
    accounts_balance(daemon)


def test_se_07_no_producer_id_is_said_as_such(secure_kafka: KafkaCluster, start_daemon: StartDaemon) -> None:
    """SE-07: without WRITE on any topic and without IDEMPOTENT_WRITE the broker gives no producer id. Records fail by
    CLUSTER_AUTHORIZATION_FAILED, not by a timeout, again and again until the grant. Then they are delivered by the
    same daemon."""
    kafka, operator = secure_kafka, secure_kafka.security()
    topic = new_topic(kafka)
    operator.set_scram_user("newcomer", "a password", "SCRAM-SHA-256")
    operator.grant("newcomer", "DESCRIBE", topic)
    settings = settings_for(kafka, "SASL_PLAINTEXT", "SCRAM-SHA-256", "bob")
    settings |= {"sasl.username": "newcomer", "sasl.password": "a password"}
    daemon = start_daemon(kafka.servers("SASL_PLAINTEXT"), settings=settings)
    costs = Costs(kafka.relay("SASL_PLAINTEXT"), daemon)
    with Sender(daemon, topic) as sender:
        for _ in range(3):
            began_s = time.monotonic()
            error = sender.send().exception(20)
            assert isinstance(error, errors.ClusterAuthorizationFailed), error
            assert error.name == "CLUSTER_AUTHORIZATION_FAILED" and error.persistence == 0
            assert "InitProducerId" in str(error) and "IDEMPOTENT_WRITE" in str(error)
            assert seconds_since(began_s) < AT_ONCE_S
        costs.check()
        operator.grant("newcomer", "WRITE", topic)
        wait_until(lambda: sender.send().exception(20) is None, "a record after the grant")
        balance(kafka, sender)
        accounts_balance(daemon)
