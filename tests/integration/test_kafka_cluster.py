"""The instruments themselves: a judge that cannot fail proves nothing."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from sidecar.tools.testing.kafka_cluster import KafkaCluster, parse_topics
from sidecar.tools.testing.kafka_topics import NewTopic, quiet_config
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.reading import read_topic


@pytest.mark.kafka
def test_reader_finds_what_a_foreign_producer_wrote(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=3)
    producer = Producer(quiet_config(kafka.bootstrap_servers, {"enable.idempotence": "true"}))
    for number in range(300):
        producer.produce(topic, key=b"k%d" % (number % 7), value=RecordId("p", number).encode())
    assert producer.flush(30) == 0
    ledger = Ledger()
    ledger.sent("p", 300)
    ledger.delivered_up_to("p", 300)
    ledger.read_all(
        (RecordId.decode(record.value or b""), record.partition)
        for record in read_topic(kafka.bootstrap_servers, topic)
    )
    ledger.check()


def test_mock_broker_answers_and_obeys() -> None:
    with MockBroker({"flights": 6}) as broker:
        producer = Producer(quiet_config(broker.bootstrap_servers))
        assert len(producer.list_topics("flights", timeout=10).topics["flights"].partitions) == 6
        broker.command("error 0 6 6")  # NOT_LEADER_OR_FOLLOWER twice: the producer tries again
        told: list[object] = []
        producer.produce("flights", b"x", on_delivery=lambda error, _message: told.append(error))
        assert producer.flush(30) == 0
        assert told == [None]
        with pytest.raises(ValueError, match="cannot obey 'fly away'"):
            broker.command("fly away")


def test_topics_are_parsed() -> None:
    assert parse_topics(["a:6", "b"]) == {"a": 6, "b": 1}
    with pytest.raises(ValueError, match="a:x"):
        parse_topics(["a:x"])


def _filled() -> Ledger:
    ledger = Ledger()
    ledger.sent("p", 4)
    for number in range(4):
        ledger.delivered(RecordId("p", number))
        ledger.read(RecordId("p", number), 0)
    return ledger


def test_ledger_balances() -> None:
    _filled().check()


def test_ledger_notices_loss() -> None:
    ledger = _filled()
    ledger.sent("p", 1)
    ledger.delivered(RecordId("p", 4))
    assert ledger.problems() == ["1 records were acked and are not in the topic: p/4"]


def test_ledger_notices_silence() -> None:
    ledger = _filled()
    ledger.sent("p", 1)
    assert ledger.problems() == ["1 records never got an outcome: p/4"]


def test_ledger_notices_doubles_and_order() -> None:
    ledger = _filled()
    ledger.read(RecordId("p", 1), 0)
    assert ledger.problems() == [
        "1 records are in the topic more than once: p/1",
        "order of p in partition 0 broken: record 1 came after 3",
    ]
    assert ledger.problems(idempotent=False) == []


def test_ledger_notices_a_failure_that_was_not_one() -> None:
    ledger = _filled()
    ledger.sent("p", 2)
    ledger.failed(RecordId("p", 4))
    ledger.failed(RecordId("p", 5), possibly_persisted=True)
    ledger.read(RecordId("p", 4), 1)
    ledger.read(RecordId("p", 5), 1)
    assert ledger.problems() == ["1 records failed, certainly not persisted, and are in the topic: p/4"]


def test_ledger_notices_two_outcomes_and_strangers() -> None:
    ledger = _filled()
    ledger.failed(RecordId("p", 0))
    ledger.read(RecordId("q", 9), 0)
    problems = ledger.problems()
    assert "1 records got more than one outcome: p/0" in problems
    assert "1 records are in the topic and were never sent: q/9" in problems
