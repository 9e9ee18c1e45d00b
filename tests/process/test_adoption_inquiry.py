"""Goal: before a dead worker's batch is sent again its broker is asked what it has; where it cannot say, the
configuration decides, and it is counted.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from typing import Any

import pytest

from client_stub import Producer
from client_stub.contract.wire import Persistence
from client_stub.errors import SidecarError
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fault_proxy import FaultProxy
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import read_topic

pytestmark = [pytest.mark.process, pytest.mark.kafka]


def forget(answer: Any) -> Any:
    """DescribeProducers as it is once the broker has forgotten everybody."""
    topics = tuple(
        dataclasses.replace(
            topic,
            partitions=tuple(dataclasses.replace(each, active_producers=()) for each in topic.partitions),
        )
        for topic in answer.topics
    )
    return dataclasses.replace(answer, topics=topics)


@pytest.mark.parametrize("case", ["known", "resend", "fail"])
def test_a_batch_without_an_answer(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, case: str
) -> None:
    """The broker has the second record and its answer is lost with the worker."""
    topic = new_topic(partitions=1)
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        daemon = start_daemon(
            proxy.bootstrap_servers,
            settings={
                "daemon.workers": 1,
                "linger.ms": 0,
                "recover.unknown": "fail" if case == "fail" else "resend",
            },
        )
        with Producer(run_dir=str(daemon.run_dir)) as producer:
            assert producer.send(topic, value=b"first").result(timeout=30).offset == 0
            lost = proxy.add(on(Api.PRODUCE, topic=topic).drop_answer())
            delivery = producer.send(topic, value=b"second")
            lost.wait()
            if case != "known":
                proxy.add(on(Api.DESCRIBE_PRODUCERS, times=ALWAYS).edit_answer(forget))
            os.kill(daemon.worker_pids()[0], signal.SIGKILL)
            if case == "fail":
                with pytest.raises(SidecarError) as failed:
                    delivery.result(timeout=30)
                assert getattr(failed.value, "persistence", None) == Persistence.POSSIBLY_PERSISTED
            else:
                assert delivery.result(timeout=30).offset == 1, "the broker has recognised it"
            assert producer.send(topic, value=b"third").result(timeout=30).offset == 2
        asked = [
            request.api
            for request in proxy.requests()
            if request.api in {Api.PRODUCE, Api.DESCRIBE_PRODUCERS}
        ]
        sent_again = 0 if case == "fail" else 1
        assert asked == [Api.PRODUCE] * 2 + [Api.DESCRIBE_PRODUCERS] + [Api.PRODUCE] * (sent_again + 1)
        resent = metric(daemon, "kafka_sidecar_records_resent_unknown_total")
        assert resent == (1 if case == "resend" else 0)
    assert [record.value for record in read_topic(kafka.bootstrap_servers, topic)] == [
        b"first",
        b"second",
        b"third",
    ]
