"""Goal: brokers that move, die, hang or refuse cost time, never a record, a double or the order.

Method: three real brokers, callers that send all the while, and a foreign consumer that reads everything
back at the end. Every test leaves all three nodes running and in sync.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from client_stub import Delivery, Producer, errors
from client_stub.contract.wire import Persistence
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_admin import KafkaAdmin
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_request_log import logged_requests
from sidecar.tools.testing.ledger import Ledger
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

from .flow import PATIENCE_S, Flow, check

pytestmark = [pytest.mark.process, pytest.mark.kafka]

NOT_LEADER = 6
NOT_ENOUGH_REPLICAS = 19
_serial = itertools.count(1)


@pytest.fixture(scope="module")
def brokers() -> Iterator[KafkaCluster]:
    with KafkaCluster(3, heap_mb=256, log_requests=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(brokers: KafkaCluster) -> KafkaAdmin:
    return brokers.admin()


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_serial)}"


def produce_answers(brokers: KafkaCluster, client_id: str) -> set[int]:
    """Every error code that the brokers answered to this client's Produce requests."""
    return {
        int(each["errorCode"])
        for request in logged_requests(brokers.nodes, client_id, "PRODUCE")
        for of_topic in request.response["responses"]
        for each in of_topic["partitionResponses"]
    }


