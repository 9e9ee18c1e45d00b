"""Goal: a daemon answers which record of a key was committed last, whatever its brokers do in between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_stub import Producer
from client_stub.errors import DaemonRefused, InvalidTopic
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import on
from sidecar.tools.testing.kafka_frames import Api

pytestmark = pytest.mark.process
WAIT_S = 30.0
NOT_LEADER = 6


@pytest.fixture
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker({"orders": 1}, nodes=2) as broker:
        yield broker


@pytest.fixture
def daemon(kafka: FakeBroker) -> Iterator[SidecarDaemon]:
    with SidecarDaemon(kafka.bootstrap_servers, settings={"daemon.workers": 1}) as daemon:
        yield daemon


def last(producer: Producer, key: bytes = b"key", *, creates: bool = False) -> bytes | None:
    found = producer.last_committed("commits", key, WAIT_S, creates=creates).record
    return None if found is None else found.value


def test_committed_record_is_found_and_an_aborted_one_not(kafka: FakeBroker, daemon: SidecarDaemon) -> None:
    with Producer(daemon.run_dir, transactional_id="writer") as writer, Producer(daemon.run_dir) as asking:
        assert last(asking, creates=True) is None
        writer.init_transactions(WAIT_S)
        place = writer.last_committed("commits", b"key", WAIT_S).partition
        for number in range(3):
            writer.begin_transaction()
            writer.send("commits", f"committed {number}".encode(), b"key", partition=place)
            writer.commit_transaction(WAIT_S)
            writer.begin_transaction()
            writer.send("commits", f"aborted {number}".encode(), b"key", partition=place).result(WAIT_S)
            writer.abort_transaction(WAIT_S)
            assert last(asking) == f"committed {number}".encode()
        writer.begin_transaction()
        writer.send("commits", b"open", b"key", partition=place).result(WAIT_S)
        assert last(asking) == b"committed 2"
        writer.abort_transaction(WAIT_S)


def test_leader_that_moves_is_asked_where_it_is(kafka: FakeBroker, daemon: SidecarDaemon) -> None:
    with Producer(daemon.run_dir) as producer:
        place = producer.last_committed("commits", b"key", WAIT_S, creates=True).partition
        producer.send("commits", b"1", b"key", partition=place).result(WAIT_S)
        assert last(producer) == b"1"
        kafka.move_leader("commits", place, 1 + place % 2)
        kafka.move_leader("commits", place, 1 + (place + 1) % 2)
        assert last(producer) == b"1"
        kafka.add(on(Api.FETCH).refuse(NOT_LEADER))
        assert last(producer) == b"1"


def test_topic_that_forgets_and_topic_that_is_missing_are_refused(daemon: SidecarDaemon) -> None:
    with Producer(daemon.run_dir) as producer:
        with pytest.raises(DaemonRefused, match=r"Topic orders has cleanup\.policy=delete") as refused:
            producer.last_committed("orders", b"key", WAIT_S)
        assert refused.value.name == "NOT_COMPACTED"
        with pytest.raises(InvalidTopic, match=r"Topic commits is not in Kafka; make it: kafka-topics\.sh"):
            last(producer)


def test_partition_with_more_keys_than_are_kept_is_read_for_each_question(daemon: SidecarDaemon) -> None:
    with Producer(daemon.run_dir) as producer:
        place = producer.last_committed("commits", b"key", WAIT_S, creates=True).partition
        producer.send_many("commits", [(b"%d" % each, b"v", None, place) for each in range(5_000)])
        producer.send("commits", b"mine", b"key", partition=place)
        producer.flush(WAIT_S)
        assert last(producer) == b"mine"
        producer.send("commits", b"newer", b"key", partition=place).result(WAIT_S)
        assert last(producer) == b"newer"
