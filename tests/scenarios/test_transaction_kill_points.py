"""TX: a worker that is killed at any store of accepting, sending and ending records, on a real Kafka.

Transactions run one after the other. Each is there whole or not at all, and what was reported committed is there.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from client_stub import Producer
from client_stub.errors import SidecarError
from sidecar.common.own_process import KILL_POINTS
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.kill_points.orders import PASSED_FILE, give_order

from .test_transaction_deaths import CALL_S, Judge, balanced

pytestmark = [pytest.mark.process, pytest.mark.kafka]

POINTS: Final = (
    "accept.entry_header",
    "accept.tail",
    "accept.position",
    "accept.counted",
    "index.word",
    "index.batched",
    "publish.content",
    "publish.state",
    "encode.batch",
    "send.begin",
    "send.all",
    "answer.read",
    "done.content",
    "done.state",
    "done.counted",
    "tell.head",
    "released.state",
    "words.word",
    "words.done",
    "free.state",
    "ack.number",
    "lane.content",
    "lane.stored",
    "end.stored",
    "end.sent",
    "end.answered",
    "txn.result",
    "txn.told",
)
ONCE: Final = ("stream.placed",)
"""Passed once by each client."""
RECORDS: Final = 30
TRIES_MAX: Final = 8


@pytest.mark.parametrize("nth", [1, 4])
def test_each_transaction_is_there_whole_or_not_at_all(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, tmp_path: Path, nth: int
) -> None:
    points = POINTS if nth > 1 else ONCE + POINTS
    topic, orders = new_topic(3), tmp_path / "orders"
    orders.mkdir()
    daemon = start_daemon(
        kafka.bootstrap_servers,
        settings={"daemon.workers": 1, "daemon.restart_backoff_max_ms": 20},
        environment={KILL_POINTS: str(orders)},
    )
    for number, point in enumerate(points):
        give_order(orders, f"{number:06d}", point, nth=nth, during="live")
    committed: list[bytes] = []
    aborted = 0
    passed = orders / PASSED_FILE
    with Producer(
        run_dir=str(daemon.run_dir),
        client_name="killed",
        transactional_id=f"kill-points-{nth}",
        connect_timeout_ms=600_000,
        max_block_ms=600_000,
    ) as producer:
        producer.init_transactions(CALL_S)
        (pid,) = daemon.worker_pids()
        os.kill(pid, signal.SIGKILL)  # the first order is for its successor
        for number in range(20 * len(points)):
            done = passed.read_text().count("\n") if passed.exists() else 0
            if done == len(points):
                break
            values = [b"%d-%d" % (number, each) for each in range(RECORDS)]
            for _ in range(TRIES_MAX):
                try:
                    producer.begin_transaction()
                    for value in values:
                        producer.send(topic, value)
                    producer.commit_transaction(CALL_S)
                    committed += values
                    break
                except SidecarError as error:
                    assert error.abortable, error
                    producer.abort_transaction(CALL_S)
                    aborted += 1
            else:
                raise AssertionError(f"transaction {number} was aborted {TRIES_MAX} times")
    lines = passed.read_text().splitlines()
    assert [line.split()[0] for line in lines] == list(points)
    judge = Judge(kafka)
    found = Counter(judge.values(topic, wanted=len(committed)))
    judge.close()
    assert found == Counter(committed), f"{aborted} aborted"
    balanced(daemon)
    assert "ALARM" not in daemon.log_path.read_text()
    print(
        f"{len(lines)} kills, {len(committed)} records committed, {aborted} transactions aborted and sent again"
    )