def test_leaders_move_under_load(
    brokers: KafkaCluster, admin: KafkaAdmin, start_daemon: StartDaemon, topic: str, ledger: Ledger
) -> None:
    admin.create_assigned(topic, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    daemon = start_daemon(brokers.bootstrap_servers, settings={"client.id": "moving", "linger.ms": 1})
    with Flow(daemon.run_dir, topic) as first, Flow(daemon.run_dir, topic) as second:
        first.wait_more()
        for wanted in ({0: 2}, {1: 3, 2: 1}, {0: 1, 1: 1, 2: 1}, {0: 3, 1: 2, 2: 3}):
            admin.move_leaders(topic, wanted)
            first.wait_more(what=f"after leaders moved to {wanted}")
            second.wait_more(what=f"after leaders moved to {wanted}")
    check(ledger, brokers.bootstrap_servers, topic, first, second)
    assert NOT_LEADER in produce_answers(brokers, "moving"), (
        "no leader moved while records were on their way: the test proves nothing"
    )


def test_leader_killed_under_load(
    brokers: KafkaCluster, admin: KafkaAdmin, start_daemon: StartDaemon, topic: str, ledger: Ledger
) -> None:
    admin.create_assigned(topic, [[1, 2, 3], [1, 3, 2], [2, 1, 3]], {"min.insync.replicas": "2"})
    daemon = start_daemon(brokers.bootstrap_servers)
    with Flow(daemon.run_dir, topic) as flow:
        flow.wait_more()
        brokers.kill_node(0)
        flow.wait_more(10_000, what="by the brokers that are left")
        assert 1 not in admin.leaders(topic).values()
        brokers.restart_node(0)
        admin.wait_in_sync(topic, 3)
        admin.elect_preferred(topic, [0, 1, 2])
        admin.wait_leaders(topic, {0: 1, 1: 1, 2: 2})
        flow.wait_more(what="after the dead broker leads again")
        brokers.stop_node(0)
        flow.wait_more(what="after the same broker left in good order")
        brokers.restart_node(0)
        admin.wait_in_sync(topic, 3)
    check(ledger, brokers.bootstrap_servers, topic, flow)


def test_stopped_broker_holds_up_only_its_partitions(
    brokers: KafkaCluster, admin: KafkaAdmin, start_daemon: StartDaemon, topic: str, ledger: Ledger
) -> None:
    admin.create_assigned(topic, [[3], [1], [2]])
    daemon = start_daemon(
        brokers.bootstrap_servers, settings={"request.timeout.ms": 2_000, "daemon.workers": 1}
    )
    with (
        Flow(daemon.run_dir, topic, lambda _: {"partition": 0}) as held,
        Flow(daemon.run_dir, topic, lambda number: {"partition": 1 + number % 2}) as free,
    ):
        held.wait_more()
        retried = metric(daemon, "kafka_sidecar_batches_retried_total")
        brokers.pause_node(2)
        try:
            free.wait_more(what="while another partition's broker is stopped")
            wait_until(
                lambda: metric(daemon, "kafka_sidecar_batches_retried_total") > retried,
                "a request to the stopped broker to time out",
                timeout_s=PATIENCE_S,
            )
            seen = len(held.delivered)
            free.wait_more(what="after a request of another partition timed out")
            assert len(held.delivered) == seen
        finally:
            brokers.resume_node(2)
        held.wait_more(what="after its broker went on")
        free.wait_more()
    check(ledger, brokers.bootstrap_servers, topic, held, free)


def test_too_few_replicas_in_sync(
    brokers: KafkaCluster, admin: KafkaAdmin, start_daemon: StartDaemon, topic: str, ledger: Ledger
) -> None:
    """Partition 0 has fewer replicas in sync than it needs. Its records wait, and fail by name when they may not wait
    so long. Another partition goes on, and all goes on when the replica is back."""
    admin.create_assigned(topic, [[1, 3], [2, 1]], {"min.insync.replicas": "2"})
    daemon = start_daemon(brokers.bootstrap_servers, settings={"request.timeout.ms": 5_000})
    hasty = start_daemon(
        brokers.bootstrap_servers,
        settings={
            "client.id": "hasty",
            # Longer than any answer takes on a busy machine: a request that times out leaves doubt.
            "delivery.timeout.ms": 5_000,
            "request.timeout.ms": 4_500,
            "linger.ms": 0,
        },
    )
    other = f"{topic}-other"
    admin.create_assigned(other, [[1, 3]], {"min.insync.replicas": "2"})
    with (
        Flow(daemon.run_dir, topic, lambda _: {"partition": 0}) as held,
        Flow(daemon.run_dir, topic, lambda _: {"partition": 1}) as free,
    ):
        held.wait_more()
        brokers.kill_node(2)
        try:
            wait_until(lambda: len(admin.partitions(other)[0].isrs) == 1, "the ISR to shrink")
            with Producer(run_dir=str(hasty.run_dir)) as producer:
                # A leader may append while its set of replicas shrinks (NOT_ENOUGH_REPLICAS_AFTER_APPEND): there is
                # doubt about the first record then, and none about the next.
                for _ in range(2):
                    lost = producer.send(other, value=b"x")
                    with pytest.raises(errors.DeliveryTimeout, match=r"delivery\.timeout\.ms=5000") as caught:
                        lost.result(timeout=PATIENCE_S)
                    if caught.value.persistence == Persistence.NOT_PERSISTED:
                        break
                assert caught.value.persistence == Persistence.NOT_PERSISTED
            assert NOT_ENOUGH_REPLICAS in produce_answers(brokers, "hasty")
            free.wait_more(what="while another partition lacks replicas")
        finally:
            brokers.restart_node(2)
        held.wait_more(what="after its replica is back")
    check(ledger, brokers.bootstrap_servers, topic, held, free)


@pytest.mark.rule("M8")
def test_keyless_records_avoid_a_partition_without_leader(
    brokers: KafkaCluster, admin: KafkaAdmin, start_daemon: StartDaemon, topic: str
) -> None:
    admin.create_assigned(topic, [[1], [3], [2]])
    daemon = start_daemon(brokers.bootstrap_servers, settings={"batch.size": 1_000, "linger.ms": 0})
    sent: list[Delivery] = []
    with Producer(run_dir=str(daemon.run_dir)) as producer:

        def send_100() -> list[Delivery]:
            deliveries = [producer.send(topic, value=b"%0100d" % number) for number in range(100)]
            sent.extend(deliveries)
            return deliveries

        def went_round_it() -> bool:
            """Records sent before the daemon knew wait for their partition's leader. A single batch may have missed
            the partition by chance; twenty of them may not."""
            try:
                return all(each.result(timeout=3).partition != 1 for _ in range(20) for each in send_100())
            except TimeoutError:
                return False

        seen: set[int] = set()

        def all_used() -> bool:
            """The partition changes with every batch, at random."""
            seen.update(each.result(timeout=PATIENCE_S).partition for each in send_100())
            return seen == {0, 1, 2}

        wait_until(all_used, "keyless records to use every partition", timeout_s=PATIENCE_S)
        brokers.kill_node(2)
        try:
            admin.wait_leaders(topic, {1: -1})
            wait_until(went_round_it, "keyless records to avoid the partition", timeout_s=PATIENCE_S)
            used = {each.result(timeout=PATIENCE_S).partition for _ in range(20) for each in send_100()}
            assert used == {0, 2}
            named = producer.send(topic, value=b"named", partition=1)
            with pytest.raises(TimeoutError):
                named.result(timeout=1)
        finally:
            brokers.restart_node(2)
        assert named.result(timeout=PATIENCE_S).partition == 1
        for each in sent:
            each.result(timeout=PATIENCE_S)
        wait_until(
            lambda: 1 in {each.result(timeout=PATIENCE_S).partition for each in send_100()},
            "keyless records to use the partition again",
            timeout_s=PATIENCE_S,
        )
    assert len(read_topic(brokers.bootstrap_servers, topic)) == len(sent) + 1
