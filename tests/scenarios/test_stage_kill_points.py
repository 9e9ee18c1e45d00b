"""ST-02: a worker that is killed at any store of a stage's life, on a real Kafka.

Stages are filled submission by submission, some are included, and others are dropped or left. All records of an include
are there or none, and nothing of any other stage is there, also for readers of uncommitted records.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from client_stub import Producer
from client_stub.errors import SidecarError
from client_stub.stage import Stage
from sidecar.common.own_process import KILL_POINTS
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.kill_points.orders import PASSED_FILE, give_order
from sidecar.tools.testing.kill_points.points import POINTS
from sidecar.tools.testing.metrics import metric

from .test_transaction_deaths import CALL_S, Judge, balanced

pytestmark = [pytest.mark.process, pytest.mark.kafka]

STAGE_POINTS: Final = tuple(point for point in POINTS if point.startswith("stage."))
OTHERS: Final = (
    "accept.entry_header",
    "accept.tail",
    "index.word",
    "index.batched",
    "publish.state",
    "send.all",
    "answer.read",
    "done.content",
    "done.state",
    "done.counted",
    "released.state",
    "words.word",
    "words.done",
    "free.state",
)
SUBMISSIONS: Final = 6
RECORDS: Final = 5
TRIES_MAX: Final = 8
PATIENCE_ROUNDS: Final = 8
"""After so many rounds without an order, those that were not carried out are given again."""


def fill(stages: list[Stage], topic: str, number: int) -> list[list[bytes]]:
    """Fill stages submission by submission; the values of each."""
    values: list[list[bytes]] = [[] for _ in stages]
    for submission in range(SUBMISSIONS):
        for at, stage in enumerate(stages):
            rows = [b"%d-%d-%d-%d" % (number, at, submission, each) for each in range(RECORDS)]
            stage.send_many(topic, [(None, row) for row in rows])
            values[at] += rows
    return values


class Rounds:
    """Four stages each: two are included, the third is sealed and dropped, the fourth is dropped open."""

    def __init__(self, stager: Producer, producer: Producer, name: str, topic: str) -> None:
        self._stager, self._producer = stager, producer
        self._name, self._topic = name, topic
        self._number = 0
        self.committed: list[bytes] = []
        self.aborted: set[bytes] = set()
        self.never: set[bytes] = set()
        """Nothing of these was included."""

    def run(self) -> None:
        for _ in range(TRIES_MAX):
            if self._is_committed():
                return
        raise AssertionError(f"{TRIES_MAX} transactions in vain, the last is {self._number}")

    def _is_committed(self) -> bool:
        self._number += 1
        own = b"own-%d" % self._number
        stages = [self._stager.stage(self._name, self._number) for _ in range(4)]
        values = fill(stages, self._topic, self._number)
        tokens = [stage.seal(CALL_S) for stage in stages[:3]]
        stages[3].drop()
        self.never.update(values[2], values[3])
        included = [*values[0], *values[1], own]
        producer = self._producer
        try:
            producer.begin_transaction()
            assert producer.include(tokens[:2], CALL_S).rows == 2 * SUBMISSIONS * RECORDS
            producer.send(self._topic, own)
            producer.commit_transaction(CALL_S)
        except SidecarError as error:
            assert error.abortable, error
            producer.abort_transaction(CALL_S)
            self.aborted.update(included)
            return False
        finally:
            producer.drop_stages(tokens=tokens[2:])
        self.committed += included
        return True

    def check(self, kafka: KafkaCluster) -> None:
        for isolation in ("read_committed", "read_uncommitted"):
            judge = Judge(kafka, isolation)
            found = Counter(judge.values(self._topic, wanted=len(self.committed)))
            judge.close()
            assert not found.keys() & self.never
            if isolation == "read_committed":
                assert found == Counter(self.committed)
            else:
                assert found.keys() <= set(self.committed) | self.aborted


def passed_by(passed: Path) -> set[str]:
    """The points at which workers were killed so far."""
    lines = passed.read_text().splitlines() if passed.exists() else []
    return {line.split()[0] for line in lines}


@pytest.mark.parametrize("nth", [1, 3])
def test_an_include_is_there_whole_or_not_at_all(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, tmp_path: Path, nth: int
) -> None:
    topic, orders, name = new_topic(2), tmp_path / "orders", f"stages-{nth}"
    orders.mkdir()
    daemon = start_daemon(
        kafka.bootstrap_servers,
        settings={"daemon.workers": 1, "daemon.restart_backoff_max_ms": 20},
        environment={KILL_POINTS: str(orders)},
    )
    points = STAGE_POINTS + OTHERS
    for number, point in enumerate(points):
        give_order(orders, f"{number:06d}", point, nth=nth, during="live")
    passed = orders / PASSED_FILE
    common: dict[str, Any] = {
        "run_dir": str(daemon.run_dir),
        "client_name": "killed",
        "connect_timeout_ms": 600_000,
        "max_block_ms": 600_000,
    }
    with Producer(**common) as stager, Producer(**common, transactional_id=name) as producer:
        producer.init_transactions(CALL_S)
        rounds = Rounds(stager, producer, name, topic)
        (pid,) = daemon.worker_pids()
        os.kill(pid, signal.SIGKILL)  # the first order is for its successor
        for number in range(20 * len(points)):
            missing = set(points) - passed_by(passed)
            if not missing:
                break
            if not [each for each in orders.iterdir() if each != passed] and number % PATIENCE_ROUNDS == 0:
                # A worker that was slow for too long was ended with its order.
                for point in missing:
                    give_order(orders, f"again-{number:06d}-{point}", point, nth=nth, during="live")
            rounds.run()
    lines = passed.read_text().splitlines()
    assert passed_by(passed) == set(points)
    rounds.check(kafka)
    balanced(daemon)
    assert metric(daemon, "kafka_sidecar_records_staged") == 0
    assert "ALARM" not in daemon.log_path.read_text()
    print(f"{len(lines)} kills, {len(rounds.committed)} records committed, {len(rounds.aborted)} aborted")
