"""Goal: what one topic or client cannot send, or does not read, holds up nobody else.

Method: a small pool on a real broker. One client floods a topic that nobody has created, or stops reading its
outcomes. Another must get all of its records delivered meanwhile, and the pool must be whole again at the end.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from client_stub import Producer, errors
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.kafka]

POOL_BYTES = 4 << 20
PAGE_BYTES = 16 << 10
RECORDS = 20_000
VALUE = b"v" * 200

DEAF_CLIENT = """
import sys
from client_stub import Producer
producer = Producer(run_dir=sys.argv[1], client_name="deaf")
producer.send(sys.argv[2], value=b"first").result(timeout=30)
print("attached", flush=True)
while True:
    for _ in range(100):
        producer.send(sys.argv[2], value=b"x" * 200)
"""


@pytest.fixture
def small_daemon(kafka: KafkaCluster) -> Iterator[SidecarDaemon]:
    """Two workers, as by default, with one small pool; records wait 1.5 s for their topic."""
    settings = {"buffer.memory": POOL_BYTES, "max.block.ms": 1_500}
    with SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon:
        yield daemon


def pages_taken(daemon: SidecarDaemon) -> float:
    return metric(daemon, "kafka_sidecar_buffer_pages_taken")


def test_a_flood_to_an_unknown_topic_leaves_room_for_others(
    kafka: KafkaCluster, small_daemon: SidecarDaemon, new_topic: NewTopic
) -> None:
    good = new_topic(partitions=3)
    with Producer(run_dir=small_daemon.run_dir, client_name="good", max_block_ms=60_000) as producer:
        producer.send(good, value=b"warm").result(timeout=30)
        flood = Producer(run_dir=small_daemon.run_dir, client_name="flood", max_block_ms=500)
        outcomes: list[BaseException | None] = []
        refused = threading.Event()

        def pour() -> None:
            try:
                while True:
                    flood.send(
                        "nobody-made-this-topic",
                        value=VALUE,
                        on_delivery=lambda error, metadata: outcomes.append(error),
                    )
            except errors.BufferExhausted:
                refused.set()

        pouring = threading.Thread(target=pour)
        pouring.start()
        wait_until(
            lambda: metric(small_daemon, "kafka_sidecar_holds_total") > 0, "the flood is held", timeout_s=30
        )
        half = POOL_BYTES / PAGE_BYTES / 2
        assert pages_taken(small_daemon) <= half + 4, "the flood holds its share and no more"
        producer.send_many(good, [(None, VALUE)] * RECORDS).result(timeout=60)
        pouring.join(timeout=60)
        assert refused.is_set(), "the flooding client hears BufferExhausted, as its own max_block_ms says"
        with pytest.raises(errors.SidecarError, match="nobody-made-this-topic"):
            flood.send("nobody-made-this-topic", value=b"late").result(timeout=60)
        flood.close(timeout=60)
    assert outcomes and all(isinstance(error, errors.SidecarError) for error in outcomes)
    assert len(read_topic(kafka.bootstrap_servers, good)) == RECORDS + 1
    wait_until(lambda: pages_taken(small_daemon) == 0, "the pool is whole again", timeout_s=30)


def test_a_client_that_does_not_read_its_outcomes_delays_nobody(
    kafka: KafkaCluster, small_daemon: SidecarDaemon, new_topic: NewTopic
) -> None:
    topic, good = new_topic(partitions=3), new_topic(partitions=3)
    deaf = subprocess.Popen(
        [sys.executable, "-c", DEAF_CLIENT, str(small_daemon.run_dir), topic], stdout=subprocess.PIPE
    )
    try:
        assert deaf.stdout is not None
        assert deaf.stdout.readline() == b"attached\n"
        deaf.send_signal(signal.SIGSTOP)
        with Producer(run_dir=small_daemon.run_dir, client_name="good") as producer:
            producer.send_many(good, [(None, VALUE)] * RECORDS).result(timeout=60)
        deaf.send_signal(signal.SIGKILL)
    finally:
        deaf.kill()
        deaf.wait()
    assert len(read_topic(kafka.bootstrap_servers, good)) == RECORDS
    # The killed client's accepted records are delivered; its pages come back.
    wait_until(lambda: pages_taken(small_daemon) == 0, "the pool is whole again", timeout_s=30)
    accepted = metric(small_daemon, "kafka_sidecar_records_accepted_total")
    delivered = metric(small_daemon, "kafka_sidecar_records_delivered_total")
    assert accepted == delivered
    assert len(read_topic(kafka.bootstrap_servers, topic)) == accepted - RECORDS
