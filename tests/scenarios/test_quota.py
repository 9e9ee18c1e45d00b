"""A real broker's quota: SN-09 through the fault proxy, which sees what the broker asked for and what came next."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest

from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fault_proxy import FaultProxy
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.ledger import Ledger
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

from .harness import FAST, METRIC, Sender, accounts_balance, enter_records

pytestmark = [pytest.mark.process, pytest.mark.kafka]

CLIENT_ID = "under-quota"
BYTE_RATE = 100_000
"""The broker looks at about 10 s: so much tenfold may pass before it asks for anything."""
RECORD_BYTES = 10_000
THROTTLED_MIN = 5
THROTTLE_TOTAL = f"{METRIC}produce_throttle_seconds_total"
THROTTLE_AVG = f"{METRIC}produce_throttle_avg_seconds"
THROTTLE_MAX = f"{METRIC}produce_throttle_max_seconds"


def test_sn_09_a_byte_rate(kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic) -> None:
    """SN-09: kafka-configs limits the client's bytes a second. Nothing is sent to the broker for as long as it asks
    for, nothing fails or is lost, and the metrics show it. After the quota is gone nothing waits any more."""
    topic = new_topic(partitions=1)
    asked: list[tuple[float, float]] = []
    """(when the broker's answer passed, how many seconds it asked for)"""

    def note(entity: Any) -> Any:
        asked.append((time.monotonic(), entity.throttle_time.total_seconds()))
        return entity

    with FaultProxy(kafka.bootstrap_servers) as proxy:
        proxy.add(on(Api.PRODUCE, topic=topic, times=ALWAYS).edit_answer(note))
        settings = {
            **FAST,
            "client.id": CLIENT_ID,
            "max.in.flight.requests.per.connection": 1,
            "daemon.batch_growth_bytes": 0,
        }
        daemon = start_daemon(proxy.bootstrap_servers, settings=settings)
        kafka.set_quota(CLIENT_ID, BYTE_RATE)
        with Sender(daemon, topic) as sender:

            def throttled() -> list[float]:
                for _ in range(20):
                    sender.send(size=RECORD_BYTES)
                sender.producer.flush(30)
                return [seconds for _, seconds in asked if seconds > 0]

            wait_until(
                lambda: len(throttled()) >= THROTTLED_MIN, "the broker to ask for patience", timeout_s=60
            )
            wait_until(lambda: metric(daemon, THROTTLE_MAX) > 0, "the metrics to show it")
            shown = metric(daemon, THROTTLE_AVG), metric(daemon, THROTTLE_MAX), metric(daemon, THROTTLE_TOTAL)
            assert 0 < shown[0] <= shown[1] <= max(throttled()) <= shown[2]
            kafka.set_quota(CLIENT_ID, None)

            def is_free() -> bool:
                before = len(asked)
                throttled()
                return all(seconds == 0 for _, seconds in asked[before:])

            wait_until(is_free, "the broker to ask for nothing more", timeout_s=60)
            total = metric(daemon, THROTTLE_TOTAL)
            for _ in range(200):
                sender.send(size=RECORD_BYTES)
            assert sender.offsets() == list(range(len(sender.deliveries)))
            assert metric(daemon, THROTTLE_TOTAL) == total
            sent = [request.at_s for request in proxy.requests(Api.PRODUCE, topic)]
            for answered_s, seconds in asked:
                assert not [at_s for at_s in sent if answered_s < at_s < answered_s + seconds]
            assert all(before < after for before, after in pairwise(sent))
            ledger = Ledger()
            sender.enter(ledger)
            found = read_topic(kafka.bootstrap_servers, topic)
            enter_records(ledger, topic, ((each.value or b"", each.partition) for each in found))
            ledger.check()
            accounts_balance(daemon)
            for name in ("request_errors", "record_errors", "batches_retried", "records_failed"):
                assert metric(daemon, f"{METRIC}{name}_total") == 0
