"""The cluster of a run: an embedded Kafka, or the one that was given, with the run's topic."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from sidecar.tools.chaos.options import ChaosOptions
from sidecar.tools.demo.steps import Steps
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import create_topics, delete_topics

SEGMENT_BYTES = 64 << 20
"""Small, as a broker that was killed reads its last log segments again when it starts."""

TRANSACTION_NODES = 3
"""So that another broker becomes the coordinator of one that is killed."""


class Broker(NamedTuple):
    bootstrap_servers: str
    cluster: KafkaCluster | None
    """None for a foreign cluster, which is left alone."""


def start_broker(options: ChaosOptions, topic: str, steps: Steps, stack: contextlib.ExitStack) -> Broker:
    """Start the Kafka or create the topic that was not given; ``stack`` removes them at its end."""
    given = options.bootstrap_servers
    if given is None:
        count = TRANSACTION_NODES if options.transactions else 1
        with steps.step(f"A real Apache Kafka of {count} node{'s' if count > 1 else ''}"):
            cluster = KafkaCluster(
                count,
                topics={topic: options.partitions},
                heap_mb=512 if count == 1 else 320,
                properties={"log.segment.bytes": str(SEGMENT_BYTES)},
            )
            return Broker(stack.enter_context(cluster).bootstrap_servers, cluster)
    with steps.step(f"Topic {topic} on {given}"):
        create_topics(given, {topic: options.partitions})
        if options.topic is None:
            stack.callback(delete_topics, given, [topic])
    return Broker(given, None)
