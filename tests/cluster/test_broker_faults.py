"""Goal: brokers that die, hang, lose a disk or forget their state cost time; records acknowledged under
min.insync.replicas=2 is there, once and in order, whatever happens.

Method: three brokers with two log dirs each and a controller of its own, so that any number of brokers may be
down. BF-07 is judged by a history of everything that was sent, told and read (:mod:`sidecar.tools.testing.history`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fault_proxy import FaultProxy
from sidecar.tools.testing.history import History
from sidecar.tools.testing.history_clients import HistoryCaller, HistoryReader
from sidecar.tools.testing.kafka_admin import KafkaAdmin
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.nemesis import Nemesis
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

from .flow import PATIENCE_S, Flow, check

pytestmark = [pytest.mark.process, pytest.mark.kafka]

PARTITIONS = 4
HEALING_S = 90.0
SHORT_S, LONG_S = 20.0, 400.0
EPOCH_BUMPS = "kafka_sidecar_epoch_bumps_total"
_serial = itertools.count(1)


@pytest.fixture(scope="module")
def brokers() -> Iterator[KafkaCluster]:
    # A broker finds out within this time that a log dir is gone.
    properties = {"replica.high.watermark.checkpoint.interval.ms": "500"}
    with KafkaCluster(3, heap_mb=256, own_controller=True, log_dirs=2, properties=properties) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(brokers: KafkaCluster) -> KafkaAdmin:
    return brokers.admin()


@pytest.fixture
def topic() -> str:
    return f"fault-{next(_serial)}"


def to_first(_: int) -> dict[str, int]:
    return {"partition": 0}


def test_bf_06_the_log_dir_of_the_leader_fails(
    brokers: KafkaCluster, admin: KafkaAdmin, start_daemon: StartDaemon, topic: str, ledger: Ledger
) -> None:
    """BF-06: the leader's disk is gone while records flow; another replica leads, all that was acked is there."""
    admin.create_assigned(topic, [[1, 2, 3]], {"min.insync.replicas": "2"})
    daemon = start_daemon(brokers.bootstrap_servers)
    with Flow(daemon.run_dir, topic, to_first) as flow:
        flow.wait_more()
        disk = brokers.nodes[0].log_dir_of(topic, 0)
        gone = disk.rename(disk.with_suffix(".gone"))
        try:
            wait_until(lambda: admin.leaders(topic)[0] in (2, 3), "another leader", timeout_s=PATIENCE_S)
            flow.wait_more(what="by the replica that leads now")
            process = brokers.nodes[0].process
            assert process is not None
            assert process.poll() is None, "the broker lost one disk, not its life"
        finally:
            brokers.kill_node(0)
            gone.rename(disk)
            brokers.restart_node(0)
        flow.wait_more(what="after the broker came back with its disk")
    check(ledger, brokers.bootstrap_servers, topic, flow)
    admin.wait_in_sync(topic, 3)


