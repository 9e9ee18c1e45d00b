"""Goal: a producer works with any number of topics over its life, also while workers die; a full table passes, and so
does an unknown topic.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from client_stub import Producer, errors
from sidecar.shm.layout import CHAINS_MAX, STREAMS_MAX
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.process_stats import anonymous_rss_mb
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process

TOPICS = 3 * STREAMS_MAX
ROUNDS = 3
CLIENTS = 6
TOPICS_EACH = 180
MANY = 6_000
FLAT_MB = 2.0
"""Growth allowed to a worker over the second half of these topics. It was 10 MB."""
PATIENCE_S = 240.0
ALONE_MAX = 30


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    names = [f"t{number}" for number in range(TOPICS)]
    names += [f"of-{client}-{number}" for client in range(CLIENTS) for number in range(TOPICS_EACH)]
    with FakeBroker(dict.fromkeys(names, 1)) as broker:
        yield broker


def test_more_topics_than_streams_while_workers_die(broker: FakeBroker) -> None:
    """Each round finds the streams of the last one ended or given on; a worker dies in the middle of each."""
    with (
        SidecarDaemon(
            broker.bootstrap_servers, settings={"daemon.workers": 1, "daemon.restart_backoff_max_ms": 20}
        ) as daemon,
        Producer(run_dir=daemon.run_dir, delivery_timeout_ms=PATIENCE_S * 1e3) as producer,
    ):
        for turn in range(ROUNDS):
            for number in range(TOPICS):
                producer.send(f"t{number}", b"%d" % turn)
                if number % 100 == 0:
                    producer.flush(PATIENCE_S)
                if number == TOPICS // 2:
                    os.kill(daemon.worker_pids()[0], signal.SIGKILL)
        producer.flush(PATIENCE_S)
        stats = producer.stats()
        assert stats.delivered == stats.sent == ROUNDS * TOPICS
        assert stats.connections > ROUNDS
        assert len(producer._engine.outbox.io["thread"]._session.streams.windows) == STREAMS_MAX
        assert "Traceback" not in daemon.log_path.read_text()
    expected = [b"%d" % turn for turn in range(ROUNDS)]
    for number in range(TOPICS):
        assert [each.value for each in broker.records(f"t{number}")] == expected, number


def test_without_max_block_ms_a_burst_waits_for_the_look_up_that_its_first_record_begins(
    broker: FakeBroker,
) -> None:
    """3,000 of 3,000 failed. A few may fail as the first does, as long as each comes alone."""
    with (
        SidecarDaemon(broker.bootstrap_servers, settings={"daemon.workers": 1, "max.block.ms": 0}) as daemon,
        Producer(run_dir=daemon.run_dir) as producer,
    ):
        sent = [producer.send("t0", b"burst-%d" % number) for number in range(3_000)]
        with suppress(errors.MetadataTimeout):
            producer.flush(PATIENCE_S)
        failed = [number for number, each in enumerate(sent) if each.exception(0)]
        assert failed[0] == 0
        assert len(failed) < ALONE_MAX
        assert all(isinstance(sent[number].exception(0), errors.MetadataTimeout) for number in failed)
        found = [each.value for each in broker.records("t0") if (each.value or b"").startswith(b"burst-")]
        assert found == [b"burst-%d" % number for number in range(3_000) if number not in failed]


def test_topics_that_a_full_table_refused_continue_when_others_have_left(broker: FakeBroker) -> None:
    """Five clients left and the table was empty. The sixth raised TopicLimit for ever."""
    assert CLIENTS * TOPICS_EACH > CHAINS_MAX
    with (
        SidecarDaemon(broker.bootstrap_servers, settings={"daemon.workers": 1}) as daemon,
        ExitStack() as stack,
    ):
        producers = [
            stack.enter_context(Producer(run_dir=daemon.run_dir, delivery_timeout_ms=PATIENCE_S * 1e3))
            for _ in range(CLIENTS)
        ]
        for client, producer in enumerate(producers[:-1]):
            for number in range(TOPICS_EACH):
                producer.send(f"of-{client}-{number}", b"v")
            producer.flush(PATIENCE_S)
        last = producers[-1]
        sent = [last.send(f"of-{CLIENTS - 1}-{number}", b"v") for number in range(TOPICS_EACH)]
        reasons = last._engine.outbox.waiters.reasons.hold_reasons
        wait_until(lambda: any("is full" in why for why in list(reasons.values())), "the table to be full")
        assert last.takes_records
        for producer in producers[:-1]:
            producer.close()
        last.flush(PATIENCE_S)
        assert all(each.result(0).offset == 0 for each in sent)


def test_the_memory_of_a_worker_is_flat_over_any_number_of_topics() -> None:
    """One record to each, one topic after the other. Partitions rest, and begin again under new epochs."""
    names = [f"t{number}" for number in range(MANY)]
    with (
        FakeBroker(dict.fromkeys(names, 1)) as broker,
        SidecarDaemon(
            broker.bootstrap_servers, settings={"daemon.workers": 1, "metadata.max.idle.ms": 5_000}
        ) as daemon,
        Producer(run_dir=daemon.run_dir, delivery_timeout_ms=PATIENCE_S * 1e3) as producer,
    ):
        (worker,) = daemon.worker_pids()
        half_mb = 0.0
        for number, name in enumerate(names, 1):
            producer.send(name, name.encode())
            if number % 100 == 0:
                producer.flush(PATIENCE_S)
            if number == MANY // 2:
                half_mb = anonymous_rss_mb(worker)
        assert anonymous_rss_mb(worker) - half_mb < FLAT_MB
        for name in names[:50]:
            producer.send(name, b"again")
        producer.flush(PATIENCE_S)
        assert daemon.worker_pids() == [worker]
        for number, name in enumerate(names):
            expected = [name.encode(), b"again"] if number < 50 else [name.encode()]
            assert [each.value for each in broker.records(name)] == expected
