"""Goal: topics that appear, grow, vanish or come back under the same name, seen through a whole daemon.

The broker's own request log says what the daemon asked for, and how often.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from client_stub import Delivery, Producer, errors
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_admin import KafkaAdmin
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_request_log import LoggedRequest, logged_requests
from sidecar.tools.testing.ledger import Ledger
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

from .flow import PATIENCE_S, Flow, check

pytestmark = [pytest.mark.process, pytest.mark.kafka]

CLIENTS = 100
RETRY_BACKOFF_MS = 100.0
IDLE_MS = 5_000
"""The least that metadata.max.idle.ms may be."""

_serial = itertools.count(1)


@pytest.fixture(scope="module", params=["3.9", "4.4"])
def broker(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """3.9 names topics in its Produce requests, later ones have them by id."""
    with KafkaCluster(version=request.param, heap_mb=256, light=True, log_requests=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(broker: KafkaCluster) -> KafkaAdmin:
    return broker.admin()


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_serial)}"


def metadata_requests(broker: KafkaCluster, client_id: str) -> list[LoggedRequest]:
    return logged_requests(broker.nodes, client_id, "METADATA")


def values(broker: KafkaCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(broker.bootstrap_servers, topic)]


@pytest.mark.rule("U5")
def test_a_topic_made_anew_is_adopted(
    broker: KafkaCluster, admin: KafkaAdmin, start_daemon: StartDaemon, topic: str
) -> None:
    """Nothing was on its way: not one record of the new topic may be lost, whatever its partition was."""
    broker.create_topics({topic: 4})
    daemon = start_daemon(broker.bootstrap_servers)
    with Producer(run_dir=str(daemon.run_dir)) as producer:
        for partition in range(4):
            producer.send(topic, value=b"old", partition=partition).result(timeout=PATIENCE_S)
        admin.delete_topic(topic)
        broker.create_topics({topic: 2})
        # The first record finds out that the topic is another; it may be lost with the old one's partitions.
        outcomes = [producer.send(topic, value=b"first", partition=index) for index in range(4)]
        for each in outcomes:
            assert each.exception(timeout=PATIENCE_S) is None or isinstance(
                each.exception(), errors.UnknownTopicOrPartition | errors.InvalidPartition
            )
        later = [producer.send(topic, value=b"%d" % number, key=b"%d" % number) for number in range(200)]
        assert {each.result(timeout=PATIENCE_S).partition for each in later} == {0, 1}
    delivered = [b"first" for each in outcomes if each.exception() is None]
    found = values(broker, topic)
    assert sorted(each or b"" for each in found) == sorted([*delivered, *(b"%d" % n for n in range(200))])


@pytest.mark.rule("U5")
def test_a_topic_made_anew_under_load_gives_every_record_its_outcome(
    broker: KafkaCluster, admin: KafkaAdmin, start_daemon: StartDaemon, topic: str
) -> None:
    broker.create_topics({topic: 2})
    daemon = start_daemon(broker.bootstrap_servers, settings={"linger.ms": 1})
    with Flow(daemon.run_dir, topic) as flow:
        flow.wait_more()
        admin.delete_topic(topic)
        broker.create_topics({topic: 5})
        flow.wait_more(what="in the topic made anew")
        # Until the partitions' number is followed too: half of the keys go to new ones.
        wait_until(
            lambda: len(ends := admin.end_offsets(topic)) == 5 and min(ends.values()) > 0,
            "all partitions of the topic made anew to get records",
            timeout_s=PATIENCE_S,
            describe=lambda: str(admin.end_offsets(topic)),
        )
    told = sorted([*flow.delivered, *(number for number, _, _ in flow.failed)])
    assert told == list(range(flow.sent))
    found = values(broker, topic)
    assert len(found) == len(set(found)), "something is in the new topic twice"


@pytest.mark.rule("M8")
def test_growth_is_noticed_live(
    broker: KafkaCluster, admin: KafkaAdmin, start_daemon: StartDaemon, topic: str, ledger: Ledger
) -> None:
    broker.create_topics({topic: 1})
    daemon = start_daemon(
        broker.bootstrap_servers, settings={"metadata.max.age.ms": 1_000, "batch.size": 2_000}
    )
    with Producer(run_dir=str(daemon.run_dir)) as producer:
        assert producer.send(f"{topic}", value=b"parent/0|").result(timeout=PATIENCE_S).partition == 0
        early = producer.send(topic, value=b"parent/1|", partition=1)
        with pytest.raises(TimeoutError):
            early.result(timeout=1)
        admin.grow_topic(topic, 2)
        assert early.result(timeout=PATIENCE_S).partition == 1
        with Flow(daemon.run_dir, topic, lambda _: {}) as flow:
            flow.wait_more()
            admin.grow_topic(topic, 4)

            wait_until(
                lambda: len(ends := admin.end_offsets(topic)) == 4 and min(ends.values()) > 0,
                "keyless records to use the new partitions",
                timeout_s=PATIENCE_S,
                describe=lambda: str(admin.end_offsets(topic)),
            )
    ledger.sent("parent", 2)
    ledger.delivered_up_to("parent", 2)
    check(ledger, broker.bootstrap_servers, topic, flow)


@pytest.mark.rule("M10")
def test_a_topic_that_is_not_there_yet(broker: KafkaCluster, start_daemon: StartDaemon, topic: str) -> None:
    """Awaited for longer than an unused topic is remembered: it must not be forgotten meanwhile."""
    daemon = start_daemon(
        broker.bootstrap_servers,
        settings={
            "client.id": topic,
            "metadata.max.idle.ms": IDLE_MS,
            "metadata.max.age.ms": 500,
            "max.block.ms": 120_000,
        },
    )
    hasty = start_daemon(broker.bootstrap_servers, settings={"max.block.ms": 1_000})
    with Producer(run_dir=str(daemon.run_dir)) as patient, Producer(run_dir=str(hasty.run_dir)) as other:
        waiting = patient.send(topic, value=b"x")
        with pytest.raises(errors.MetadataTimeout, match=topic):
            other.send(topic, value=b"y").result(timeout=PATIENCE_S)

        def awaited_for_long() -> bool:
            asked = [each.arrived_ms for each in metadata_requests(broker, topic)]
            return asked[-1] - asked[0] > 2 * IDLE_MS

        wait_until(awaited_for_long, "metadata requests over 10 s", timeout_s=PATIENCE_S)
        broker.create_topics({topic: 1})
        waiting.result(timeout=PATIENCE_S)
    assert values(broker, topic) == [b"x"]


@pytest.mark.rule("M2")
def test_an_unused_topic_is_asked_for_no_more(
    broker: KafkaCluster, start_daemon: StartDaemon, topic: str
) -> None:
    used, unused = f"{topic}-used", f"{topic}-unused"
    broker.create_topics({used: 1, unused: 1})
    daemon = start_daemon(
        broker.bootstrap_servers,
        settings={"client.id": topic, "metadata.max.idle.ms": IDLE_MS, "metadata.max.age.ms": 500},
    )

    def last_asked() -> list[str]:
        return metadata_requests(broker, topic)[-1].topics

    with Producer(run_dir=str(daemon.run_dir)) as producer:
        producer.send(unused, value=b"x").result(timeout=PATIENCE_S)
        producer.send(used, value=b"x").result(timeout=PATIENCE_S)
        assert set(last_asked()) == {used, unused}

        def only_used_is_asked_for() -> bool:
            producer.send(used, value=b"x").result(timeout=PATIENCE_S)
            assert used in last_asked()
            return last_asked() == [used]

        wait_until(only_used_is_asked_for, "the unused topic to be dropped", timeout_s=PATIENCE_S)
        # Not forgotten by those who may need it at once: the next record is delivered, and renews it.
        producer.send(unused, value=b"y").result(timeout=PATIENCE_S)
        wait_until(lambda: set(last_asked()) == {used, unused}, "it to come back", timeout_s=PATIENCE_S)


@pytest.mark.rule("M1")
@pytest.mark.rule("M6")
def test_a_hundred_clients_that_ask_for_one_topic_are_one_request_per_backoff(
    broker: KafkaCluster, start_daemon: StartDaemon, topic: str
) -> None:
    daemon = start_daemon(broker.bootstrap_servers, settings={"client.id": topic})
    producers = [Producer(run_dir=str(daemon.run_dir), client_name=f"c{n}") for n in range(CLIENTS)]
    try:
        waiting: list[Delivery] = [each.send(topic, value=b"x") for each in producers]

        def several() -> list[LoggedRequest]:
            asked = [each for each in metadata_requests(broker, topic) if each.topics == [topic]]
            return asked if len(asked) >= 6 else []

        asked = wait_until(several, "six requests for the topic", timeout_s=PATIENCE_S)
        broker.create_topics({topic: 1})
        for each in waiting:
            each.result(timeout=PATIENCE_S)
    finally:
        for producer in producers:
            producer.close()
    gaps = [later.arrived_ms - earlier.arrived_ms for earlier, later in itertools.pairwise(asked)]
    # The backoff counts from the answer; the broker's clock rounds to milliseconds.
    assert min(gaps) >= RETRY_BACKOFF_MS - 2, gaps
    assert len(values(broker, topic)) == CLIENTS