def test_bf_06_unclean_election(
    brokers: KafkaCluster, admin: KafkaAdmin, start_daemon: StartDaemon, topic: str
) -> None:
    """BF-06, ID-06: a replica that lacks acknowledged records becomes leader, and the log is cut back under an
    idempotent producer: a real gap. It goes on under the next epoch; nothing is there twice, order is kept, and only
    what the lost leader alone had acknowledged is lost."""
    admin.create_assigned(
        topic, [[1, 2]], {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    )
    daemon = start_daemon(brokers.bootstrap_servers, settings={"linger.ms": 0, "daemon.workers": 1})
    with Flow(daemon.run_dir, topic, to_first) as flow:
        flow.wait_more(what="by both replicas")
        brokers.kill_node(1)
        try:
            safe = len(flow.delivered)
            wait_until(
                lambda: list(admin.partitions(topic)[0].isrs) == [1], "the ISR to shrink", timeout_s=60
            )
            flow.wait_more(what="by one replica alone")
            bumps = metric(daemon, EPOCH_BUMPS)
            brokers.kill_node(0)
            at_risk = len(flow.delivered)
            brokers.restart_node(1)
            admin.elect_unclean(topic, [0])
            flow.wait_more(what="by the replica that lacks some")
            wait_until(lambda: metric(daemon, EPOCH_BUMPS) > bumps, "the next epoch to be counted")
        finally:
            for node in (0, 1):
                if brokers.nodes[node].process is None:
                    brokers.restart_node(node)
        admin.wait_in_sync(topic, 2)
        flow.wait_more(what="after the other cut its log back")
    assert not flow.failed
    found = [
        RecordId.decode(each.value or b"").number for each in read_topic(brokers.bootstrap_servers, topic)
    ]
    assert len(found) == len(set(found)), "a value is there twice"
    assert found == sorted(found)
    lost = set(flow.delivered) - set(found)
    assert lost, "nothing was cut back: the test proves nothing"
    # A record may be told a moment after the broker that acknowledged it was killed.
    assert lost <= set(flow.delivered[safe : at_risk + 100])


def run_nemesis(
    brokers: KafkaCluster,
    admin: KafkaAdmin,
    start_daemon: StartDaemon,
    topic: str,
    folder: Path,
    *,
    seed: int,
    duration_s: float,
) -> History:
    admin.create_assigned(
        topic,
        [[1 + index % 3, 1 + (index + 1) % 3, 1 + (index + 2) % 3] for index in range(PARTITIONS)],
        {"min.insync.replicas": "2"},
    )
    history = History()
    with FaultProxy(brokers.bootstrap_servers) as proxy:
        settings = {
            "delivery.timeout.ms": 10_000,
            "request.timeout.ms": 3_000,
            "max.block.ms": 10_000,
            "reconnect.backoff.max.ms": 1_000,
            "linger.ms": 0,
        }
        daemon = start_daemon(proxy.bootstrap_servers, settings=settings)
        nemesis = Nemesis(brokers, seed, proxy=proxy, happened=history.happened)
        callers = [HistoryCaller(history, daemon.run_dir, topic, f"caller-{n}") for n in range(3)]
        readers = [
            HistoryReader(history, brokers.bootstrap_servers, topic, PARTITIONS, f"reader-{n}")
            for n in range(2)
        ]
        try:
            with callers[0], callers[1], callers[2], readers[0], readers[1]:
                nemesis.run(duration_s)
                history.check()
                admin.wait_in_sync(topic, 3)
                calm = history.counts["delivered"]
                wait_until(
                    lambda: history.counts["delivered"] > calm + 300,
                    "records to flow after the last fault",
                    timeout_s=HEALING_S,
                )
                for caller in callers:
                    caller.stop(HEALING_S)
                ends = admin.end_offsets(topic)
                for reader in readers:
                    wait_until(
                        lambda reader=reader: reader.positions == {p: end for p, end in ends.items() if end},
                        f"{reader.name} to reach the ends",
                        timeout_s=HEALING_S,
                        describe=lambda reader=reader: f"{dict(reader.positions)} of {ends}",
                    )
                    reader.stop(HEALING_S)
            assert history.unseen == history.untold == 0
            history.check(is_over=True)
        except BaseException:
            history.dump(folder / "history.jsonl")
            print(f"the history is in {folder / 'history.jsonl'}")
            raise
    return history


def test_bf_07_nemesis(
    brokers: KafkaCluster,
    admin: KafkaAdmin,
    start_daemon: StartDaemon,
    topic: str,
    tmp_path: Path,
) -> None:
    """BF-07: brokers are killed, stopped, paused, cut off and made mute at random, one after the other; three callers
    and two readers go on all the while."""
    history = run_nemesis(brokers, admin, start_daemon, topic, tmp_path, seed=7, duration_s=SHORT_S)
    counts = history.counts
    assert counts["delivered"] > 1_000, counts
    print(counts)


@pytest.mark.long
@pytest.mark.parametrize("seed", [11, 12])
def test_bf_07_nemesis_for_long(
    brokers: KafkaCluster,
    admin: KafkaAdmin,
    start_daemon: StartDaemon,
    topic: str,
    tmp_path: Path,
    seed: int,
) -> None:
    """BF-07, the long form."""
    print(run_nemesis(brokers, admin, start_daemon, topic, tmp_path, seed=seed, duration_s=LONG_S).counts)
